"""Joins with tables and JSONL files as members."""

import json
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
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


def test_a_table_may_be_the_first_and_all_members(tmp_path: Path) -> None:
    texts(tmp_path / "a", "dcb")
    write(tmp_path / "b.parquet", "abcd", per_group=2)
    path = both(tmp_path / "j.yaml", {"path": "b.parquet", **FIELDS}, {"path": "a", "nonmatch": "skip"})
    (source,) = prepared_plan(path).sources
    assert (source.name, source.records.counts) == ("b.parquet/train", [1, 2])
    assert [left for left, _ in keys_of(source)] == ["b.parquet/b", "b.parquet/c", "b.parquet/d"]
    write(tmp_path / "saved", "dcba", per_group=1)
    (source,) = prepared_plan(both(path, {"path": "b.parquet", **FIELDS}, {"path": "saved", **FIELDS})).sources
    assert [right and right[-1] for _, right in keys_of(source)] == list("abcd")
    (source,) = prepared_plan(both(path, {"path": "saved"}, {"path": "saved", **FIELDS})).sources
    assert [left == right for left, right in keys_of(source)] == [True] * 4


def test_only_the_columns_that_are_needed_are_read(tmp_path: Path) -> None:
    texts(tmp_path / "a", "ab")
    write(tmp_path / "b.parquet", "ab")
    path = both(tmp_path / "j.yaml", {"path": "a"}, {"path": "b.parquet", "part_filter": ["turns"]})
    raw = prepared_plan(path).sources[0].records.reader().read(1)
    assert isinstance(raw, JoinedRawSample)
    assert raw.members[1] is not None
    assert raw.members[1].parts == {"turns": [{"role": "user", "n": 1}]}


def test_keys_may_be_whole_numbers_have_slashes_and_any_letters(tmp_path: Path) -> None:
    keys = ["a/1", "ü/漢", "b c"]
    write(tmp_path / "a.parquet", keys)
    write(tmp_path / "b.parquet", keys[::-1])
    path = both(tmp_path / "j.yaml", {"path": "a.parquet"}, {"path": "b.parquet"})
    assert [left for left, _ in keys_of(prepared_plan(path).sources[0])] == [f"a.parquet/{key}" for key in keys]
    texts(tmp_path / "t", "321")
    write(tmp_path / "n.parquet", [1, 2, 3])
    path = both(tmp_path / "j.yaml", {"path": "t"}, {"path": "n.parquet"})
    assert [right for _, right in keys_of(prepared_plan(path).sources[0])] == [f"n.parquet/{n}" for n in (3, 2, 1)]


def test_an_empty_table_has_no_match(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", "ab")
    write_parquet(tmp_path / "none.parquet", captions([], pa.string()))
    path = both(tmp_path / "j.yaml", {"path": "a.parquet"}, {"path": "none.parquet", "nonmatch": "none"})
    assert keys_of(prepared_plan(path).sources[0]) == [("a.parquet/a", None), ("a.parquet/b", None)]
    both(path, {"path": "none.parquet"}, {"path": "a.parquet"})
    (index,) = prepare_metadataset(path, num_workers=1)
    assert index.num_rows == 0


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


def test_a_table_without_keys_names_file_and_way_out(tmp_path: Path) -> None:
    texts(tmp_path / "a", "ab")
    write_parquet(tmp_path / "b.parquet", table_of({"caption": ["x", "y"]}))
    path = both(tmp_path / "j.yaml", {"path": "a"}, {"path": "b.parquet", **FIELDS})
    for attempt in (prepared_plan, load_plan):
        with pytest.raises(
            ConfigError, match=r"j.yaml:\d+: .*b.parquet: has no column '__key__', .*: for a join, write"
        ):
            attempt(path)


def test_the_first_duplicate_is_named_when_the_first_member_has_it(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", "xxx")
    with pytest.raises(DatasetError, match=r"a.parquet/x \(row 0\) and a.parquet/x \(row 1\), and 1 more"):
        prepare_metadataset(both(tmp_path / "j.yaml", {"path": "a.parquet"}, {"path": "a.parquet"}), num_workers=1)


def test_an_index_is_refused_if_a_table_was_written_again(tmp_path: Path) -> None:
    texts(tmp_path / "a", "ab")
    write(tmp_path / "b.parquet", "ab")
    path = both(tmp_path / "j.yaml", {"path": "a"}, {"path": "b.parquet", **FIELDS})
    prepared_plan(path)
    write(tmp_path / "b.parquet", "xyab")
    with pytest.raises(
        ConfigError, match=r"b.parquet \[train\] has been written again.*; run `bridge-data prepare .*j"
    ):
        load_plan(path, trusted_modules=[OWN])
    assert [right for _, right in keys_of(prepared_plan(path).sources[0])] == ["b.parquet/a", "b.parquet/b"]


def test_rows_that_moved_without_a_trace_in_the_headers_are_errors_when_read(tmp_path: Path) -> None:
    """An Arrow file with the same lengths has the same headers."""
    texts(tmp_path / "a", "ab")
    write(tmp_path / "saved", "ab")
    path = both(tmp_path / "j.yaml", {"path": "a"}, {"path": "saved", **FIELDS})
    prepared_plan(path)
    write(tmp_path / "saved", "ba")
    (source,) = load_plan(path, trusted_modules=[OWN]).sources
    with pytest.raises(
        DatasetError, match=r"row 0 joins .*/a with .*/b of .*, which has another key.*bridge-data prep"
    ):
        keys_of(source)


def test_a_row_group_of_many_rows_is_matched_in_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bridge_data.prepare import metadataset_joins

    keys = [f"{number:06d}" for number in range(50_000)]
    write(tmp_path / "a.parquet", keys, per_group=50_000)
    write(tmp_path / "b.parquet", keys[::-1][:40_000], per_group=50_000)
    monkeypatch.setattr(metadataset_joins, "TASK_SAMPLES", 1 << 14)
    path = both(tmp_path / "j.yaml", {"path": "a.parquet"}, {"path": "b.parquet", "nonmatch": "skip"})
    (index,) = prepare_metadataset(path, num_workers=1)
    assert (index.counts, index.members[1].num_missing) == ([40_000], 10_000)
    assert [index.row(row) for row in (0, 39_999)] == [[10_000, 39_999], [49_999, 0]]


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


def test_columns_of_keys_with_a_dictionary_are_texts(tmp_path: Path) -> None:
    texts(tmp_path / "a", "ab")
    table = captions("ba")
    table = table.set_column(1, "__key__", table["__key__"].dictionary_encode())
    pq.write_table(table, tmp_path / "b.parquet")
    path = both(tmp_path / "j.yaml", {"path": "a"}, {"path": "b.parquet"})
    assert [right for _, right in keys_of(prepared_plan(path).sources[0])] == ["b.parquet/a", "b.parquet/b"]
