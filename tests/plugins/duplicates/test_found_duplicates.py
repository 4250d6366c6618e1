import csv
import dataclasses
import functools
import itertools
import json
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.data import open_shards
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plugins.duplicates import DuplicateConfig, find_duplicates, found_duplicates, hash_groups, sample_rows
from bridge_data.plugins.duplicates.found_duplicates import (
    COLUMNS,
    CommonGroups,
    DuplicateCounts,
    FoundDuplicates,
    check_table,
)
from bridge_data.plugins.duplicates.hash_groups import MAX_DISTANCE
from bridge_data.plugins.duplicates.sample_rows import HashFaults, Part, SampleRows
from bridge_data.plugins.where.choosing import open_engine
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare
from tests.data.tars import write_tar
from tests.plugins.duplicates.pictures import jpeg, with_copies, write_shards
from tests.prepared import write_texts

ONE = DuplicateConfig(num_workers=1)
PICTURES = DuplicateConfig(num_workers=1, distance=4)


def find(*folders: Path, config: DuplicateConfig = ONE) -> AbstractContextManager[FoundDuplicates]:
    return find_duplicates(folders, config)


def groups_of(folder: Path, config: DuplicateConfig = ONE) -> list[list[str]]:
    """The keys of the samples in each group."""
    with find(folder, config=config) as found, tempfile.TemporaryDirectory() as scratch:
        found.write_table(Path(scratch) / "t.parquet")
        rows = pyarrow.parquet.read_table(Path(scratch) / "t.parquet").to_pylist()
    groups: dict[int, list[str]] = {}
    for row in rows:
        if row["group"] is not None:
            groups.setdefault(row["group"], []).append(row["key"])
            assert row["copy"] == len(groups[row["group"]]) - 1
    return [groups[number] for number in range(len(groups))]


def test_equal_samples_are_exact_duplicates_and_pictures_encoded_again_are_near_ones(tmp_path: Path) -> None:
    folder = with_copies(tmp_path / "set")
    assert groups_of(folder) == [["a", "b"]]
    assert groups_of(folder, dataclasses.replace(ONE, parts=("jpg",))) == [["a", "b"], ["u", "v"]]
    assert groups_of(folder, dataclasses.replace(PICTURES, distance=0))[0][:2] == ["a", "b"]
    assert groups_of(folder, PICTURES) == [["a", "b", "again", "small"], ["u", "v"]]


HASHES = st.integers(-(2**63), 2**63 - 1)


def num_bits(one: int, other: int) -> int:
    return ((one ^ other) % (1 << 64)).bit_count()


@st.composite
def families(draw: st.DrawFn) -> list[int]:
    """Hashes of which many are close: some, and others made of them by flipping a few bits."""
    hashes = draw(st.lists(HASHES, min_size=1, max_size=4))
    for _ in range(draw(st.integers(0, 12))):
        flipped = draw(st.lists(st.integers(0, 63), max_size=6, unique=True))
        (chosen,) = np.array([draw(st.sampled_from(hashes))]).view(np.uint64).tolist()
        hashes += np.array([chosen ^ sum(1 << bit for bit in flipped)], np.uint64).view(np.int64).tolist()
    return hashes


NUMBERS = st.integers(0, 9)


@given(st.lists(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=4), max_size=8), st.sampled_from([1, 5, 1000]))
def test_numbers_are_connected_however_few_pairs_are_kept(batches: list[list[tuple[int, int]]], max_pairs: int) -> None:
    pairs = list(itertools.chain.from_iterable(batches))
    expected = list(range(10))
    for pair in pairs:
        expected = joined(expected, *pair)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hash_groups, "MAX_PAIRS", max_pairs)
        numbers, firsts = hash_groups.connected(np.array(batch, np.int64).reshape(-1, 2).T for batch in batches)
    assert numbers.tolist() == sorted(set(itertools.chain.from_iterable(pairs)))
    assert firsts.tolist() == [expected[number] for number in numbers]


@st.composite
def samples_of_parts(draw: st.DrawFn) -> list[tuple[int, int, int | None]]:
    """(split part, content, picture hash or none) of samples."""
    picture = st.none() | st.sampled_from(draw(families()))
    sample = st.tuples(st.integers(0, 2), st.integers(0, 5), picture)
    return sorted(draw(st.lists(sample, min_size=1, max_size=25)), key=lambda sample: sample[0])


