import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.data import ShardSet, open_shards
from bridge_data.data.plain_data import parse_yaml
from bridge_data.data.records import count_samples, place_of
from bridge_data.data.subset import Subset, SubsetRange
from bridge_data.errors import ConfigError
from tests.data.tars import prepare_by_ratio, write_shards

COUNTS = st.lists(st.integers(0, 6), max_size=8)
BOUNDS = st.tuples(st.integers(0, 100), st.integers(0, 100)).filter(lambda b: b[0] < b[1])


def shard_set(counts: list[int]) -> ShardSet:
    names = tuple(f"{number}.tar" for number in range(len(counts)))
    return ShardSet(root=Path("/data"), split_part="train", names=names, stored_counts=tuple(counts))


@given(COUNTS, st.data())
def test_shards_are_those_of_the_whole_without_what_is_outside(counts: list[int], data: st.DataObject) -> None:
    whole = shard_set(counts)
    start = data.draw(st.integers(0, whole.num_samples))
    end = data.draw(st.integers(start, whole.num_samples))
    subset = Subset(whole, start, end)
    assert subset.num_samples == count_samples(subset) == end - start
    shard_of = [name for name, count in subset.shards for _ in range(count)]
    assert shard_of == [place_of(whole, index).partition("/")[0] for index in range(start, end)]
    assert shard_of == [place_of(subset, index).partition("/")[0] for index in range(end - start)]
    assert all(count > 0 for _, count in subset.shards)


def test_it_reads_the_samples_of_the_range_under_their_own_names(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path, "1,0,0")
    whole = open_shards(tmp_path, "train")
    subset = Subset(whole, 3, 11)
    assert subset.shards == [(f"data-{n:06d}.tar", count) for n, count in enumerate((2, 5, 1))]
    samples = [subset.reader().read(index) for index in range(8)]
    assert [(int(sample.key), sample.index) for sample in samples] == [(index, index) for index in range(3, 11)]
    texts = {json.dumps(records.identity()) for records in (whole, Subset(whole, 0, 3), Subset(whole, 1, 3))}
    assert len(texts) == 3
    for index in (-1, 8):
        with pytest.raises(IndexError, match=f"sample {index} of 8"):
            subset.reader().read(index)
    with pytest.raises(ConfigError, match=rf"{tmp_path} \[train\]: subset from sample 2 to 26, but there are 20"):
        Subset(whole, 2, 26)
    for value in ([0, 21], [21, "end"]):
        with pytest.raises(ConfigError, match="reaches beyond the data, which have 20 samples"):
            SubsetRange.parse(value).resolve(len(whole))


@given(BOUNDS, st.integers(0, 1000))
def test_neighbouring_percentages_share_nothing_and_leave_nothing_out(bounds: tuple[int, int], num: int) -> None:
    cuts = ["0%", *(f"{bound}%" for bound in bounds if 0 < bound < 100), "100%"]
    ranges = [SubsetRange.parse(pair).resolve(num) for pair in itertools.pairwise(cuts)]
    covered = [index for start, end in ranges for index in range(start, end)]
    assert covered == list(range(num))


@pytest.mark.parametrize(
    ("value", "num_samples", "expected"),
    [
        (["10%", "50%"], 10, (1, 5)),
        (["0%", "100%"], 7, (0, 7)),
        (["12.5%", "25%"], 16, (2, 4)),
        (["0%", "29%"], 100, (0, 28)),  # 0.29 * 100 is a little less than 29 in doubles, and Energon rounds down
        ([3, 8], 10, (3, 8)),
        ([3, "end"], 10, (3, 10)),
        (["50%", "60%"], 1, (0, 0)),
        ({"range": [0, 1]}, 10, (0, 1)),
        ([5, 5], 10, (5, 5)),
    ],
)
def test_ranges(value: object, num_samples: int, expected: tuple[int, int]) -> None:
    assert SubsetRange.parse(value).resolve(num_samples) == expected


def test_a_range_of_a_range() -> None:
    outer, middle, inner = (SubsetRange.parse(text) for text in (["0%", "50%"], ["50%", "100%"], ["25%", "75%"]))
    assert inner.within(outer).resolve(100) == (25, 50)
    assert inner.within(middle.within(outer)).resolve(200) == (100, 125)
    assert inner.within(None) == inner
    absolute = SubsetRange.parse([100, 200])
    assert absolute.within(outer).resolve(1000) == (100, 150)
    assert str(absolute.within(outer)) == "[0%, 50%] of [100, 200]"
    with pytest.raises(ConfigError, match=r"\[100, 200\]: sample numbers are for a single data set only"):
        inner.within(absolute)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{range: [10%, 5]}", r"got \[10%, 5\], .*both percentages or both sample numbers"),
        ("{range: [10%, end]}", r"`end` only after a number"),
        ("{range: [end, end]}", r"`end` only after a number"),
        ("{range: [50%, 40%]}", r"50% comes after 40%"),
        ("{range: [9, 3]}", r"9 comes after 3"),
        ("{range: [-1, 3]}", r"got -1, but samples are numbered from 0"),
        ("{range: [0%, 101%]}", r"'101%', expected a percentage from 0% to 100%"),
        ("{range: [0%, x%]}", r"'x%', expected a percentage"),
        ("{range: [0.1, 0.5]}", r"got 0\.1, expected two bounds such as \[10%, 50%\]"),
        ("{range: [true, 3]}", r"got True, expected two bounds"),
        ("{range: [1, 2, 3]}", r"got \[1, 2, 3\], expected two bounds"),
        ("{range: 50%}", r"got '50%', expected two bounds"),
        ("{from: 1, to: 2}", r"expected `range` alone, .* got from, to"),
    ],
)
def test_what_is_no_range_is_named_with_its_line(text: str, message: str) -> None:
    node = parse_yaml(f"\nsubset: {text}", "blend.yaml").mapping("top")["subset"]
    with pytest.raises(ConfigError, match=rf"blend\.yaml:2: subset: .*{message}"):
        SubsetRange.parse(node)
    with pytest.raises(ConfigError, match=rf"^subset: .*{message}"):
        SubsetRange.parse(node.plain())
