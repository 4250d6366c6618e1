"""What metadatasets declare, of both formats, in which YAML and by which paths: nothing but YAML files is there."""

import re

import pytest

from bridge_data.data import SubsetRange
from bridge_data.data.plain_data import parse_yaml
from bridge_data.errors import ConfigError
from bridge_data.plan.declared import DeclaredBlend, Reference, Scope, declare, read_reference
from bridge_data.storage import located

SECOND = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
FIRST = "__module__: megatron.energon\n__class__: Metadataset\n"


def write(folder, text, name="m.yaml", head=SECOND):
    (folder / name).write_text(head + text)
    return str(folder / name)


def declared(path, part="train", **scope):
    return declare(Reference(path=path, scope=Scope(split_part=part, **scope)))


def data_sets(tree):
    if isinstance(tree, Reference):
        return [tree]
    children = tree.children if isinstance(tree, DeclaredBlend) else tree.members
    return [found for child in children for found in data_sets(child)]


@pytest.mark.parametrize(
    ("head", "text", "says"),
    [
        (FIRST, "splits:\n  train:\n    blend: []\n", "m.yaml:4: split 'train': expected `datasets:`"),
        (
            FIRST,
            "splits:\n  train:\n    datasets: []\n    path: a\n",
            "m.yaml:6: split 'train': path is for one data set",
        ),
        (
            FIRST,
            "splits:\n  train:\n    datasets:\n      - path: a\n        aux: {x: b}\n",
            "m.yaml:7: data set: unknown key 'aux'",
        ),
        (FIRST, "splits:\n  train:\n    datasets:\n      - weight: 2\n", "m.yaml:6: data set: expected `path:`"),
        (FIRST, "splits: {train: {datasets: {a: b}}}\n", "m.yaml:3: datasets: expected a list, got a mapping with a"),
        (
            SECOND,
            "splits:\n  train:\n    blend: [{path: a}]\n    subset: {range: [0, 10]}\n",
            "m.yaml:6: subset: range: [0, 10]: sample numbers are for a single data set only",
        ),
        (
            SECOND,
            "splits:\n  train:\n    path: inner.yaml\n    subset: {range: [5, end]}\n",
            "m.yaml:6: subset: range: [5, end]: sample numbers are for a single data set only",
        ),
        (SECOND, "splits:\n  train:\n    path: a\n    subset: [0%, 101%]\n", "m.yaml:6: subset: range: got '101%'"),
        (SECOND, "splits:\n  train:\n    path: inner.yaml\n    aux: {x: y}\n", "m.yaml:6: aux is for data sets, but "),
        (
            SECOND,
            "splits:\n  train:\n    blend: [{path: a}]\n    aux: {x: y}\n",
            "m.yaml:6: split 'train': aux is for one",
        ),
        (SECOND, "aux: {x: y}\nsplits: {train: {path: a}}\n", "m.yaml:3: metadataset: aux is for one data set"),
        (SECOND, "splits: {train: {path: missing.yaml}}\n", "missing.yaml: no such folder or file"),
        (
            SECOND,
            "splits:\n  train:\n    blend: []\n    subflavors: {}\n",
            "m.yaml:6: split 'train': subflavors is for one data set: write it beside the `path:`",
        ),
    ],
)
def test_mistakes_are_named(tmp_path, head, text, says):
    write(tmp_path, "splits: {train: {path: a}}\n", "inner.yaml")
    with pytest.raises(ConfigError, match=re.escape(says)):
        declared(write(tmp_path, text, head=head))