@given(samples_of_parts(), st.none() | st.integers(0, MAX_DISTANCE))
def test_groups_are_those_of_comparing_each_sample_with_each(
    samples: list[tuple[int, int, int | None]], distance: int | None
) -> None:
    """Samples of some split parts have a digest, and perhaps a picture hash: of equal ones, too, any."""
    rows = [
        {"number": 2 * at, "source": part, "shard": b"s", "key": b"%d" % at, "bytes": at, "digest": b"%012d" % content}
        | {"picture": None if distance is None else picture}
        for at, (part, content, picture) in enumerate(samples)
    ]
    exact = near = list(range(len(rows)))
    for (a, one), (b, other) in itertools.combinations(enumerate(rows), 2):
        pictures = (one["picture"], other["picture"])
        is_equal = one["digest"] == other["digest"]
        exact = joined(exact, a, b) if is_equal else exact
        if is_equal or (distance is not None and None not in pictures and num_bits(*pictures) <= distance):
            near = joined(near, a, b)
    table = pa.RecordBatch.from_pylist(rows, sample_rows._schema())
    parts = [Part("set", name) for name in "abc"]
    read = SampleRows(pa.Table.from_batches([table]), parts, Counter(), HashFaults())
    config = dataclasses.replace(ONE, distance=distance)
    with tempfile.TemporaryDirectory() as folder, open_engine(Path(folder)) as engine:
        found = FoundDuplicates(engine, read, [Path("set")], config)
        found.group()
        report = found.report(3)
        found.write_table(Path(folder) / "t.jsonl")
        written = [json.loads(line) for line in (Path(folder) / "t.jsonl").read_text().splitlines()]
    assert report.exact == counts_of(exact)
    assert report.near == (None if distance is None else counts_of(near))
    sizes = Counter(near)
    heads = [first for first in dict.fromkeys(near) if sizes[first] > 1]
    assert [row["group"] for row in written] == [heads.index(at) if at in heads else None for at in near]
    assert [row["copy"] for row in written] == [near[:at].count(near[at]) for at in range(len(near))]
    largest = sorted(heads, key=lambda first: -sizes[first])[:3]
    assert [size for size, _ in report.largest] == [sizes[first] for first in largest]
    assert [names[0].rpartition(":")[2] for _, names in report.largest] == list(map(str, largest))
    members = {part: Counter(near[at] for at, sample in enumerate(samples) if sample[0] == part) for part in range(3)}
    common = [(a, b, members[a].keys() & members[b].keys()) for a, b in itertools.combinations(range(3), 2)]
    assert report.common == [
        CommonGroups("abc"[a], "abc"[b], len(both), sum(members[b][first] for first in both))
        for a, b, both in common
        if both
    ]


def joined(firsts: list[int], one: int, other: int) -> list[int]:
    low, high = sorted((firsts[one], firsts[other]))
    return [low if first == high else first for first in firsts]


def counts_of(firsts: Sequence[int]) -> DuplicateCounts:
    copies = [at for at, first in enumerate(firsts) if at != first]
    return DuplicateCounts(len({firsts[at] for at in copies}), len(copies), sum(copies))


def test_of_data_sets_the_first_keeps_its_samples(tmp_path: Path) -> None:
    one, two = write_texts(tmp_path / "one", 10), write_texts(tmp_path / "two", 30)
    with find(two, one) as found:
        assert found.report(0).common == [CommonGroups(f"{two} train", f"{one} train", 10, 10)]
        written = found.write_keys(tmp_path / "drop.txt")
    assert written == {tmp_path / "drop-1.txt": (0, 0), tmp_path / "drop-2.txt": (10, 0)}
    assert (tmp_path / "drop-2.txt").read_text().splitlines()[:2] == ["data-0000.tar:000000", "data-0000.tar:000001"]


