import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.errors import ConfigError, SampleError
from bridge_data.plan.dataset_yaml import parse_access, read_sample_config
from bridge_data.plan.document import parse_yaml
from bridge_data.samples import CaptioningSample, CrudeSample, ImageSample, TextSample, VQASample
from tests.plan.own_samples import Pair

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


def test_crude_samples_have_all_parts_or_those_named():
    crude = read("__module__: megatron.energon\n__class__: CrudeWebdataset\nsubflavors: {kind: 5, tags: [a, {b: c}]}\n")
    assert (crude.sample_class, crude.parts, crude.field_map) == (CrudeSample, None, {})
    assert crude.subflavors == {"kind": 5, "tags": ["a", {"b": "c"}]}
    some = read("sample_type: {__module__: bridge_data, __class__: CrudeSample}\npart_filter: [jpg]\n")
    assert (some.sample_class, some.parts) == (CrudeSample, {"jpg"})


def test_only_the_parts_that_fields_need_are_read():
    config = read(CLASS + "field_map: {image: 'png,jpg', caption: 'json[a][b]'}\n")
    assert config.parts == {"png", "jpg", "json"}


def test_classes_of_megatron_bridge_need_no_trust():
    text = "sample_type: {__module__: megatron.bridge.nowhere, __class__: X}\nfield_map: {text: txt}"
    with pytest.raises(ConfigError, match=r"'megatron\.bridge\.nowhere' cannot be imported"):
        read(text)
    with pytest.raises(ConfigError, match="is not trusted"):
        read(text.replace("megatron.bridge.", "megatron.bridges."))


def test_a_class_whose_module_needs_a_package_that_is_not_there(tmp_path, monkeypatch):
    (tmp_path / "with_needs.py").write_text("import package_of_cuda\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = "sample_type: {__module__: with_needs, __class__: X}\nfield_map: {text: txt}"
    with pytest.raises(ConfigError, match="No module named 'package_of_cuda'; install package_of_cuda, or use"):
        read(text, ("with_needs",))


def test_a_module_that_is_trusted_is_imported():
    text = "sample_type: {__module__: tests.plan.own_samples, __class__: Pair}\nfield_map: {left: jpg}\n"
    assert read(text, ["tests.plan.own_samples"]).sample_class is Pair
    assert read(text, ["tests"]).sample_class is Pair
    for trusted in ([], ["tests.pla"], ["tests.plan.own"]):
        with pytest.raises(ConfigError, match=r"dataset\.yaml:1: .* is not trusted"):
            read(text, trusted)


@pytest.mark.parametrize(
    ("text", "says"),
    [
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


PARTS = {
    "__key__": "a.tar/0001",
    "jpg": b"pixels",
    "json": {"caption": "a cat", "turns": [{"text": "hello"}, {"text": "there"}], "0": "zero", "none": None},
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("jpg", b"pixels"),
        ("json[caption]", "a cat"),
        ("json[turns][1][text]", "there"),
        ("json[turns][-1][text]", "there"),
        ("json[0]", "zero"),
        ("json[none]", None),
        ("png,jpg", b"pixels"),
        ("json[title],json[caption],jpg", "a cat"),
        ("json[turns][7], jpg", b"pixels"),
        ("__key__", "a.tar/0001"),
    ],
)
def test_value_is_found(text, value):
    assert parse_access(text).get(PARTS) == value


def test_parts_names_all_that_may_be_needed():
    access = parse_access("json[a][0][b],png,json[c]")
    assert (access.part, access.path, access.parts) == ("json", ("a", "0", "b"), ("json", "png"))
    assert str(access) == "json[a][0][b],png,json[c]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("png", ["'a.tar/0001'", "part 'png' is absent", "there is jpg, json", "did you mean 'jpg'?"]),
        ("json[captoin]", ["json has no [captoin]", "did you mean 'caption'?"]),
        ("json[turns][2][text]", ["json[turns] has no [2]", "a list of 2"]),
        ("json[turns][x]", ["json[turns] has no [x]"]),
        ("json[caption][x]", ["json[caption] has no [x]", "it is a str"]),
        ("png,json[title]", ["part 'png' is absent", "json has no [title]"]),
    ],
)
def test_absence_names_sample_part_and_step(text, says):
    with pytest.raises(SampleError) as error:
        parse_access(text).get(PARTS)
    for words in says:
        assert words in str(error.value)


@pytest.mark.parametrize("text", ["", "json[", "json[]", "json]a[", "[a]", "json[a]b", "jpg,", "json[[a]]"])
def test_other_forms_are_refused(text):
    with pytest.raises(ConfigError, match="field access"):
        parse_access(text)


NAMES = st.text(st.characters(exclude_characters="[],", exclude_categories=["C", "Z"]), min_size=1, max_size=8)


@given(st.lists(st.tuples(NAMES, st.lists(NAMES, max_size=3)), min_size=1, max_size=3))
def test_text_survives_parsing(options):
    text = ",".join(part + "".join(f"[{step}]" for step in path) for part, path in options)
    access = parse_access(text)
    assert str(access) == text
    assert parse_access(str(access)) == access


@given(st.lists(NAMES, min_size=1, max_size=5), st.integers())
def test_a_path_leads_through_nested_dicts(path, value):
    nested = value
    for step in reversed(path):
        nested = {step: nested}
    text = path[0] + "".join(f"[{step}]" for step in path[1:])
    assert parse_access(text).get(nested) == value
