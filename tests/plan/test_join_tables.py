"""Joins with tables and JSONL files as members."""

import json
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from bridge_data import prepare_metadataset
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.plan.source import Source
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.prepare.tombstone_writing import forget_samples
from bridge_data.shards.joined_records import JoinedRawSample, JoinRecords
from tests.object_store import Bucket
from tests.plan.joins import OWN, joined, own, prepared_plan, texts
from tests.tables import save_to_disk, table_of, write_parquet

FIELDS = {"sample_type": "TextSample", "field_map": {"text": "caption"}}


def captions(keys: Sequence[Any], kind: Any = None) -> pa.Table:
    """Rows with these keys, whose caption is `B` and the key; with other columns."""
    return table_of(
        {
            "caption": [f"B{key}" for key in keys],
            "__key__": pa.array(list(keys), kind),
            "turns": [[{"role": "user", "n": number}] for number in range(len(keys))],
        }
    )


def write(path: Path, keys: Sequence[Any], *, per_group: int = 3) -> Path:
    """A table of captions: a Parquet file, a saved data set, or a folder of two Parquet files."""
    if path.suffix == ".parquet":
        return write_parquet(path, captions(keys), per_group=per_group)
    if path.name == "saved":
        return save_to_disk(path, captions(keys), per_batch=per_group, num_files=2)
    for number, half in enumerate((keys[: len(keys) // 2], keys[len(keys) // 2 :])):
        write_parquet(path / f"part-{number}.parquet", captions(half), per_group=per_group)
    return path


def both(file: Path, left: dict[str, Any], right: dict[str, Any], **more: Any) -> Path:
    """A join by name of two members."""
    return joined(file, {"left": left, "right": right}, own("Both"), **more)


def keys_of(source: Source) -> list[tuple[str, str | None]]:
    """The keys of the two members in each row."""
    reader = pickle.loads(pickle.dumps(source.records.reader()))
    rows = [reader.read(number) for number in range(source.num_samples)]
    assert all(isinstance(row, JoinedRawSample) for row in rows)
    return [(row.members[0].full_key, row.members[1] and row.members[1].full_key) for row in rows]


@pytest.mark.parametrize("name", ["b.parquet", "saved", "folder", "fold*/*.parquet"])
def test_tables_are_joined_to_tars_by_their_column_of_keys(tmp_path: Path, name: str) -> None:
    texts(tmp_path / "a", "abcdefg")
    write(tmp_path / ("folder" if "*" in name else name), "gxfedba")
    path = both(tmp_path / "j.yaml", {"path": "a"}, {"path": name, "nonmatch": "none", **FIELDS})
    (source,) = prepared_plan(path).sources
    assert (source.name, source.records.counts, source.num_samples) == ("a/train", [2, 2, 2, 1], 7)
    found = [(left[-1], right and right[-1]) for left, right in keys_of(source)]
    assert found == [(key, None if key == "c" else key) for key in "abcdefg"]
    assert isinstance(source.records, JoinRecords)
    assert source.fingerprint == load_plan(path, trusted_modules=[OWN]).sources[0].fingerprint


@pytest.mark.parametrize(
    ("left", "right", "nonmatch", "found"),
    [
        ("abcd.parquet", "dcb", "skip", "bcd"),
        ("abcd.parquet", "dcba", "error", "abcd"),
        ("abcd.parquet", "saved", "error", "abcd"),
        ("saved", "saved", "error", "dcba"),
        ("321", "numbers.parquet", "error", "321"),
        ("numbers.parquet", "321", "error", "123"),
        ("odd.parquet", "odd.parquet", "error", ["a/1", "ü/漢", "b c"]),
        ("ab", "codes.parquet", "error", "ab"),
        ("abcd.parquet", "empty.parquet", "none", "abcd"),
        ("empty.parquet", "abcd.parquet", "skip", ""),
    ],
)
def test_a_table_may_be_any_member_and_its_keys_texts_of_any_kind_or_numbers(
    tmp_path: Path, left: str, right: str, nonmatch: str, found: Sequence[str]
) -> None:
    for name in ("dcb", "dcba", "321", "ab"):
        texts(tmp_path / name, name)
    write(tmp_path / "saved", "dcba", per_group=1)
    codes = captions("ba")
    keys = {"abcd": captions("abcd"), "numbers": captions([1, 2, 3]), "odd": captions(["a/1", "ü/漢", "b c"])}
    keys |= {"empty": captions([], pa.string())}
    keys |= {"codes": codes.set_column(1, "__key__", codes["__key__"].dictionary_encode())}
    for name, table in keys.items():
        write_parquet(tmp_path / f"{name}.parquet", table, per_group=2)
    path = both(tmp_path / "j.yaml", {"path": left}, {"path": right, "nonmatch": nonmatch})
    (index,) = prepare_metadataset(path, num_workers=1)
    assert index.num_rows == len(found)
    if found:
        (source,) = load_plan(path, trusted_modules=[OWN]).sources
        pairs = [(one.partition("/")[2], other and other.partition("/")[2]) for one, other in keys_of(source)]
        assert pairs == [(key, None if "empty" in right else key) for key in found]


def test_lines_have_their_numbers_as_keys(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"n": number}) + "\n" for number in range(8))
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(lines)
        prepare_jsonl(tmp_path / name)
    (tmp_path / "b.jsonl.split.yaml").write_text(yaml.safe_dump({"split_parts": {"train": [2, 5]}}))
    path = both(tmp_path / "j.yaml", {"path": "a.jsonl"}, {"path": "b.jsonl", "nonmatch": "skip"})
    (source,) = prepared_plan(path).sources
    assert keys_of(source) == [("2", "2"), ("3", "3"), ("4", "4")]
    write(tmp_path / "t.parquet", [7, 0])
    both(path, {"path": "t.parquet"}, {"path": "a.jsonl"})
    assert keys_of(prepared_plan(path).sources[0]) == [("t.parquet/7", "7"), ("t.parquet/0", "0")]
    (tmp_path / "a.jsonl").write_text(lines * 2)
    prepare_jsonl(tmp_path / "a.jsonl")
    with pytest.raises(ConfigError, match=r"a.jsonl \[train\] has been written again, or its files or split have cha"):
        load_plan(path, trusted_modules=[OWN])


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            "abca",
            r"b \[train\]: duplicate key: part-0.parquet/a \(row 0\) and part-1.parquet/a \(row 1\): .* one row fo",
        ),
        (["a", "b", "c", None], r"b/part-1.parquet: row 1 has no __key__"),
        (["a", None], r"b/part-1.parquet: its column '__key__' has the type null"),
        (
            "abxy",
            r"b \[train\]: has no sample for 2 of the 4 samples of .*a \[train\]: data-0001.tar/c, data-0001.tar/d",
        ),
        ([b"a", b"b"], r"b/part-0.parquet: its column '__key__' has the type binary; for a join, write it as texts"),
        ([0.5, 1.5], r"b/part-0.parquet: its column '__key__' has the type double"),
    ],
)
def test_keys_that_cannot_be_matched_are_errors(tmp_path: Path, keys: Sequence[Any], says: str) -> None:
    texts(tmp_path / "a", "abcd")
    write(tmp_path / "b", keys)
    with pytest.raises((ConfigError, DatasetError), match=says):
        prepare_metadataset(both(tmp_path / "j.yaml", {"path": "a"}, {"path": "b"}), num_workers=1)


