import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.prepare.tars import refresh_index
from bridge_data.samples import TextSample
from bridge_data.shards import RawSample
from bridge_data.shards.joined_records import JoinedRawSample
from tests.plan.joins import BY_FIELDS, NOTED, OWN, joined, metadataset, own, prepared_plan, texts
from tests.plan.own_joins import Both, Told, swap
from tests.prepared import CRUDE


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
    assert (source.num_samples, source.records.counts, source.name) == (4, [2, 2], "a/train")
    assert source.sample_class is TextSample and source.joined is not None and source.joined.names is None
    assert [member.name for member in source.joined.members] == ["a/train", "b/train"]
    assert "a [train]: 100.00% of draws, TextSample, 4 samples in 2 shards, joined with b/train" in str(plan)


@pytest.mark.parametrize(("key", "joiner"), [("__class__", Both.from_joined), ("__function__", swap)])
def test_a_mapping_names_its_members_and_a_function_may_join(folder: Path, key: str, joiner: Any) -> None:
    join = {"left": {"path": "a"}, "right": {"path": "b", "nonmatch": "skip"}}
    name = "Both" if key == "__class__" else "swap"
    (source,) = prepared_plan(joined(folder / "j.yaml", join, own(name, key))).sources
    assert source.joined is not None and source.num_samples == 2
    assert (source.joined.names, source.joined.joiner) == (("left", "right"), joiner)


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
    assert source.joined is not None
    assert [member.name for member in source.joined.members] == ["a/rest", "b/odd"]


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
    path = joined(folder / "j.yaml", [{"path": "a"}, {"path": "b", "nonmatch": "none"}])
    prepared_plan(path)
    joined(path, [{"path": "a"}, {"path": "b", "nonmatch": "skip"}])
    with pytest.raises(ConfigError, match=r"\.join, is out of date: .* nonmatch: none for b, which has nonmatch: skip"):
        load_plan(path)
    prepared_plan(path)
    split = folder / "b" / ".nv-meta" / "split.yaml"
    split.write_text(split.read_text().replace("exclude: []", "exclude: [data-0000.tar/d]"))
    with pytest.raises(ConfigError, match=r"is out of date: b \[train\] has been prepared again, or its split or excl"):
        load_plan(path)
    assert prepared_plan(path).num_samples == 1


def test_an_index_does_not_outlive_another_preparation_of_the_same_size(folder: Path) -> None:
    """Another order of keys in a shard leaves its size and its number of samples."""
    path = joined(folder / "j.yaml", [{"path": "a"}, {"path": "b", "nonmatch": "none"}])
    before = prepared_plan(path).sources[0].records
    size = (folder / "b" / "data-0000.tar").stat().st_size
    texts(folder / "b", "bdx")
    refresh_index(folder / "b")
    assert (folder / "b" / "data-0000.tar").stat().st_size == size
    with pytest.raises(ConfigError, match=r"is out of date: b \[train\] has been prepared again"):
        load_plan(path)
    reader = prepared_plan(path).sources[0].records.reader()
    assert [read_text(reader.read(number)) for number in (1, 3)] == ["bb", "bd"]
    with pytest.raises(DatasetError, match=r"\.join: was replaced or removed while it was in use"):
        before.reader().read(1)


def read_text(raw: RawSample) -> str:
    """The text of the second member."""
    assert isinstance(raw, JoinedRawSample)
    assert raw.members[1] is not None
    return raw.members[1].parts["txt"].decode()
