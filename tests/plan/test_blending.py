import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.errors import ConfigError
from bridge_data.plan import load_plan
from bridge_data.plan.blending import Branch, Plan, leaves, normalised
from bridge_data.plan.source import Source
from bridge_data.samples import CrudeSample
from bridge_data.shards import ShardSet
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
def test_shares_are_products_of_normalised_weights_and_sum_to_one(tree):
    shares = normalised([share for _, share in leaves(tree)])
    assert math.fsum(shares) == pytest.approx(1, abs=1e-12)
    assert list(shares) == pytest.approx([float(share) for share in exact(tree)], rel=1e-9)
    assert all(share > 0 for share in shares)


@given(TREES, st.floats(1e-3, 1e3))
def test_only_ratios_of_weights_count(tree, factor):
    if isinstance(tree, Source):
        return
    scaled = Branch(tree.label, tuple((weight * factor, child) for weight, child in tree.children))
    assert [s for _, s in leaves(scaled)] == pytest.approx([s for _, s in leaves(tree)])


@given(TREES)
def test_the_printed_tree_has_a_line_for_each_node(tree):
    def nodes(tree):
        return 1 if isinstance(tree, Source) else 1 + sum(nodes(child) for _, child in tree.children)

    sources = tuple(leaf for leaf, _ in leaves(tree))
    for weights in (None, normalised([share for _, share in leaves(tree)])):
        lines = str(Plan(tree, sources, weights)).splitlines()
        assert len(lines) == nodes(tree)
        assert sum("7 samples in 2 shards" in line for line in lines) == len(sources)


def test_an_epochized_blend_draws_each_source_by_its_size_and_repetitions(tmp_path: Path) -> None:
    write_texts(tmp_path / "a", 100)
    write_texts(tmp_path / "b", 50)
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend_epochized:\n"
    (tmp_path / "inner.yaml").write_text(head + "      - {path: b, repetitions: 3}\n")
    (tmp_path / "outer.yaml").write_text(
        head + "      - {path: a, repetitions: 1.5}\n      - {path: inner.yaml, repetitions: 2}\n      - path: b\n"
    )
    plan = load_plan(tmp_path / "outer.yaml")
    assert plan.repetitions == (1.5, 6, 1)
    assert plan.weights == pytest.approx((150 / 500, 300 / 500, 50 / 500))
    assert "repetitions 1.5, 30.00% of draws" in str(plan)
    assert load_plan(tmp_path / "outer.yaml", training=False).repetitions is None


def test_weights_and_repetitions_do_not_mix(tmp_path: Path) -> None:
    write_texts(tmp_path / "a", 10)
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n"
    (tmp_path / "inner.yaml").write_text(head + "    blend: [{path: a}]\n")
    (tmp_path / "outer.yaml").write_text(head + "    blend_epochized:\n      - {path: inner.yaml}\n")
    with pytest.raises(ConfigError, match=r"outer.yaml:6: .*a blend_epochized cannot hold a blend"):
        load_plan(tmp_path / "outer.yaml")
    (tmp_path / "key.yaml").write_text(head + "    blend_epochized:\n      - {path: a, weight: 2}\n")
    with pytest.raises(ConfigError, match=r"key.yaml:6: .*weight"):
        load_plan(tmp_path / "key.yaml")
    (tmp_path / "zero.yaml").write_text(head + "    blend_epochized:\n      - {path: a, repetitions: 0}\n")
    with pytest.raises(ConfigError, match=r"zero.yaml:6: repetitions: expected a number above 0"):
        load_plan(tmp_path / "zero.yaml")
