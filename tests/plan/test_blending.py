import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.data import ShardSet
from bridge_data.data.plain_data import parse_yaml
from bridge_data.errors import ConfigError
from bridge_data.plan import load_plan
from bridge_data.plan.blending import (
    Branch,
    Plan,
    WeightSchedule,
    changes,
    leaves,
    normalised,
    read_weight,
    weight_at,
)
from bridge_data.plan.opening import load_dataset
from bridge_data.plan.source import Source
from bridge_data.samples import CrudeSample
from tests.prepared import write_texts


def source(name="a", counts=(3, 4)):
    shards = ShardSet(
        root=Path("/data") / name,
        split_part="train",
        names=tuple(f"{number}.tar" for number in range(len(counts))),
        stored_counts=tuple(counts),
    )
    return Source(
        path=f"/data/{name}",
        split_part="train",
        records=shards,
        sample_class=CrudeSample,
        field_map={},
        parts=None,
        subflavors={},
        config_file=f"/data/{name}/.nv-meta/dataset.yaml",
    )


LEAF = source()
WEIGHTS = st.floats(1e-6, 1e6)
TREES = st.recursive(
    st.just(LEAF),
    lambda inner: st.lists(st.tuples(WEIGHTS, inner), min_size=1, max_size=4).map(lambda c: Branch("blend", tuple(c))),
    max_leaves=20,
)


def exact(tree, share=Fraction(1)):
    if isinstance(tree, Source):
        return [share]
    total = sum(Fraction(weight) for weight, _ in tree.children)
    return [part for weight, child in tree.children for part in exact(child, share * Fraction(weight) / total)]


@given(TREES)
def test_shares_are_products_of_normalised_weights_and_each_node_has_a_line(tree):
    def nodes(tree):
        return 1 if isinstance(tree, Source) else 1 + sum(nodes(child) for _, child in tree.children)

    shares = normalised([share for _, share in leaves(tree)])
    assert math.fsum(shares) == pytest.approx(1, abs=1e-12)
    assert list(shares) == pytest.approx([float(share) for share in exact(tree)], rel=1e-9)
    sources = tuple(leaf for leaf, _ in leaves(tree))
    for weights in (None, shares):
        lines = [line for line in str(Plan(tree, sources, weights)).splitlines() if not line.startswith("note: ")]
        assert len(lines) == nodes(tree)
        assert sum("7 samples in 2 shards" in line for line in lines) == len(sources)


def test_an_epochized_blend_draws_each_source_by_its_size_and_repetitions(tmp_path: Path) -> None:
    write_texts(tmp_path / "a", 100)
    write_texts(tmp_path / "b", 50)
    (tmp_path / "inner.yaml").write_text(HEAD + "    blend_epochized:\n      - {path: b, repetitions: 3}\n")
    items = "[{path: a, repetitions: 1.5}, {path: inner.yaml, repetitions: 2}, {path: b}]"
    (tmp_path / "outer.yaml").write_text(HEAD + f"    blend_epochized: {items}\n")
    plan = load_plan(tmp_path / "outer.yaml")
    assert plan.repetitions == (1.5, 6, 1)
    assert plan.weights == pytest.approx((150 / 500, 300 / 500, 50 / 500))
    assert "repetitions 1.5, 30.00% of draws" in str(plan)
    assert load_plan(tmp_path / "outer.yaml", training=False).repetitions is None
    with pytest.raises(ConfigError, match=r"a plan holds no samples.*get_train_dataset\(plan, \.\.\.\).*plan.sources"):
        list(plan)


HEAD = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"


@pytest.mark.parametrize(
    ("items", "told"),
    [
        ("{path: inner.yaml}", "a blend_epochized cannot hold a blend"),
        ("{path: a, weight: 2}", "weight"),
        ("{path: a, repetitions: 0}", "repetitions: expected a number above 0"),
        ("{path: a, repetitions: [{from_sample: 0, weight: 1}]}", "repetitions: expected a number, got a list of 1"),
    ],
)
def test_weights_and_repetitions_do_not_mix(tmp_path: Path, items: str, told: str) -> None:
    write_texts(tmp_path / "a", 10)
    (tmp_path / "inner.yaml").write_text(HEAD + "    blend: [{path: a}]\n")
    (tmp_path / "outer.yaml").write_text(HEAD + f"    blend_epochized:\n      - {items}\n")
    with pytest.raises(ConfigError, match=rf"outer.yaml:6: .*{told}"):
        load_plan(tmp_path / "outer.yaml")


def read(text: str, key: str = "weight"):
    return read_weight(parse_yaml(f"\n{key}: {text}\n", "blend.yaml").value[key], key)


def test_a_schedule_holds_each_weight_until_the_next():
    assert read("5") == read("5.0") == weight_at(5.0, 10**12) == 5.0
    assert read("0") == 0 and read("[{from_sample: 0, weight: 0}]") == WeightSchedule(((0, 0.0),))
    schedule = read("[{from_sample: 0, weight: 5}, {from_sample: 1_000_000, weight: 0}, {from_sample: 2e6, weight: 1}]")
    assert schedule == WeightSchedule(((0, 5.0), (1_000_000, 0.0), (2_000_000, 1.0)))
    assert [schedule.at(sample) for sample in (0, 999_999, 1_000_000, 2_000_000, 10**9)] == [5, 5, 0, 1, 1]
    assert changes([3.0, schedule]) == {1_000_000, 2_000_000}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "weight: the schedule is empty, expected phases {from_sample: N, weight: W}"),
        ("[5, 1]", "phase of a schedule: expected a mapping, got 5"),
        ("[{from_sample: 0}]", "phase of a schedule: weight is missing, expected {from_sample: N, weight: W}"),
        ("[{weight: 1}]", "phase of a schedule: from_sample is missing"),
        ("[{from_step: 0, weight: 1}]", "unknown key 'from_step'; did you mean 'from_sample'?"),
        ("[{from_sample: 0.5, weight: 1}]", "from_sample: expected a whole number of samples, got 0.5"),
        ("[{from_sample: 1e999, weight: 1}]", "from_sample: expected a whole number of samples, got inf"),
        ("[{from_sample: -1, weight: 1}]", "from_sample: expected a whole number of samples, got -1"),
        ("[{from_sample: 0, weight: -1}]", "weight: expected a finite number of 0 or more, got -1"),
        ("[{from_sample: 0, weight: .nan}]", "weight: expected a number, got '.nan'"),
        ("[{from_sample: 7, weight: 1}]", "from_sample: the first phase of a schedule begins at 0, got 7"),
        ("[{from_sample: 0, weight: 1}, {from_sample: 0, weight: 2}]", "the phases of a schedule must ascend"),
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
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    splits = {"train": {"blend": [{"path": "photos"}, {"path": "pages", "weight": wrong}]}}
    with pytest.raises(ConfigError, match=r"weight of 'pages': expected a finite number of 0 or more, got"):
        load_dataset(head | {"splits": splits}).traverse(split_part="train")
