from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    ConfigError,
    CrudeJsonlDatasetFactory,
    DatasetError,
    DefaultCrudeJsonlDatasetFactory,
    JoinedWebdatasetFactory,
    prepare_metadataset,
)
from bridge_data.data import SubsetRange
from bridge_data.data.jsonl_file import split_path
from bridge_data.decode import SampleDecoder, open_source_reader
from bridge_data.energon import CrudeWebdataset, DefaultDecoderWebdatasetFactory, TextWebdataset
from bridge_data.energon.jsonl_and_joined import get_dataset_from_config
from bridge_data.errors import SampleError
from bridge_data.plan import load_plan
from bridge_data.plan.blending import EmptySplitError
from bridge_data.samples import CrudeSample, Sample, TextSample
from tests.plan.joins import BY_FIELDS, joined, texts
from tests.plan.own_joins import Both, Noted, Told, swap
from tests.plan.test_opening_references import write_lines


class Notes(DefaultDecoderWebdatasetFactory[Noted]):
    """Notes are texts under another name."""

    __sample_type__ = Noted


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """The index of the join of a and b beside it."""
    texts(tmp_path / "a", "abcd")
    texts(tmp_path / "b", "dbx")
    join = [{"path": "a"}, {"path": "b", "nonmatch": "none"}]
    (made,) = prepare_metadataset(joined(tmp_path / "j.yaml", join), num_workers=1)
    return made.path


def members(index: Path) -> tuple[TextWebdataset, TextWebdataset]:
    folder = index.parent.parent
    return (
        TextWebdataset(folder / "a", field_map={"text": "txt"}, subflavors={"of": "a"}),
        TextWebdataset(folder / "b", field_map={"text": "txt"}, subflavors={"of": "b"}),
    )


def load(factory: JoinedWebdatasetFactory[Any]) -> list[Any]:
    loader = open_source_reader(factory.source(), SampleDecoder())
    return [loader.build(loader.read(number), number) for number in range(len(factory))]


def test_it_is_the_join_that_a_metadataset_would_be(index: Path) -> None:
    factory = JoinedWebdatasetFactory(members(index), join_index=index, joiner=TextSample)
    assert [sample.text for sample in load(factory)] == ["aa", "bb", "ac", "bd"]
    assert load(factory)[1].__subflavors__ == {"of": "a"}
    assert (len(factory), [path.name for path in factory.paths]) == (4, ["a", "b"])
    plan = factory.build()
    assert (plan.num_samples, plan.weights) == (4, (1.0,))


def test_a_joiner_gets_the_members_by_place_or_by_name(index: Path) -> None:
    a, b = members(index)
    by_name = JoinedWebdatasetFactory({"left": a, "right": b}, join_index=index, joiner=Both)
    assert [(sample.left, sample.right) for sample in load(by_name)][:2] == [("aa", None), ("ab", "bb")]
    notes = Notes(index.parent.parent / "b", field_map={"note": "txt"})  # fields of members may differ
    differing = JoinedWebdatasetFactory([a, notes], join_index=index, joiner=Told)
    assert [(sample.text, sample.note) for sample in load(differing)][2:] == [("ac", None), ("ad", "bd")]
    last = SubsetRange.parse([3, 4])
    function = JoinedWebdatasetFactory([a, b], join_index=index, joiner=swap, subset=last)
    assert [(sample.left, sample.right) for sample in load(function)] == [("bd", "ad")]
    assert function.source().sample_class is Sample
    for joiner in (5, int):
        with pytest.raises(ConfigError, match="joiner: expected a class derived from Sample, or a function, got"):
            JoinedWebdatasetFactory([a, b], join_index=index, joiner=joiner)


def test_it_may_be_cut_and_shuffled_over_epochs(index: Path) -> None:
    subset = SubsetRange.parse([1, "end"])
    factory = JoinedWebdatasetFactory(
        members(index), join_index=index, joiner=TextSample, subset=subset, shuffle_over_epochs=-1
    )
    assert [sample.text for sample in load(factory)] == ["bb", "ac", "bd"]
    assert factory.source().epochs_per_shuffle == -1


def test_members_that_cannot_be_joined_are_named(index: Path) -> None:
    a, b = members(index)
    with pytest.raises(ConfigError, match="expected data sets to join, got none"):
        JoinedWebdatasetFactory([], join_index=index, joiner=TextSample)
    with pytest.raises(ConfigError, match="takes no names: write the join as a list"):
        JoinedWebdatasetFactory({"a": a, "b": b}, join_index=index, joiner=TextSample).source()
    crude = CrudeWebdataset(index.parent.parent / "b")
    with pytest.raises(ConfigError, match="b/train is crude, and TextSample has the from_joined"):
        JoinedWebdatasetFactory([a, crude], join_index=index, joiner=TextSample).source()
    half = TextWebdataset(index.parent.parent / "b", field_map={"text": "txt"}, subset=SubsetRange.parse([0, 1]))
    with pytest.raises(ConfigError, match="b/train: a member of a join is a whole split part"):
        JoinedWebdatasetFactory([a, half], join_index=index, joiner=TextSample).source()


