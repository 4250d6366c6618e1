"""What a `dataset.yaml` says of samples, and `sample_loader.py` beside the data: run only if it is trusted."""

import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from bridge_data.data.plain_data import parse_yaml
from bridge_data.decode import SampleDecoder
from bridge_data.decode.source_reader import SingleSourceReader
from bridge_data.errors import ConfigError, FatalSampleError
from bridge_data.plan import load_plan
from bridge_data.plan.dataset_yaml import read_sample_config
from bridge_data.samples import CaptioningSample, CrudeSample, ImageSample, TextSample, VQASample
from tests.plan.own_samples import Pair
from tests.prepared import CRUDE, write_dataset

CLASS = "sample_type: {__module__: megatron.energon, __class__: CaptioningSample}\n"


def read(text, trusted=()):
    return read_sample_config(parse_yaml(text, "dataset.yaml"), trusted)


@pytest.mark.parametrize(
    ("name", "expected", "fields"),
    [
        ("CaptioningSample", CaptioningSample, "image: jpg, caption: txt"),
        ("VQASample", VQASample, "image: jpg, context: 'json[q]', answers: 'json[a]'"),
        ("ImageSample", ImageSample, "image: 'png,jpg'"),
        ("TextSample", TextSample, "text: txt"),
    ],
)
def test_todays_and_the_older_form_say_the_same(name, expected, fields):
    today = read(f"sample_type:\n  __module__: megatron.energon\n  __class__: {name}\nfield_map: {{{fields}}}\n")
    older = name.removesuffix("Sample") + "Webdataset"
    before = read(f"__module__: megatron.energon\n__class__: {older}\nfield_map: {{{fields}}}\n")
    assert today.sample_class is expected
    assert today == before


def test_samples_have_the_parts_that_are_named_or_needed():
    crude = read("__module__: megatron.energon\n__class__: CrudeWebdataset\nsubflavors: {kind: 5, tags: [a, {b: c}]}\n")
    assert (crude.sample_class, crude.parts, crude.field_map) == (CrudeSample, None, {})
    assert crude.subflavors == {"kind": 5, "tags": ["a", {"b": "c"}]}
    some = read("sample_type: {__module__: bridge_data, __class__: CrudeSample}\npart_filter: [jpg]\n")
    assert (some.sample_class, some.parts) == (CrudeSample, {"jpg"})
    fields = read(CLASS + "field_map: {image: 'png,jpg', caption: 'json[a][b]'}\n")
    assert {part for part in fields.parts if part.islower()} == {"png", "jpg", "jpeg", "jpe", "jfif", "json"}
    assert "PNG" in fields.parts


FORM = "sample_type: {__module__: %s, __class__: %s}\nfield_map: {%s}\n"


@pytest.mark.parametrize("module", ["nowhere.at.all", "bridge_data_of_old", "json.nothing"])
def test_a_module_that_no_longer_exists_stands_for_this_package(module):
    assert read(FORM % (module, "TextSample", "text: txt")).sample_class is TextSample


@pytest.mark.parametrize("trusted", ["tests.plan.own_samples", "tests"])
def test_a_module_that_is_trusted_is_imported(trusted):
    assert read(FORM % ("tests.plan.own_samples", "Pair", "left: jpg"), [trusted]).sample_class is Pair