def test_duplicates_of_the_first_member_and_tables_without_keys_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", "xxx")
    path = both(tmp_path / "j.yaml", {"path": "a.parquet"}, {"path": "a.parquet"})
    with pytest.raises(DatasetError, match=r"a.parquet/x \(row 0\) and a.parquet/x \(row 1\), and 1 more"):
        prepare_metadataset(path, num_workers=1)
    write_parquet(tmp_path / "b.parquet", table_of({"caption": ["x", "y"]}))
    both(path, {"path": "a.parquet"}, {"path": "b.parquet", **FIELDS})
    told = r"j.yaml:\d+: .*b.parquet: has no column '__key__', .*: for a join, write"
    for attempt in (prepared_plan, load_plan):
        with pytest.raises(ConfigError, match=told):
            attempt(path)


def test_an_index_is_refused_if_a_table_was_written_again(tmp_path: Path) -> None:
    """An Arrow file with the same lengths has the same headers: then rows that moved are errors when they are read."""
    texts(tmp_path / "a", "ab")
    write(tmp_path / "saved", "ab")
    path = both(tmp_path / "j.yaml", {"path": "a"}, {"path": "saved", **FIELDS})
    prepared_plan(path)
    write(tmp_path / "saved", "ba")
    (source,) = load_plan(path, trusted_modules=[OWN]).sources
    told = r"row 0 joins .*/a with .*/b of .*, which has another key.*bridge-data prep"
    with pytest.raises(DatasetError, match=told):
        keys_of(source)
    write(tmp_path / "saved", "xyab")
    told = r"saved \[train\] has been written again.*; run `bridge-data prepare .*j"
    with pytest.raises(ConfigError, match=told):
        load_plan(path, trusted_modules=[OWN])
    assert [right and right[-1] for _, right in keys_of(prepared_plan(path).sources[0])] == ["a", "b"]


def test_a_sample_is_forgotten_with_the_row_of_any_member(tmp_path: Path) -> None:
    """States know lists by their positions: a list that one member gets does not move those of the others."""
    for number, keys in enumerate(("ab", "cd")):
        write(tmp_path / "b" / f"{number}" / f"{number}.parquet", keys)
    texts(tmp_path / "a", "dcba")
    path = both(tmp_path / "j.yaml", {"path": "b"}, {"path": "a"})
    assert prepared_plan(path).sources[0].tombstones == ()
    forget_samples(tmp_path / "a", ["b"], "asked for")
    (source,) = load_plan(path, trusted_modules=[OWN]).sources
    assert [own is not None for own in source.tombstones] == [False, False, True]
    forget_samples(tmp_path / "b" / "1" / "1.parquet", ["d"], "asked for")
    (source,) = load_plan(path, trusted_modules=[OWN]).sources
    assert [own is not None for own in source.tombstones] == [False, True, True]
    for versions, gone in (((0, 1, 1), {1, 3}), ((0, 0, 1), {1}), ((0, 1, 0), {3}), ((0, 0, 0), set())):
        ids = [
            own.newest if own and number else (0, "") for own, number in zip(source.tombstones, versions, strict=True)
        ]
        forgotten = source.records.forgotten(ids)
        assert {number for number in range(4) if number in forgotten} == gone


def test_tables_in_a_store_are_joined_like_those_on_a_disk(bucket: Bucket, tmp_path: Path) -> None:
    texts(bucket.folder / "a", "abc")
    write(bucket.folder / "b", "cba")
    local = both(tmp_path / "local.yaml", {"path": str(bucket.folder / "a")}, {"path": str(bucket.folder / "b")})
    remote = both(tmp_path / "remote.yaml", {"path": f"{bucket.url}/a"}, {"path": f"{bucket.url}/b"})
    assert keys_of(prepared_plan(remote).sources[0]) == keys_of(prepared_plan(local).sources[0])
    assert len(os.listdir(tmp_path / "remote.yaml.joins")) == 1
