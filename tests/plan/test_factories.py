"""`sample_loader.py` beside the data: run only if it is trusted."""

import pickle
from pathlib import Path

import cloudpickle
import pytest

from bridge_data import ConfigError, FatalSampleError, TextSample
from bridge_data.decode import SampleDecoder
from bridge_data.decode.sample_loader import SampleLoader
from bridge_data.plan import load_plan
from bridge_data.plan.factories import LoadedBy, made
from tests.prepared import CRUDE, write_dataset

CODE = """\
import json

COUNT = 0


def sample_loader(parts):
    global COUNT
    COUNT += 1
    return {"text": parts["json"]["who"] + ": " + parts["txt"]}


def part_filter(part):
    return part != "bin"


def no_dict(parts):
    return parts["txt"]


def wrong_field(parts):
    return {"caption": parts["txt"]}
"""
TYPE = {"__module__": "megatron.energon", "__class__": "TextSample"}
LOADED = {"sample_type": TYPE, "sample_loader": "sample_loader.py:sample_loader"}


def prepared(folder: Path, **definition: object) -> Path:
    samples = [{"__key__": f"{n:03}", "txt": f"t{n}", "json": {"who": f"w{n}"}, "bin": b"x"} for n in range(4)]
    write_dataset(folder, samples, definition={**definition, "subflavors": {"a": 1}})
    (folder / ".nv-meta" / "sample_loader.py").write_text(CODE)
    return folder


def loader(folder: Path) -> SampleLoader:
    (source,) = load_plan(folder, trust_dataset_code=True).sources
    return SampleLoader(pickle.loads(pickle.dumps(source)), SampleDecoder())


def test_the_fields_come_from_the_function(tmp_path: Path) -> None:
    sample = loader(prepared(tmp_path / "d", **LOADED)).load(2)
    assert isinstance(sample, TextSample)
    assert (sample.text, sample.__key__, sample.__subflavors__) == ("w2: t2", "data-0000.tar/002", {"a": 1})
    assert sample.__sources__ is not None
    assert set(sample.__sources__[0].file_names) == {"002.bin", "002.json", "002.txt"}


def test_only_the_parts_that_the_filter_takes_are_read(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "d", **LOADED, part_filter="sample_loader.py:part_filter")
    sample = loader(folder).load(0)
    assert sample.__sources__[0].file_names == ("000.json", "000.txt")  # type: ignore[union-attr,index]
    named = prepared(tmp_path / "e", **LOADED, part_filter=["json", "txt"])
    assert loader(named).load(0).__sources__[0].file_names == ("000.json", "000.txt")  # type: ignore[union-attr,index]


def test_crude_samples_may_have_a_filter(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "d", **CRUDE, part_filter="sample_loader.py")
    assert {name for name in loader(folder).load(1) if not name.startswith("__")} == {"txt", "json"}  # type: ignore[union-attr]


def test_functions_travel_without_their_file(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "d", **LOADED)
    (source,) = load_plan(folder, trust_dataset_code=True).sources
    data = cloudpickle.dumps(source)
    (folder / ".nv-meta" / "sample_loader.py").unlink()
    assert SampleLoader(pickle.loads(data), SampleDecoder()).load(0).text == "w0: t0"  # type: ignore[union-attr]


@pytest.mark.parametrize("definition", [LOADED, {**CRUDE, "part_filter": "sample_loader.py:part_filter"}])
def test_it_is_not_run_without_trust(tmp_path: Path, definition: dict[str, object]) -> None:
    folder = prepared(tmp_path / "d", **definition)
    (folder / ".nv-meta" / "sample_loader.py").write_text("raise SystemExit('it was run')")
    with pytest.raises(ConfigError, match=r"dataset\.yaml:\d+: .* is code beside .* trust_dataset_code=True"):
        load_plan(folder)


@pytest.mark.parametrize(
    ("loader", "says"),
    [
        ("nowhere.py:sample_loader", "nowhere.py: no such file; expected `file.py:function`"),
        ("sample_loader.py:sample_loade", "no function 'sample_loade'; did you mean 'sample_loader'?"),
        ("sample_loader.py:COUNT", "no function 'COUNT'"),
        ("broken.py:sample_loader", "broken.py cannot be run: ZeroDivisionError: division by zero"),
        (5, "sample_loader: expected a string, got 5"),
    ],
)
def test_a_function_that_is_not_there_is_named(tmp_path: Path, loader: object, says: str) -> None:
    folder = prepared(tmp_path / "d", sample_type=TYPE, sample_loader=loader)
    (folder / ".nv-meta" / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError, match=r"dataset\.yaml:\d+: ") as error:
        load_plan(folder, trust_dataset_code=True)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"field_map": {"text": "txt"}}, "field_map: there is a sample_loader too"),
        ({"sample_type": {**TYPE, "__class__": "CrudeSample"}}, "crude samples have no sample_loader"),
    ],
)
def test_what_excludes_a_sample_loader_is_named(tmp_path: Path, more: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_plan(prepared(tmp_path / "d", **{**LOADED, **more}), trust_dataset_code=True)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("no_dict", "sample_loader returned 't0' for sample data-0000.tar/000: expected a dict of the fields of Text"),
        ("wrong_field", "sample_loader: the fields caption do not make a TextSample: .*'caption'"),
    ],
)
def test_a_function_that_makes_no_sample_stops_the_run(tmp_path: Path, function: str, says: str) -> None:
    folder = prepared(tmp_path / "d", sample_type=TYPE, sample_loader=f"sample_loader.py:{function}")
    with pytest.raises(FatalSampleError, match=says):
        loader(folder).load(0)


SAMPLE = {"__key__": "a.tar/1", "__shard__": "a.tar", "__sources__": (), "__restore_key__": (), "txt": b"x"}


def test_a_sample_has_the_fields_given_and_the_provenance_of_what_they_are_of() -> None:
    sample = made(TextSample, {"text": "x"}, SAMPLE, {"s": 1}, "me")
    assert sample == TextSample(__key__="a.tar/1", __sources__=(), __subflavors__={"s": 1}, text="x")
    assert made(TextSample, {"text": "x", "__key__": "own"}, SAMPLE, {}, "me").__key__ == "own"


def test_the_function_gets_the_decoded_parts_if_anything_decodes_them() -> None:
    by_text = LoadedBy(TextSample, lambda parts: {"text": parts["txt"]})
    assert by_text.maker(None, {})(SAMPLE).text == b"x"
    assert by_text.maker(lambda parts: {**parts, "txt": "decoded"}, {})(SAMPLE).text == "decoded"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (None, "me returned None for sample a.tar/1: expected a dict of the fields of TextSample"),
        ({}, "me: the fields \\(none\\) do not make a TextSample: .*'text'"),
        ({"text": "", "size": 1}, "me: the fields text, size do not make a TextSample: .*'size'"),
    ],
)
def test_other_fields_stop_the_run(fields: object, says: str) -> None:
    with pytest.raises(FatalSampleError, match=says):
        made(TextSample, fields, SAMPLE, {}, "me")
