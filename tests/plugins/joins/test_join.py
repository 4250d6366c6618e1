"""Joins in metadatasets: of tars, tables and JSONL files."""

import json
import os
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from bridge_data import prepare_metadataset
from bridge_data.data.records import counts_of
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.plan.source import Source
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from bridge_data.plugins.joins.joined_records import JoinedRawSample, JoinRecords
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.prepare.tars import refresh_index
from bridge_data.samples import TextSample
from tests.object_store import Bucket
from tests.plan.joins import BY_FIELDS, NOTED, OWN, joined, metadataset, own, prepared_plan, texts
from tests.plan.own_joins import Both, Told, swap
from tests.prepared import CRUDE
from tests.tables import save_to_disk, table_of, write_parquet


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three data sets beside each other: b lacks samples of a, c has all."""
    texts(tmp_path / "a", "abcd")
    texts(tmp_path / "b", "dbx")
    texts(tmp_path / "c", "dcba", definition=NOTED)
    return tmp_path


def test_a_join_is_one_source_in_the_order_of_its_first_member(folder: Path) -> None:
    path = joined(folder / "j.yaml", [{"path": "a"}, {"path": "b", "nonmatch": "none"}])
    with pytest.raises(ConfigError) as caught:
        load_plan(path)
    assert str(caught.value) == f"{path}:5: this join has no index yet; run `bridge-data prepare {path}`"
    plan = prepared_plan(path)
    (source,) = plan.sources
    assert (source.num_samples, counts_of(source.records), source.name) == (4, [2, 2], "a/train")
    assert source.sample_class is TextSample and source.composition is not None and source.composition.names is None
    assert [member.name for member in source.composition.members] == ["a/train", "b/train"]
    assert "a [train]: 100.00% of draws, TextSample, 4 samples in 2 shards, joined with b/train" in str(plan)


@pytest.mark.parametrize(("key", "joiner"), [("__class__", Both.from_joined), ("__function__", swap)])
def test_a_mapping_names_its_members_and_a_function_may_join(folder: Path, key: str, joiner: Any) -> None:
    join = {"left": {"path": "a"}, "right": {"path": "b", "nonmatch": "skip"}}
    name = "Both" if key == "__class__" else "swap"
    (source,) = prepared_plan(joined(folder / "j.yaml", join, own(name, key))).sources
    assert source.composition is not None and source.num_samples == 2
    assert (source.composition.names, source.composition.joiner) == (("left", "right"), joiner)


def test_subflavors_of_the_levels_above_hold_before_those_below(folder: Path) -> None:
    meta = folder / "a" / ".nv-meta" / "dataset.yaml"
    meta.write_text(meta.read_text() + "subflavors: {of: data, data: 1}\n")
    join = [{"path": "a", "subflavors": {"of": "member", "member": 1}}, {"path": "b", "nonmatch": "none"}]
    inner = joined(folder / "j.yaml", join, subflavors={"of": "join", "join": 1})
    outer = metadataset(folder / "outer.yaml", {"path": "j.yaml", "subflavors": {"of": "reference"}})
    (source,) = prepared_plan(outer).sources
    assert source.subflavors == {"of": "reference", "join": 1, "member": 1, "data": 1}
    (source,) = load_plan(inner).sources
    assert source.subflavors["of"] == "join"


def test_a_member_s_split_part_holds_before_that_of_the_join(folder: Path) -> None:
    for name in "ab":
        meta = folder / name / ".nv-meta"
        parts = {"train": [], "odd": ["data-0000.tar"], "rest": ["data-0001.tar"]}
        (meta / "other.yaml").write_text(yaml.safe_dump({"split_parts": parts}))
        (meta / "dataset.yaml").write_text((meta / "dataset.yaml").read_text() + "split_config: other.yaml\n")
    join = [{"path": "a"}, {"path": "b", "split_part": "odd", "nonmatch": "none"}]
    (source,) = prepared_plan(joined(folder / "j.yaml", join, split_part="rest")).sources
    assert source.composition is not None
    assert [member.name for member in source.composition.members] == ["a/rest", "b/odd"]


def test_a_join_has_its_weight_in_a_blend(folder: Path) -> None:
    inner = {"join": [{"path": "a"}, {"path": "b", "nonmatch": "skip"}], "joiner": BY_FIELDS}
    path = metadataset(folder / "j.yaml", {"blend": [{"weight": 3, **inner}, {"weight": 1, "path": "a"}]})
    assert prepared_plan(path).weights == (0.75, 0.25)
    path = metadataset(
        folder / "e.yaml", {"blend_epochized": [{"repetitions": 3, **inner}, {"repetitions": 2, "path": "a"}]}
    )
    plan = prepared_plan(path)
    assert (plan.repetitions, plan.weights) == ((3, 2), (6 / 14, 8 / 14))


def test_the_fingerprint_tells_what_is_joined(folder: Path) -> None:
    def fingerprint(name: str, nonmatch: str) -> str:
        path = joined(folder / "j.yaml", [{"path": "a"}, {"path": name, "nonmatch": nonmatch}])
        return prepared_plan(path).sources[0].fingerprint

    texts(folder / "d", "dcba")
    found = {fingerprint(name, nonmatch) for name in "bd" for nonmatch in ("skip", "none")}
    assert len({*found, load_plan(folder / "a").sources[0].fingerprint}) == 5
    assert fingerprint("b", "skip") in found


OF_BOTH = [{"path": "a"}, {"path": "b", "nonmatch": "none"}]
MISSING = [{"path": "c"}, {"path": "b", "nonmatch": "none"}]


@pytest.mark.parametrize(
    ("join", "joiner", "says"),
    [
        (OF_BOTH, None, "joiner is missing: say into which class"),
        (OF_BOTH, {"__module__": OWN}, "joiner: expected `__module__` and either `__class__` or `__function__`"),
        (OF_BOTH, {**own("Both"), "__function__": "swap"}, "either `__class__` or `__function__`"),
        (OF_BOTH, own("Bth"), "expected a class derived from Sample"),
        (OF_BOTH, own("swap"), "expected a class derived from Sample"),
        (OF_BOTH, own("NOT_A_FUNCTION", "__function__"), "has no function 'NOT_A_FUNCTION'"),
        (
            OF_BOTH,
            {"__module__": "os", "__class__": "system"},
            "'os' would be imported, which runs its code, and is not trusted",
        ),
        (OF_BOTH, {"__module__": "os", "__function__": "system"}, "'os' would be imported"),
        (OF_BOTH, {"__module__": "bridge_data", "__function__": "stateless"}, "of this package, name a sample class"),
        (OF_BOTH, {"__module__": "bridge_data", "__class__": "CrudeSample"}, "CrudeSample has no from_joined"),
        (OF_BOTH, {"__module__": "bridge_data", "__class__": "TextSmple"}, "did you mean 'TextSample'?"),
        ({"x": {"path": "a"}}, BY_FIELDS, "takes no names: write the join as a list, or define from_joined in it"),
        ([{"path": "a"}, {"path": "c"}], BY_FIELDS, "c/train has the field 'note', which TextSample has not"),
        ([{"path": "c"}], own("Told"), "Told requires 'text', which no data set of the join has"),
        (MISSING, own("Told"), "Told requires 'text', which not all samples have (nonmatch: none)"),
        ([{"path": "crude"}], BY_FIELDS, "crude/train is crude, and TextSample has the from_joined that all samples"),
    ],
)
def test_wrong_joiners_are_named(folder: Path, join: Any, joiner: Any, says: str) -> None:
    texts(folder / "crude", "abcd", definition=CRUDE)
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        prepared_plan(joined(folder / "j.yaml", join, joiner))
    assert str(caught.value).startswith(f"{folder / 'j.yaml'}:")


@pytest.mark.parametrize(("first", "last", "nonmatch"), [("a", "c", "none"), ("c", "b", "skip")])
def test_fields_that_are_never_missing_need_no_default(folder: Path, first: str, last: str, nonmatch: str) -> None:
    join = [{"path": first}, {"path": last, "nonmatch": nonmatch}]
    assert prepared_plan(joined(folder / "j.yaml", join, own("Told"))).sources[0].sample_class is Told


NO_MEMBER = "a member of a join is the path of a prepared folder of tars, of tables or of a JSONL file"


@pytest.mark.parametrize(
    ("train", "says"),
    [
        ({"join": []}, "j.yaml:5: join: expected data sets, got none"),
        ({"join": "a"}, "j.yaml:5: join, a list or a mapping of data sets: expected a list, got 'a'"),
        ({"join": [{"split_part": "train"}]}, "j.yaml:6: member of a join: expected `path:`"),
        (
            {"join": [{"path": "a"}, {"path": "b", "nonmatch": "skp"}]},
            "j.yaml:8: nonmatch: unknown mode 'skp'; did you",
        ),
        ({"join": [{"path": "a", "nonmatch": "skip"}, {"path": "b"}]}, "the first data set of a join says which"),
        ({"join": [{"path": "a"}, {"path": "j.yaml"}]}, f"j.yaml:7: {NO_MEMBER}, got 'j.yaml'"),
        ({"join": [{"path": "a"}, {"path": "x.jsonl"}]}, "x.jsonl: no such f"),
        ({"join": [{"path": "a", "sample_type": "TextSample"}]}, "sample_type is for Parquet files and data sets of "),
        ({"join": [{"path": "a"}, {"blend": []}]}, f"j.yaml:7: blend: {NO_MEMBER}"),
        ({"join": [{"path": "a"}, {"path": "b", "weight": 2}]}, "j.yaml:8: weight is not for a member of a join"),
        ({"join": [{"path": "a"}, {"path": "b", "subset": {"range": ["0%", "1%"]}}]}, "subset is not for a member"),
        ({"join": [{"path": "a"}, {"path": "b", "aux": {"x": "c"}}]}, "j.yaml:8: aux is for crude samples"),
        (
            {"join": [{"path": "a"}, {"path": "b", "nonmach": "skip"}]},
            "unknown key 'nonmach'; did you mean 'nonmatch'?",
        ),
        ({"join": [{"path": "a"}, {"path": "nowhere"}]}, "j.yaml:7: "),
        ({"join": [{"path": "a"}, {"path": "b", "split_part": "vall"}]}, "there is no split part 'vall'"),
    ],
)
def test_mistakes_are_named_with_file_and_line(folder: Path, train: dict[str, Any], says: str) -> None:
    metadataset(folder / "j.yaml", {**train, "joiner": BY_FIELDS})
    for attempt in (prepared_plan, load_plan):
        with pytest.raises(ConfigError) as caught:
            attempt(folder / "j.yaml")
        assert says in str(caught.value)


def test_an_index_that_is_out_of_date_is_refused_by_name(folder: Path) -> None:
    """Also where another order of keys in a shard leaves its size and its number of samples."""
    path = joined(folder / "j.yaml", [{"path": "a"}, {"path": "b", "nonmatch": "none"}])
    before = prepared_plan(path).sources[0].records
    joined(path, [{"path": "a"}, {"path": "b", "nonmatch": "skip"}])
    with pytest.raises(ConfigError, match=r"\.join, is out of date: .* nonmatch: none for b, which has nonmatch: skip"):
        load_plan(path)
    prepared_plan(path)
    size = (folder / "b" / "data-0000.tar").stat().st_size
    texts(folder / "b", "bdx")
    refresh_index(folder / "b")
    assert (folder / "b" / "data-0000.tar").stat().st_size == size
    with pytest.raises(ConfigError, match=r"is out of date: b \[train\] has been prepared again, or its split or excl"):
        load_plan(path)
    reader = prepared_plan(path).sources[0].records.reader()
    assert [reader.read(number).members[1].parts["txt"] for number in range(2)] == [b"bb", b"bd"]  # type: ignore
    with pytest.raises(DatasetError, match=r"\.join: was replaced or removed while it was in use"):
        before.reader().read(1)


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
    assert (source.name, counts_of(source.records), source.num_samples) == ("a/train", [2, 2, 2, 1], 7)
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
    assert not prepared_plan(path).sources[0].withheld
    forget_samples(tmp_path / "a", ["b"], "asked for")
    (source,) = load_plan(path, trusted_modules=[OWN]).sources
    assert [own is not None for own in source.withheld.lists] == [False, False, True]
    forget_samples(tmp_path / "b" / "1" / "1.parquet", ["d"], "asked for")
    (source,) = load_plan(path, trusted_modules=[OWN]).sources
    assert [own is not None for own in source.withheld.lists] == [False, True, True]
    for versions, gone in (((0, 1, 1), {1, 3}), ((0, 0, 1), {1}), ((0, 1, 0), {3}), ((0, 0, 0), set())):
        ids = [
            own.newest if own and number else (0, "")
            for own, number in zip(source.withheld.lists, versions, strict=True)
        ]
        forgotten = source.withheld.forgotten(ids)
        assert {number for number in range(4) if number in forgotten} == gone


def test_tables_in_a_store_are_joined_like_those_on_a_disk(bucket: Bucket, tmp_path: Path) -> None:
    texts(bucket.folder / "a", "abc")
    write(bucket.folder / "b", "cba")
    local = both(tmp_path / "local.yaml", {"path": str(bucket.folder / "a")}, {"path": str(bucket.folder / "b")})
    remote = both(tmp_path / "remote.yaml", {"path": f"{bucket.url}/a"}, {"path": f"{bucket.url}/b"})
    assert keys_of(prepared_plan(remote).sources[0]) == keys_of(prepared_plan(local).sources[0])
    assert len(os.listdir(tmp_path / "remote.yaml.joins")) == 1


def test_only_the_columns_that_are_needed_are_read(tmp_path: Path) -> None:
    texts(tmp_path / "a", "ab")
    write(tmp_path / "b.parquet", "ab")
    path = both(tmp_path / "j.yaml", {"path": "a"}, {"path": "b.parquet", "part_filter": ["turns"]})
    raw = prepared_plan(path).sources[0].records.reader().read(1)
    assert raw.members[1].parts == {"turns": [{"role": "user", "n": 1}]}  # type: ignore[attr-defined]
