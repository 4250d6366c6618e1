import pytest

from bridge_data.errors import ConfigError
from bridge_data.plan.document import parse_yaml
from bridge_data.plan.weights import WeightSchedule, changes, read_weight, weight_at


def read(text: str, key: str = "weight"):
    return read_weight(parse_yaml(f"\n{key}: {text}\n", "blend.yaml").value[key], key)


def test_a_number_is_the_weight_for_ever():
    assert read("5") == read("5.0") == 5.0
    assert (weight_at(5.0, 0), weight_at(5.0, 10**12)) == (5.0, 5.0)


def test_a_schedule_holds_each_weight_until_the_next():
    schedule = read("[{from_sample: 0, weight: 5}, {from_sample: 1_000_000, weight: 0}, {from_sample: 2e6, weight: 1}]")
    assert schedule == WeightSchedule(((0, 5.0), (1_000_000, 0.0), (2_000_000, 1.0)))
    assert [schedule.at(sample) for sample in (0, 999_999, 1_000_000, 2_000_000, 10**9)] == [5, 5, 0, 1, 1]
    assert changes([3.0, schedule]) == {1_000_000, 2_000_000}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "weight: the schedule is empty, expected steps {from_sample: N, weight: W}"),
        ("[5, 1]", "step of a schedule: expected a mapping, got 5"),
        ("[{from_sample: 0}]", "step of a schedule: weight is missing, expected {from_sample: N, weight: W}"),
        ("[{weight: 1}]", "step of a schedule: from_sample is missing"),
        ("[{from_step: 0, weight: 1}]", "unknown key 'from_step'; did you mean 'from_sample'?"),
        ("[{from_sample: 0.5, weight: 1}]", "from_sample: expected a whole number of samples, got 0.5"),
        ("[{from_sample: 1e999, weight: 1}]", "from_sample: expected a whole number of samples, got inf"),
        ("[{from_sample: -1, weight: 1}]", "from_sample: expected a whole number of samples, got -1"),
        ("[{from_sample: 0, weight: -1}]", "weight: expected a number of 0 or more, got -1"),
        ("[{from_sample: 7, weight: 1}]", "from_sample: the first step of a schedule begins at 0, got 7"),
        ("[{from_sample: 0, weight: 1}, {from_sample: 0, weight: 2}]", "the steps of a schedule must ascend"),
        ("[{from_sample: 0, weight: 0}]", "weight: the schedule is 0 throughout"),
        ("0", "weight: expected a number above 0, got 0; to leave a data set out of the blend, remove it"),
        ("many", "weight: expected a number, got 'many'"),
    ],
)
def test_what_is_no_weight_is_refused_with_file_and_line(text, says):
    with pytest.raises(ConfigError) as raised:
        read(text)
    assert "blend.yaml:2: " in str(raised.value)
    assert says in str(raised.value)


def test_repetitions_have_no_schedule():
    with pytest.raises(ConfigError, match="repetitions: expected a number, got a list of 1"):
        read("[{from_sample: 0, weight: 1}]", "repetitions")
