import math
from fractions import Fraction

import hypothesis.strategies as st
import pytest
from hypothesis import given

from bridge_data.energon.dataset_loaders import load_dataset
from bridge_data.errors import ConfigError
from bridge_data.plan.document import parse_yaml
from bridge_data.plan.weights import (
    MANY_EPOCHS,
    WeightSchedule,
    as_written,
    changes,
    check_epochs,
    multiplied,
    read_weight,
    together,
    weight_at,
)

HEAD = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}


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
        ("[{from_sample: 0, weight: -1}]", "weight: expected a finite number of 0 or more, got -1"),
        ("[{from_sample: 0, weight: .nan}]", "weight: expected a number, got '.nan'"),
        ("[{from_sample: 7, weight: 1}]", "from_sample: the first step of a schedule begins at 0, got 7"),
        ("[{from_sample: 0, weight: 1}, {from_sample: 0, weight: 2}]", "the steps of a schedule must ascend"),
        ("-0.5", "weight: expected a finite number of 0 or more, got -0.5"),
        ("1e999", "weight: expected a finite number of 0 or more, got inf"),
        ("1" + 400 * "0", "weight: expected a finite number of 0 or more, got inf"),
        ("many", "weight: expected a number, got 'many'"),
    ],
)
def test_what_is_no_weight_is_refused_with_file_and_line(text, says):
    with pytest.raises(ConfigError) as raised:
        read(text)
    assert "blend.yaml:2: " in str(raised.value)
    assert says in str(raised.value)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1, 10**400])
def test_what_is_no_weight_in_python_is_refused_with_the_data_set(wrong):
    splits = {"train": {"blend": [{"path": "photos"}, {"path": "pages", "weight": wrong}]}}
    with pytest.raises(ConfigError, match=r"weight of 'pages': expected a finite number of 0 or more, got"):
        load_dataset(HEAD | {"splits": splits}).traverse(split_part="train")


def test_0_is_a_weight_but_no_number_of_repetitions():
    assert read("0") == read("0.0") == 0
    assert read("[{from_sample: 0, weight: 0}]") == WeightSchedule(((0, 0.0),))
    with pytest.raises(ConfigError, match="repetitions: expected a number above 0, got 0"):
        read("0", "repetitions")


def test_a_number_counts_as_it_is_written():
    assert [as_written(number) for number in (0.1, 3.0, 1e-9)] == [Fraction(1, 10), 3, Fraction(1, 10**9)]


def test_repetitions_have_no_schedule():
    with pytest.raises(ConfigError, match="repetitions: expected a number, got a list of 1"):
        read("[{from_sample: 0, weight: 1}]", "repetitions")


EPOCHS = st.sampled_from([None, -1, 1, 2, 3, 8])


@given(EPOCHS, EPOCHS, EPOCHS)
def test_levels_may_be_joined_in_any_sequence(a, b, c):
    assert multiplied(a, b) == multiplied(b, a)
    assert multiplied(a, multiplied(b, c)) == multiplied(multiplied(a, b), c)
    assert multiplied(1, a) == a


def test_no_shuffling_comes_before_replacement_and_that_before_the_product():
    assert multiplied(2, 3) == 6
    assert multiplied(-1, 3) == -1
    assert multiplied(-1, -1) == -1
    assert multiplied(None, -1) is None


def test_replacement_is_many_epochs_at_once():
    assert [together(epochs) for epochs in (None, 1, 5, -1)] == [None, 1, 5, MANY_EPOCHS]


@pytest.mark.parametrize("wrong", [0, -2, 1.5, "2", True])
def test_anything_else_is_refused(wrong):
    with pytest.raises(ConfigError, match="expected a number of epochs from 1 on"):
        check_epochs(wrong)
