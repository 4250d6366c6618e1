"""`sample_loader.py` beside the data: run only if it is trusted."""

import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from bridge_data import ConfigError, FatalSampleError, TextSample
from bridge_data.decode import SampleDecoder
from bridge_data.decode.sample_loader import SampleLoader
from bridge_data.plan import load_plan
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


def no_fields(parts):
    return {}


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
    """A loader that has travelled, and whose function's file is gone."""
    (source,) = load_plan(folder, trust_dataset_code=True).sources
    sent = cloudpickle.dumps(source)
    (folder / ".nv-meta" / "sample_loader.py").unlink()
    return SampleLoader(pickle.loads(sent), SampleDecoder())


def test_the_fields_come_from_the_function(tmp_path: Path) -> None:
    sample = loader(prepared(tmp_path / "d", **LOADED)).load(2)
    assert isinstance(sample, TextSample)
    assert (sample.text, sample.__key__, sample.__subflavors__) == ("w2: t2", "data-0000.tar/002", {"a": 1})
    assert sample.__sources__ is not None
    assert set(sample.__sources__[0].file_names) == {"002.bin", "002.json", "002.txt"}


@pytest.mark.parametrize("parts", ["sample_loader.py:part_filter", "sample_loader.py", ["json", "txt"]])
def test_only_the_parts_that_the_filter_takes_are_read(tmp_path: Path, parts: Any) -> None:
    sample = loader(prepared(tmp_path / "d", **LOADED, part_filter=parts)).load(0)
    assert sample.__sources__[0].file_names == ("000.json", "000.txt")
    crude = loader(prepared(tmp_path / "e", **CRUDE, part_filter=parts)).load(1)
    assert {name for name in crude if not name.startswith("__")} == {"txt", "json"}


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
        ("no_fields", r"sample_loader: the fields \(none\) do not make a TextSample: .*'text'"),
        ("wrong_field", "sample_loader: the fields caption do not make a TextSample: .*'caption'"),
    ],
)
def test_a_function_that_makes_no_sample_stops_the_run(tmp_path: Path, function: str, says: str) -> None:
    folder = prepared(tmp_path / "d", sample_type=TYPE, sample_loader=f"sample_loader.py:{function}")
    with pytest.raises(FatalSampleError, match=says):
        loader(folder).load(0)