def test_the_keys_of_copies_are_what_the_split_can_exclude_but_for_line_breaks(tmp_path: Path) -> None:
    folder = with_copies(tmp_path / "set")
    file = tmp_path / "drop.txt"
    with find(folder, config=PICTURES) as found:
        assert found.write_keys(file) == {file: (4, 0)}
    lines = file.read_text().splitlines()
    assert sorted(lines) == ["data-0.tar:again", "data-0.tar:b", "data-0.tar:small", "data-2.tar:v"]
    split = folder / ".nv-meta/split.yaml"
    entries = ", ".join(line.replace(":", "/", 1) for line in lines)
    split.write_text(split.read_text().partition("exclude")[0] + f"exclude: [{entries}]\n")
    assert [len(open_shards(folder, part)) for part in ("train", "val", "test")] == [2, 2, 1]
    assert groups_of(folder, PICTURES) == []
    with find(write_shards(tmp_path / "odd", {key: {"txt": b"x"} for key in ("a", "b\nc", "d")})) as found:
        assert found.write_keys(file) == {file: (1, 1)}
    assert file.read_text() == "data-0.tar:d\n"


ROWS = [
    ("val", "data-1.tar", "a", 0, 0),
    ("val", "data-1.tar", "cat", None, 0),
    ("test", "data-2.tar", "u", 1, 0),
    ("test", "data-2.tar", "v", 1, 1),
    ("train", "data-0.tar", "b", 0, 1),
    ("train", "data-0.tar", "again", 0, 2),
    ("train", "data-0.tar", "small", 0, 3),
    ("train", "data-0.tar", "mirrored", None, 0),
    ("train", "data-0.tar", "other", None, 0),
]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_a_table_has_a_row_for_each_sample(tmp_path: Path, suffix: str) -> None:
    folder, file = with_copies(tmp_path / "set"), tmp_path / f"table.{suffix}"
    check_table(file)
    with find(folder, config=PICTURES) as found:
        found.write_table(file)
    if suffix == "parquet":
        rows = pyarrow.parquet.read_table(file).to_pylist()
    elif suffix == "jsonl":
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    else:
        with file.open(newline="") as lines:
            rows = [{name: value or None for name, value in row.items()} for row in csv.DictReader(lines)]
    assert all(list(row) == list(COLUMNS) for row in rows)
    told = [tuple(row[name] for name in ("split_part", "shard", "key", "group", "copy")) for row in rows]
    expected = [(*row[:3], None if row[3] is None else str(row[3]), str(row[4])) for row in ROWS]
    assert told == (expected if suffix == "csv" else ROWS)
    assert rows[0]["digest"] == rows[4]["digest"] != rows[5]["digest"]
    assert int(rows[0]["bytes"]) == len(jpeg("coffee")) + len("a cup") and len(rows[0]["picture_hash"]) == 16
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_names_that_are_not_utf8_are_written(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "set"
    write_tar(folder / "a.tar", {"caf\udce9.txt": b"a", "b.txt": b"a"}, tarfile.GNU_FORMAT)
    prepare(folder, functools.partial(split_by_ratio, ratio=parse_ratio("1,0,0")))
    with find(folder) as found:
        found.write_table(tmp_path / f"table.{suffix}")
        found.write_keys(tmp_path / "drop.txt")
    data = (tmp_path / f"table.{suffix}").read_bytes()
    assert (rb"caf\udce9" if suffix == "parquet" else b"caf\xe9") in data
    assert (tmp_path / "drop.txt").read_bytes() == b"a.tar:b\n"


@pytest.mark.parametrize("package", ["duckdb", "pyarrow"])
def test_a_missing_package_is_named_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(found_duplicates, "read_rows", None)
    with pytest.raises(ConfigError, match=f"pip install {package}"), find(tmp_path):
        pass


def test_a_full_disk_leaves_the_table_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, file = write_texts(tmp_path / "set", 6), tmp_path / "table.jsonl"

    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    with find(folder) as found:
        found.write_table(file)
        before = file.read_bytes()
        monkeypatch.setattr(json, "dumps", full)
        with pytest.raises(DatasetError, match=r"cannot be written to: .*No space left"):
            found.write_table(file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["table.jsonl"]


def test_too_little_memory_or_disk_is_an_error_with_a_way_out_and_no_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(found_duplicates, "_EQUAL", "SELECT error('the disk is full')")
    with pytest.raises(DatasetError, match=r"the disk is full; set TMPDIR"), find(write_texts(tmp_path / "set", 6)):
        pass
    assert not list((tmp_path / "temporary").iterdir())
