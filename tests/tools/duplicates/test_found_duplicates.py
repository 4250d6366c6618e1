import csv
import dataclasses
import functools
import json
import sys
import tarfile
from pathlib import Path

import pyarrow.parquet
import pytest

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare
from bridge_data.shards import open_shards
from bridge_data.tools.duplicates import FoundDuplicates, HashConfig, find_duplicates, hash_samples
from bridge_data.tools.duplicates.found_duplicates import COLUMNS, CommonGroups, DuplicateCounts, check_table
from tests.prepared import write_texts
from tests.shards.tars import write_tar
from tests.tools.duplicates.pictures import jpeg, with_copies, write_shards

PICTURES = HashConfig(num_workers=1, pictures=True)
ONE_CUP = len(jpeg("coffee")) + len("a cup")


def find(*folders: Path, distance: int | None = None, config: HashConfig = PICTURES) -> FoundDuplicates:
    return find_duplicates(hash_samples(folders, config), distance)


def groups_of(found: FoundDuplicates) -> list[list[str]]:
    """The names of the samples in each group."""
    groups: dict[int, list[str]] = {}
    for member, first in zip(found.groups.members.tolist(), found.groups.firsts.tolist(), strict=True):
        groups.setdefault(first, []).append(found.name(member).rpartition(":")[2])
    return list(groups.values())


def test_equal_samples_are_exact_duplicates_and_pictures_encoded_again_are_near_ones(tmp_path: Path) -> None:
    folder = with_copies(tmp_path / "set")
    assert groups_of(find(folder)) == [["a", "b"]]
    assert groups_of(find(folder, config=dataclasses.replace(PICTURES, parts=("jpg",)))) == [["a", "b"], ["u", "v"]]
    assert groups_of(find(folder, distance=0))[0][:2] == ["a", "b"]
    assert groups_of(find(folder, distance=4)) == [["a", "b", "again", "small"], ["u", "v"]]


def test_the_report_counts_copies_and_what_split_parts_have_in_common(tmp_path: Path) -> None:
    report = find(with_copies(tmp_path / "set"), distance=4).report(num_largest=1)
    assert (report.num_samples, report.exact) == (9, DuplicateCounts(1, 1, ONE_CUP))
    assert report.near is not None
    assert (report.near.num_groups, report.near.num_copies) == (2, 4)
    assert report.common == [CommonGroups("val", "train", 1, 3)]
    names = ["val data-1.tar:a", *(f"train data-0.tar:{key}" for key in ("b", "again", "small"))]
    assert report.largest == [(4, names)]
    assert json.loads(json.dumps(report.to_dict()))["common"][0]["num_copies"] == 3


def test_of_data_sets_the_first_keeps_its_samples(tmp_path: Path) -> None:
    one, two = write_texts(tmp_path / "one", 10), write_texts(tmp_path / "two", 30)
    found = find(two, one)
    assert found.report(0).common == [CommonGroups(f"{two} train", f"{one} train", 10, 10)]
    written = found.write_keys(tmp_path / "drop.txt")
    assert written == {tmp_path / "drop-1.txt": (0, 0), tmp_path / "drop-2.txt": (10, 0)}
    assert (tmp_path / "drop-2.txt").read_text().splitlines()[:2] == ["data-0000.tar:000000", "data-0000.tar:000001"]


def test_the_keys_of_copies_are_what_the_split_can_exclude(tmp_path: Path) -> None:
    folder = with_copies(tmp_path / "set")
    file = tmp_path / "drop.txt"
    assert find(folder, distance=4).write_keys(file) == {file: (4, 0)}
    lines = file.read_text().splitlines()
    assert sorted(lines) == ["data-0.tar:again", "data-0.tar:b", "data-0.tar:small", "data-2.tar:v"]
    split = folder / ".nv-meta/split.yaml"
    entries = ", ".join(line.replace(":", "/", 1) for line in lines)
    split.write_text(split.read_text().partition("exclude")[0] + f"exclude: [{entries}]\n")
    assert [len(open_shards(folder, part)) for part in ("train", "val", "test")] == [2, 2, 1]
    assert find(folder, distance=4).groups.num_groups == 0


def test_a_key_with_a_line_break_is_left_out_of_the_list_and_counted(tmp_path: Path) -> None:
    texts = {"a": {"txt": b"x"}, "b\nc": {"txt": b"x"}, "d": {"txt": b"x"}}
    file = tmp_path / "drop.txt"
    assert find(write_shards(tmp_path / "set", texts)).write_keys(file) == {file: (1, 1)}
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
    find(folder, distance=4).write_table(file)
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
    assert int(rows[0]["bytes"]) == ONE_CUP and len(rows[0]["picture_hash"]) == 16
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_names_that_are_not_utf8_are_written(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "set"
    write_tar(folder / "a.tar", {"caf\udce9.txt": b"a", "b.txt": b"a"}, tarfile.GNU_FORMAT)
    prepare(folder, functools.partial(split_by_ratio, ratio=parse_ratio("1,0,0")))
    found = find(folder)
    found.write_table(tmp_path / f"table.{suffix}")
    data = (tmp_path / f"table.{suffix}").read_bytes()
    assert (rb"caf\udce9" if suffix == "parquet" else b"caf\xe9") in data
    found.write_keys(tmp_path / "drop.txt")
    assert (tmp_path / "drop.txt").read_bytes() == b"a.tar:b\n"


def test_samples_that_were_not_read_have_no_row(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "set", 6, per_shard=3)
    (folder / "data-0001.tar").write_bytes(b"")
    file = tmp_path / "table.jsonl"
    find(folder).write_table(file)
    assert [json.loads(line)["key"] for line in file.read_text().splitlines()] == ["000000", "000001", "000002"]


def test_what_cannot_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"t\.txt: expected a file named \.parquet, \.jsonl or \.csv"):
        check_table(tmp_path / "t.txt")
    with pytest.raises(ConfigError, match="there is no folder"):
        check_table(tmp_path / "no" / "t.csv")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r'pip install "bridge-data\[parquet\]", or write \.jsonl'):
        check_table(tmp_path / "t.parquet")


def test_a_full_disk_leaves_the_table_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, file = write_texts(tmp_path / "set", 6), tmp_path / "table.jsonl"
    found = find(folder)
    found.write_table(file)
    before = file.read_bytes()

    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dumps", full)
    with pytest.raises(DatasetError, match=r"cannot be written to: .*No space left"):
        found.write_table(file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["table.jsonl"]


def test_wrong_distances_are_refused(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "set", 2)
    with pytest.raises(ConfigError, match="distance=11: expected 0 to 10"):
        find(folder, distance=11)
    with pytest.raises(ConfigError, match="pictures were not hashed"):
        find(folder, distance=4, config=HashConfig(num_workers=1))
