from pathlib import Path
from typing import Any

import pytest

from bridge_data.decode import SampleDecoder, SampleLoader, open_loader
from bridge_data.decode.joined_loader import JoinedLoader
from bridge_data.errors import FatalSampleError, SampleError, SkipSample
from bridge_data.plan import load_plan
from bridge_data.samples import CrudeSample, TextSample
from tests.plan.joins import BY_FIELDS, NOTED, joined, own, prepared_plan, texts
from tests.plan.own_joins import Both, Told
from tests.prepared import CRUDE, write_dataset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts(tmp_path / "a", "abcd")
    texts(tmp_path / "b", "dbx", definition=NOTED)
    texts(tmp_path / "c", "dba")
    return tmp_path


def loader(folder: Path, join: Any, joiner: Any = BY_FIELDS) -> JoinedLoader:
    (source,) = prepared_plan(joined(folder / "j.yaml", join, joiner)).sources
    found = open_loader(source, SampleDecoder())
    assert isinstance(found, JoinedLoader)
    return found


def test_a_source_without_join_is_loaded_as_ever(folder: Path) -> None:
    (source,) = load_plan(folder / "a").sources
    assert isinstance(open_loader(source, None), SampleLoader)


def test_fields_come_together_and_provenance_is_that_of_the_first(folder: Path) -> None:
    join = [{"path": "a", "subflavors": {"of": "a"}}, {"path": "b", "nonmatch": "none", "subflavors": {"of": "b"}}]
    load = loader(folder, join, own("Told")).load
    assert [(load(number).text, load(number).note) for number in range(4)] == [
        ("aa", None),
        ("ab", "bb"),
        ("ac", None),
        ("ad", "bd"),
    ]
    sample = load(3)
    assert type(sample) is Told
    assert (sample.__key__, sample.__subflavors__) == ("data-0001.tar/d", {"of": "a"})
    assert sample.__sources__ is not None
    assert [(info.dataset_path, info.index, info.shard_name, info.file_names) for info in sample.__sources__] == [
        (str(folder / "a"), 3, "data-0001.tar", ("d.txt",)),
        (str(folder / "b"), 0, "data-0000.tar", ("d.txt",)),
    ]
    assert len(load(0).__sources__) == 1


def test_a_later_field_takes_the_place_of_an_earlier_one(folder: Path) -> None:
    load = loader(folder, [{"path": "a"}, {"path": "c", "nonmatch": "none"}]).load
    assert [load(number).text for number in range(4)] == ["ca", "cb", "ac", "cd"]
    assert type(load(0)) is TextSample


def test_a_mapping_calls_the_joiner_by_names_and_a_list_by_position(folder: Path) -> None:
    join = {"left": {"path": "a"}, "right": {"path": "c", "nonmatch": "none"}}
    load = loader(folder, join, own("Both")).load
    assert [(load(number).left, load(number).right) for number in (0, 2)] == [("aa", "ca"), ("ac", None)]
    load = loader(folder, [{"path": "a"}, {"path": "c", "nonmatch": "skip"}], own("swap", "__function__")).load
    assert isinstance(load(2), Both)
    assert (load(2).left, load(2).right) == ("cd", "ad")


def test_sources_are_those_of_all_members_whatever_the_joiner_says(folder: Path) -> None:
    sample = loader(folder, {"left": {"path": "a"}, "right": {"path": "c", "nonmatch": "none"}}, own("Both")).load(0)
    assert [info.dataset_path for info in sample.__sources__] == [str(folder / "a"), str(folder / "c")]


def test_a_crude_member_comes_with_all_its_parts(folder: Path) -> None:
    write_dataset(folder / "d", [{"__key__": "c", "txt": "crude", "cls": 7}], definition=CRUDE)
    join = [{"path": "a"}, {"path": "d", "nonmatch": "skip"}]
    (source,) = prepared_plan(joined(folder / "j.yaml", join, own("swap", "__function__"))).sources
    raw = source.records.reader().read(0)
    assert [sorted(member.parts) for member in raw.members] == [["txt"], ["cls", "txt"]]


def told(tmp_path: Path, text: str) -> JoinedLoader:
    for name in "ab":
        write_dataset(tmp_path / name, [{"__key__": "k", "txt": text}])
    join = {"left": {"path": "a"}, "right": {"path": "b"}}
    return loader(tmp_path, join, own("swap", "__function__") if text != "skip me" else own("Both"))


def test_a_joiner_may_make_a_crude_sample(tmp_path: Path) -> None:
    sample = told(tmp_path, "crude").load(0)
    assert isinstance(sample, CrudeSample)
    assert (sample["__key__"], len(sample["__sources__"])) == ("data-0000.tar/k", 2)


def test_a_joiner_may_leave_a_sample_out(tmp_path: Path) -> None:
    with pytest.raises(SkipSample):
        told(tmp_path, "skip me").load(0)


def test_a_joiner_that_returns_no_sample_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(FatalSampleError, match=r"returned None for sample data-0000.tar/k: expected a Sample"):
        told(tmp_path, "nothing").load(0)


def test_a_joiner_that_fails_is_noted_with_the_sample(folder: Path) -> None:
    load = loader(folder, [{"path": "a"}, {"path": "c", "nonmatch": "none"}], own("swap", "__function__")).load
    with pytest.raises(AttributeError) as caught:
        load(2)
    assert caught.value.__notes__ == [f"in the joiner of {folder / 'j.yaml'}, sample data-0001.tar/c"]


def test_a_member_s_field_that_is_absent_is_named(folder: Path) -> None:
    write_dataset(folder / "d", [{"__key__": "c", "cls": 1}, {"__key__": "a", "txt": "d"}])
    join = [{"path": "a"}, {"path": "d", "nonmatch": "skip"}]
    load = loader(folder, join).load
    assert load(0).text == "d"
    with pytest.raises(SampleError, match=r"'data-0000.tar/c': part 'txt' is absent; there is cls\. .*/d/\.nv-meta"):
        load(1)