def test_the_first_format_is_a_list_of_data_sets_with_weights(tmp_path):
    path = write(
        tmp_path,
        "splits:\n  train:\n    datasets:\n      - {weight: 5, path: coco, subflavors: {a: 1}}\n"
        "      - {path: coyo, split_part: all, subflavor: old, shuffle_over_epochs_multiplier: 3}\n"
        "  val:\n    datasets:\n      - {path: coco, split_config: other.yaml}\n",
        head=FIRST,
    )
    blend = declared(path)
    assert isinstance(blend, DeclaredBlend) and not blend.epochized
    assert blend.weights == (5.0, 1.0)
    coco, coyo = data_sets(blend)
    assert (coco.path, coco.scope.split_part, coco.scope.subflavors) == (f"{tmp_path}/coco", "train", {"a": 1})
    assert (coyo.scope.split_part, coyo.scope.subflavors) == ("all", {"__subflavor__": "old"})
    assert (coco.scope.epochs_per_shuffle, coyo.scope.epochs_per_shuffle) == (1, 3)
    (val,) = data_sets(declared(path, "val"))
    assert val.text("split_config") == "other.yaml"


def test_either_format_may_hold_the_other_and_one_without_head_is_of_the_first(tmp_path):
    write(tmp_path, "splits: {train: {datasets: [{path: a}, {path: second.yaml}]}}\n", "first.yaml", "")
    write(tmp_path, "splits: {train: {blend: [{path: b}, {path: c}]}}\n", "second.yaml")
    path = write(tmp_path, "splits: {train: {path: first.yaml}}\n")
    assert [found.path for found in data_sets(declared(path))] == [f"{tmp_path}/{name}" for name in "abc"]


def test_epochs_are_multiplied_on_the_way_down(tmp_path):
    write(
        tmp_path,
        "splits:\n  train:\n    blend:\n      - {path: a, shuffle_over_epochs_multiplier: 3}\n"
        "      - {path: b, shuffle_over_epochs_multiplier: -1}\n"
        "      - {path: c, shuffle_over_epochs_multiplier: null}\n      - {path: d}\n",
        "inner.yaml",
    )
    path = write(tmp_path, "splits: {train: {path: inner.yaml, shuffle_over_epochs_multiplier: 2}}\n")
    assert [found.scope.epochs_per_shuffle for found in data_sets(declared(path))] == [6, -1, None, 2]


def test_ranges_are_nested(tmp_path):
    write(
        tmp_path,
        "splits:\n  train:\n    subset: {range: [0%, 50%]}\n    blend:\n"
        "      - {path: a, subset: {range: [20%, 60%]}}\n      - {path: b, subset: {range: [100, end]}}\n"
        "      - {path: c}\n",
        "inner.yaml",
    )
    path = write(tmp_path, "splits: {train: {path: inner.yaml, subset: {range: [50%, 100%]}}}\n")
    ranges = [found.scope.subset for found in data_sets(declared(path))]
    assert [subset.absolute for subset in ranges] == [None, (100, None), None]
    shares = [subset.relative for subset in ranges]
    assert [pytest.approx(share) for share in shares] == [(0.3, 0.4), (0.25, 0.5), (0.25, 0.5)]
    assert [round(bound) for bound in ranges[1].resolve(500)] == [200, 300]


def test_a_join_takes_range_and_epochs_as_a_whole(tmp_path):
    path = write(
        tmp_path,
        "splits:\n  train:\n    join: [{path: a}, {path: b, nonmatch: skip}]\n"
        "    joiner: {__module__: megatron.energon, __class__: TextSample}\n"
        "    subset: {range: [0, 5]}\n    subflavors: {x: 1}\n    shuffle_over_epochs_multiplier: 2\n",
    )
    join = declared(path)
    assert not isinstance(join, (Reference, DeclaredBlend))
    assert join.scope.subset == SubsetRange(absolute=(0, 5))
    assert join.scope.epochs_per_shuffle == 2
    assert [member.scope.subset for member in join.members] == [None, None]
    assert [member.scope.subflavors for member in join.members] == [{"x": 1}] * 2


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
    assert located(text, file) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [("ftp://a", "ftp://a: unknown kind of URL"), ("$NOWHERE/coco", r"\$NOWHERE/coco: the environment variable NOWH")],
)
def test_what_is_no_path_is_named_with_file_and_line(text, told):
    node = parse_yaml(f"path: {text}", LOCAL)
    with pytest.raises(ConfigError, match=rf"blend\.yaml:1: {told}"):
        read_reference(node, LOCAL, Scope(split_part="train"))