@pytest.mark.parametrize(
    ("module", "name", "trusted", "told"),
    [
        ("tests.plan.own_samples", "Pair", (), r"dataset\.yaml:1: .* is not trusted"),
        ("tests.plan.own_samples", "Pair", ("tests.pla",), "is not trusted"),
        ("tests.plan.own_samples", "Pair", ("tests.plan.own",), "is not trusted"),
        ("nowhere.at.all", "OtherSample", (), "is not trusted"),
        ("json.decoder", "TextSample", (), r"'json\.decoder' would be imported"),  # it exists
        ("megatron.bridge.nowhere", "X", (), r"'megatron\.bridge\.nowhere' cannot be imported"),
        ("megatron.bridges.nowhere", "X", (), "is not trusted"),
        ("with_needs", "X", ("with_needs",), "No module named 'package_of_cuda'; install package_of_cuda, or use"),
    ],
)
def test_other_modules_are_refused(module, name, trusted, told, tmp_path, monkeypatch):
    (tmp_path / "with_needs.py").write_text("import package_of_cuda\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=told):
        read(FORM % (module, name, "text: txt"), trusted)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "sample_type: {__module__: megatron.energon, __class__: TextSample}\nsplit_part: val\n",
            "dataset.yaml:2: split_part is not for a dataset.yaml here: name the part where the data set is used",
        ),
        ("field_map: {image: jpg}\n", "dataset.yaml:1: __module__ is missing"),
        ("sample_type: {__class__: CaptioningSample}\n", "dataset.yaml:1: __module__ is missing"),
        ("sample_type: CaptioningSample\n", "dataset.yaml:1: sample_type: expected a mapping"),
        (CLASS + "__class__: X\n", "dataset.yaml:2: __class__ at the top says the same as sample_type"),
        (CLASS + "fieldmap: {}\n", "dataset.yaml:2: dataset.yaml: unknown key 'fieldmap'; did you mean 'field_map'?"),
        (CLASS, "dataset.yaml:1: field_map is missing"),
        (
            CLASS + "field_map:\n  image: jpg\n",
            "dataset.yaml:2: field_map: 'caption' is missing, which CaptioningSample",
        ),
        (
            CLASS + "field_map:\n  image: jpg\n  captoin: txt\n",
            "dataset.yaml:4: field_map of CaptioningSample: unknown key 'captoin'; did you mean 'caption'?",
        ),
        (CLASS + "field_map:\n  image: jpg\n  caption: json[\n", "dataset.yaml:4: field access 'json['"),
        (
            CLASS + "field_map:\n  image: 5\n  caption: txt\n",
            "dataset.yaml:3: field_map: image: expected a string, got 5",
        ),
        (CLASS + "field_map: {image: jpg, caption: txt, __key__: txt}\n", "unknown key '__key__'"),
        (
            CLASS + "field_map: {image: jpg, caption: txt}\npart_filter: [jpg]\n",
            "dataset.yaml:3: part_filter is for crude",
        ),
        (
            CLASS + "sample_loader: sample_loader.py:sample_loader\n",
            "dataset.yaml:2: sample_loader: sample_loader.py:sample_loader is code beside the data",
        ),
        (
            "sample_type: {__module__: megatron.energon, __class__: CaptionSample}\n",
            "dataset.yaml:1: unknown sample class 'CaptionSample'; did you mean 'CaptioningSample'?",
        ),
        ("sample_type: {__module__: megatron.energon, __class__: Batch}\n", "unknown sample class 'Batch'"),
        ("__module__: megatron.energon\n__class__: NothingWebdataset\n", "dataset.yaml:2: unknown sample class"),
        (
            "__module__: megatron.energon\n__class__: CrudeWebdataset\nfield_map: {a: b}\n",
            "dataset.yaml:3: crude samples have no field_map",
        ),
        (
            "__module__: megatron.energon\n__class__: CrudeWebdataset\npart_filter: f.py:g\n",
            "dataset.yaml:3: part_filter: f.py:g is code beside the data",
        ),
        (
            "sample_type: {__module__: trusted.nowhere, __class__: X}\n",
            "dataset.yaml:1: __module__: 'trusted.nowhere' cannot be imported",
        ),
        (
            "sample_type: {__module__: tests.plan.own_samples, __class__: NOT_A_CLASS}\n",
            "expected a class derived from Sample",
        ),
        (
            "sample_type: {__module__: tests.plan.own_samples, __class__: Pear}\n",
            "expected a class derived from Sample",
        ),
        (
            "sample_type: {__module__: os, __class__: system}\n",
            "'os' would be imported, which runs its code, and is not trusted",
        ),
        ("- a\n", "dataset.yaml:1: dataset.yaml: expected a mapping, got a list"),
        ("", "dataset.yaml:1: dataset.yaml: expected a mapping, got nothing"),
    ],
)
def test_mistakes_are_named_with_file_and_line(text, says):
    with pytest.raises(ConfigError) as error:
        read(text, ["trusted", "tests.plan.own_samples"])
    assert says in str(error.value)


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


def loaded(folder: Path, index: int) -> Any:
    """A sample, by a reader that has travelled, and whose function's file is gone."""
    (source,) = load_plan(folder, trust_dataset_code=True).sources
    sent = cloudpickle.dumps(source)
    (folder / ".nv-meta" / "sample_loader.py").unlink()
    reader = SingleSourceReader(pickle.loads(sent), SampleDecoder())
    return reader.build(reader.read(index), index)


def test_the_fields_come_from_the_function(tmp_path: Path) -> None:
    sample = loaded(prepared(tmp_path / "d", **LOADED), 2)
    assert isinstance(sample, TextSample)
    assert (sample.text, sample.__key__, sample.__subflavors__) == ("w2: t2", "data-0000.tar/002", {"a": 1})
    assert sample.__sources__ is not None
    assert set(sample.__sources__[0].file_names) == {"002.bin", "002.json", "002.txt"}


@pytest.mark.parametrize("parts", ["sample_loader.py:part_filter", "sample_loader.py", ["json", "txt"]])
def test_only_the_parts_that_the_filter_takes_are_read(tmp_path: Path, parts: Any) -> None:
    sample = loaded(prepared(tmp_path / "d", **LOADED, part_filter=parts), 0)
    assert sample.__sources__[0].file_names == ("000.json", "000.txt")
    crude = loaded(prepared(tmp_path / "e", **CRUDE, part_filter=parts), 1)
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
        loaded(folder, 0)
