import random

import braceexpand
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.errors import ConfigError
from bridge_data.prepare.splits import (
    collapse,
    parse_pattern,
    parse_ratio,
    ratio_bounds,
    split_by_patterns,
    split_by_ratio,
)

NAMES = [f"data-{number:06d}.tar" for number in range(10)]


@pytest.mark.parametrize(
    ("ratio", "sizes"),
    [
        ("8,1,1", [8, 1, 1]),
        ("10,0,0", [10, 0, 0]),
        ("0.5, 0.2, 0.3", [5, 2, 3]),
        ("0.7,0.2,0.1", [7, 2, 1]),
        ("6,3,1", [6, 3, 1]),
    ],
)
def test_ratio(ratio: str, sizes: list[int]) -> None:
    """Exact shares: 0.6 + 0.3 + 0.1 in floats is less than 1, and would lose the last shard."""
    parts = split_by_ratio(NAMES, parse_ratio(ratio))
    assert list(parts) == ["train", "val", "test"]
    assert [len(names) for names in parts.values()] == sizes
    assert [name for names in parts.values() for name in names] == NAMES


@given(st.integers(0, 60), st.tuples(*[st.decimals(0, 20, places=2)] * 3).filter(lambda shares: sum(shares) > 0))
def test_every_shard_is_in_one_part(num_shards: int, shares: tuple[object, ...]) -> None:
    names, ratio = [str(number) for number in range(num_shards)], parse_ratio(",".join(map(str, shares)))
    parts = split_by_ratio(names, ratio)
    assert [name for part in parts.values() for name in part] == names
    bounds = ratio_bounds(ratio, num_shards)  # of lines
    assert {part: names[start:end] for part, (start, end) in bounds.items()} == parts


def test_shuffled_shards_are_energons() -> None:
    parts = split_by_ratio(NAMES, parse_ratio("5,5,0"), shuffle=True)
    shuffled = list(NAMES)
    random.Random(42).shuffle(shuffled)
    assert parts["train"] + parts["val"] == shuffled != NAMES


def test_wrong_ratios_and_patterns() -> None:
    assert parse_pattern("train:a:b.tar") == ("train", "a:b.tar")
    expected = "expected three numbers"
    for parse, text, told in (
        *((parse_ratio, text, expected) for text in ("", "8,1", "8,1,1,1", "a,b,c", "-1,1,1", "0,0,0", "1/0,1,1")),
        *((parse_pattern, text, 'expected "name:pattern"') for text in ("train", ":a.tar", "train:")),
        (choose, "valid", r"split part val:valid: no shard is called so; there is data-000000\.tar"),
        (choose, "(", "not a regular expression"),
    ):
        with pytest.raises(ConfigError, match=told):
            parse(text)


def choose(pattern: str) -> dict[str, list[str]]:
    return split_by_patterns(NAMES, [("val", pattern)])


def test_patterns_are_braces_and_then_expressions_from_the_beginning() -> None:
    names = ["train/0.tar", "train/1.tar", "train/2.tar", "val/0.tar", "xtrain/0.tar"]
    rules = [("train", "train/{0..1}.tar"), ("train", "train/2"), ("val", r"val/\d\.tar"), ("all", ".*0")]
    assert split_by_patterns(names, rules) == {
        "train": ["train/0.tar", "train/1.tar", "train/2.tar"],
        "val": ["val/0.tar"],
        "all": ["train/0.tar", "val/0.tar", "xtrain/0.tar"],
    }


def test_ten_thousand_names_and_patterns() -> None:
    names = [f"data-{number:06d}.tar" for number in range(10_000)]
    rules = [("train", "data-{000000..008999}.tar"), ("val", "data-{009000..009999}.tar")]
    parts = split_by_patterns(names, rules)
    assert (len(parts["train"]), len(parts["val"])) == (9_000, 1_000)


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        (NAMES, ["data-{000000..000009}.tar"]),
        (["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar", "x.tar"], ["a/{0..1}.tar", "b/{0..1}.tar", "x.tar"]),
        (["s9.tar", "s10.tar", "s11.tar"], ["s9.tar", "s{10..11}.tar"]),
        (["p0-1", "p0-2", "p1-2"], ["p0-{1..2}", "p1-2"]),
        ([], []),
    ],
)
def test_runs_collapse(names: list[str], patterns: list[str]) -> None:
    assert collapse(names) == patterns


@given(st.lists(st.text(alphabet="a01{},\\.", min_size=1, max_size=6), max_size=12))
def test_what_is_collapsed_expands_to_the_same(names: list[str]) -> None:
    assert [name for pattern in collapse(names) for name in braceexpand.braceexpand(pattern)] == names
