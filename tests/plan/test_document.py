import pytest

from bridge_data.errors import ConfigError
from bridge_data.plan.document import located, parse_yaml

TEXT = """\
# a comment
path: ./coco
weight: 1e-3
quoted: "5"
when: 2024-01-01
flags: {a: yes, b: False, c: ~}
base: &base {x: 1, y: 2}
list:
  - one
  - <<: *base
    y: 3
  - *base
"""


def test_scalars_are_read_as_energon_reads_them():
    assert parse_yaml(TEXT, "f.yaml").plain() == {
        "path": "./coco",
        "weight": 0.001,
        "quoted": "5",
        "when": "2024-01-01",
        "flags": {"a": True, "b": False, "c": None},
        "base": {"x": 1, "y": 2},
        "list": ["one", {"x": 1, "y": 3}, {"x": 1, "y": 2}],
    }


def test_every_value_knows_its_line():
    root = parse_yaml(TEXT, "f.yaml").value
    assert [root[key].line for key in ("path", "flags", "list")] == [2, 6, 8]
    assert [item.line for item in root["list"].value] == [9, 10, 7]
    assert str(root["list"].value[1].value["y"].error("so")) == "f.yaml:11: so"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: [1,\n", r"f\.yaml:3: not readable as YAML"),
        ("a: 1\nb: c: d\n", r"f\.yaml:2: not readable"),
        ("a: 1\na: 2\n", r"f\.yaml:2: key 'a' is already in line 1"),
        ("x:\n  y: !!python/object/apply:os.system [ls]\n", r"f\.yaml:2: tag .*python.* is not allowed"),
        ("x: &a [1, *a]\n", r"f\.yaml:1: this anchor contains itself"),
        ("? [1]\n: 2\n", r"f\.yaml:1: a key must be a string"),
        ("a: 1\n---\nb: 2\n", r"f\.yaml:2: not readable"),
        ("a: *nowhere\n", r"f\.yaml:1: not readable"),
        (b"a: \xff\xff\n", r"f\.yaml:\d+: not readable"),
    ],
)
def test_what_is_not_plain_yaml_is_refused_with_its_line(text, says):
    with pytest.raises(ConfigError, match=says):
        parse_yaml(text, "f.yaml")


@pytest.mark.parametrize(
    ("method", "text", "says"),
    [
        ("mapping", "[1, 2]", "it: expected a mapping, got a list of 2"),
        ("sequence", "{a: 1}", "it: expected a list, got a mapping with a"),
        ("text", "5", "it: expected a string, got 5"),
        ("number", "yes", "it: expected a number, got True"),
        ("number", "~", "it: expected a number, got nothing"),
    ],
)
def test_a_value_of_another_kind_is_named(method, text, says):
    with pytest.raises(ConfigError) as error:
        getattr(parse_yaml(text, "f.yaml"), method)("it")
    assert str(error.value) == f"f.yaml:1: {says}"


def test_aliases_that_repeat_too_much_are_refused_at_once():
    levels = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 40)]
    with pytest.raises(ConfigError, match=r"f\.yaml:7: with aliases, more values than the 500000 allowed"):
        parse_yaml("\n".join(levels), "f.yaml")
    assert len(parse_yaml("\n".join(levels[:5]), "f.yaml").value) == 5


LOCAL, REMOTE = "/sets/blend.yaml", "s3://bucket/sets/blend.yaml"


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        (LOCAL, "coco", "/sets/coco"),
        (LOCAL, "./coco/../coyo", "/sets/coyo"),
        (LOCAL, "../coco", "/coco"),
        (LOCAL, "/coco", "/coco"),
        (LOCAL, "~/coco", "/home/someone/coco"),
        (LOCAL, "$DATA_ROOT/coco", "/data/coco"),
        (LOCAL, "${DATA_ROOT}set", "/dataset"),
        (LOCAL, "file:///coco", "/coco"),
        (LOCAL, "file://coco", "/sets/coco"),
        (LOCAL, "msc://profile/$DATA_ROOT", "msc://profile/data"),
        (REMOTE, "coco", "s3://bucket/sets/coco"),
        (REMOTE, "../coco/", "s3://bucket/coco"),
        (REMOTE, "./a/./b", "s3://bucket/sets/a/b"),
        (REMOTE, "/coco", "/coco"),
        (REMOTE, "gs://other/coco", "gs://other/coco"),
    ],
)
def test_paths_are_relative_to_the_file_and_variables_are_replaced(file, text, expected, monkeypatch):
    monkeypatch.setenv("DATA_ROOT", "/data")
    monkeypatch.setenv("HOME", "/home/someone")
    assert located(text, parse_yaml("path", file), file) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [("ftp://a", "ftp://a: unknown kind of URL"), ("$NOWHERE/coco", r"\$NOWHERE/coco: the environment variable NOWH")],
)
def test_what_is_no_path_is_named_with_file_and_line(text, told):
    with pytest.raises(ConfigError, match=rf"blend\.yaml:1: {told}"):
        located(text, parse_yaml("path", LOCAL), LOCAL)