def test_the_index_must_be_that_of_the_members(index: Path) -> None:
    a, b = members(index)
    for others, says in (
        ((b, a), r"joins a \[train\] as it was when it was made; .*b \[train\] is other"),
        ((a,), "joins 2"),
    ):
        with pytest.raises(DatasetError, match=says):
            JoinedWebdatasetFactory(others, join_index=index, joiner=TextSample).source()
    with pytest.raises(DatasetError, match=r"nowhere: no index of a join; run `bridge-data prepare` on a metadataset"):
        JoinedWebdatasetFactory([a, b], join_index=index.with_name("nowhere"), joiner=TextSample).source()


def test_it_takes_the_index_of_any_metadataset_that_has_the_join(index: Path) -> None:
    folder = index.parent.parent
    joined(folder / "other.yaml", {"x": {"path": "a"}, "y": {"path": "b", "nonmatch": "none"}}, BY_FIELDS)
    (made,) = prepare_metadataset(folder / "other.yaml", num_workers=1)
    factory = JoinedWebdatasetFactory(members(index), join_index=made.path, joiner=TextSample)
    assert len(factory) == 4


PROVENANCE = {"__key__": "3", "__shard__": "a.jsonl", "__sources__": (), "__restore_key__": ()}


class Marked(DefaultCrudeJsonlDatasetFactory):
    def load_sample(self, sample: dict[str, Any]) -> CrudeSample:
        return CrudeSample({**super().load_sample(sample), "mark": "mine"})


def test_the_default_factory_is_what_the_path_stands_for(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    factory = DefaultCrudeJsonlDatasetFactory(path, subflavors={"kind": "lines"})
    source, known = factory.source(), load_plan(path).sources[0]
    assert source.fingerprint == known.fingerprint
    assert (source.path, source.name, source.sample_class) == (known.path, known.name, known.sample_class)
    assert (source.subflavors, source.sample_loader, len(factory)) == ({"kind": "lines"}, None, 20)
    assert factory.build().sources[0].fingerprint == known.fingerprint
    assert (factory.paths, str(factory)) == ([path], f"DefaultCrudeJsonlDatasetFactory({path} [train])")


def test_lines_stay_bytes_or_are_decoded(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    parts = {**PROVENANCE, "json": b'{"text": "a 3"}'}
    raw = CrudeJsonlDatasetFactory(path).source()
    assert raw.sample_loader is not None
    assert raw.sample_loader.load_function(None, {})(parts) == CrudeSample(parts)
    decoded = DefaultCrudeJsonlDatasetFactory(path).load_function(None, {"x": 1})(parts)
    assert decoded == CrudeSample({**parts, "json": {"text": "a 3"}, "__subflavors__": {"x": 1}})
    with pytest.raises(SampleError, match=r"a\.jsonl: sample 3 is no JSON: Expecting value"):
        DefaultCrudeJsonlDatasetFactory(path).load_sample({**PROVENANCE, "json": b"x"})


def test_a_class_of_the_users_makes_its_samples(tmp_path: Path) -> None:
    factory = Marked(write_lines(tmp_path / "a.jsonl"))
    source = factory.source()
    assert source.sample_loader is factory
    sample = source.sample_loader.load_function(None, {})({**PROVENANCE, "json": b"{}"})
    assert (sample["mark"], sample["json"]) == ("mine", {})


def test_ranges_and_parts(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl")
    split_path(path).write_text("split_parts: {train: [0, 10], none: [3, 3]}")
    (tmp_path / "other.yaml").write_text("split_parts: {train: [0, 4]}")
    assert len(CrudeJsonlDatasetFactory(path, subset=SubsetRange.parse(["50%", "100%"]))) == 5
    assert len(CrudeJsonlDatasetFactory(path, split_config="other.yaml")) == 4
    with pytest.raises(ConfigError, match="there is no split part 'val'"):
        CrudeJsonlDatasetFactory(path, split_part="val").source()
    with pytest.raises(EmptySplitError, match=r"a\.jsonl: the split part 'none' .*no samples"):
        CrudeJsonlDatasetFactory(path, split_part="none").build()
    source = CrudeJsonlDatasetFactory(path, part_filter=lambda part: part != "json").source()
    assert source.parts is not None and "json" not in source.parts
    assert source.records.reader().read(0, source.parts).parts == {}


def test_prepared_data_as_its_own_files_describe_it(tmp_path: Path) -> None:
    texts(tmp_path / "a", "abcd")
    factory = get_dataset_from_config(tmp_path / "a", sample_type=TextSample)
    assert factory.build().num_samples == 4
    assert factory.source().sample_class is TextSample
    with pytest.raises(ConfigError, match="has TextSample, not Noted"):
        get_dataset_from_config(tmp_path / "a", sample_type=Noted)
