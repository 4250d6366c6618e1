"""What metadatasets declare, of both formats: nothing but YAML files is there."""

import concurrent.futures
import sys
import threading

import pytest

from bridge_data.errors import ConfigError
from bridge_data.plan.declared import DeclaredBlend, DeclaredJoin, LoadCache, Reference, Scope, declare
from bridge_data.shards import SubsetRange

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
    children = tree.members if isinstance(tree, DeclaredJoin) else tree.children
    return [found for child in children for found in data_sets(child)]


def refused(path, *says, **scope):
    with pytest.raises(ConfigError) as error:
        declared(path, **scope)
    for words in says:
        assert words in str(error.value)


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


def test_a_file_without_head_is_of_the_first_format(tmp_path):
    path = write(tmp_path, "splits: {train: {datasets: [{path: coco}]}}\n", head="")
    assert [found.path for found in data_sets(declared(path))] == [f"{tmp_path}/coco"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("splits:\n  train:\n    blend: []\n", "m.yaml:4: split 'train': expected `datasets:`"),
        ("splits:\n  train:\n    datasets: []\n    path: a\n", "m.yaml:6: split 'train': unknown key 'path'"),
        (
            "splits:\n  train:\n    datasets:\n      - path: a\n        aux: {x: b}\n",
            "m.yaml:7: data set: unknown key 'aux'",
        ),
        ("splits:\n  train:\n    datasets:\n      - weight: 2\n", "m.yaml:6: data set: expected `path:`"),
        ("splits: {train: {datasets: {a: b}}}\n", "m.yaml:3: datasets: expected a list, got a mapping with a"),
    ],
)
def test_mistakes_in_the_first_format_are_named(tmp_path, text, says):
    refused(write(tmp_path, text, head=FIRST), says)


def test_either_format_may_hold_the_other(tmp_path):
    write(tmp_path, "splits: {train: {datasets: [{path: a}, {path: second.yaml}]}}\n", "first.yaml", FIRST)
    write(tmp_path, "splits: {train: {blend: [{path: b}, {path: c}]}}\n", "second.yaml")
    path = write(tmp_path, "splits: {train: {path: first.yaml}}\n")
    assert [found.path.rpartition("/")[2] for found in data_sets(declared(path))] == ["a", "b", "c"]


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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "splits:\n  train:\n    blend: [{path: a}]\n    subset: {range: [0, 10]}\n",
            "m.yaml:6: subset: range: [0, 10]: sample numbers are for a single data set only",
        ),
        (
            "splits:\n  train:\n    path: inner.yaml\n    subset: {range: [5, end]}\n",
            "m.yaml:6: subset: range: [5, end]: sample numbers are for a single data set only",
        ),
        ("splits:\n  train:\n    path: a\n    subset: [0%, 101%]\n", "m.yaml:6: subset: range: got '101%'"),
        (
            "splits:\n  train:\n    path: inner.yaml\n    aux: {x: y}\n",
            "m.yaml:6: aux is for data sets, but ",
        ),
        ("splits: {train: {path: missing.yaml}}\n", "missing.yaml: no such folder or file"),
        ("splits:\n  train:\n    blend: []\n    subflavors: {}\n", "m.yaml:6: split 'train': unknown key 'subflavors'"),
    ],
)
def test_mistakes_in_the_second_format_are_named(tmp_path, text, says):
    write(tmp_path, "splits: {train: {path: a}}\n", "inner.yaml")
    refused(write(tmp_path, text), says)


def test_a_join_takes_range_and_epochs_as_a_whole(tmp_path):
    path = write(
        tmp_path,
        "splits:\n  train:\n    join: [{path: a}, {path: b, nonmatch: skip}]\n"
        "    joiner: {__module__: megatron.energon, __class__: TextSample}\n"
        "    subset: {range: [0, 5]}\n    subflavors: {x: 1}\n    shuffle_over_epochs_multiplier: 2\n",
    )
    join = declared(path)
    assert isinstance(join, DeclaredJoin)
    assert join.scope.subset == SubsetRange(absolute=(0, 5))
    assert join.scope.epochs_per_shuffle == 2
    assert [member.scope.subset for member in join.members] == [None, None]
    assert [member.scope.subflavors for member in join.members] == [{"x": 1}] * 2


def test_a_load_makes_each_value_once_in_all_its_threads():
    cache, made, begun = LoadCache(), [], threading.Barrier(4)

    def make():
        made.append(1)
        return made

    def get():
        begun.wait()
        return cache.get("key", make)

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        values = [future.result() for future in [threads.submit(get) for _ in range(4)]]
    assert made == [1] and all(value is made for value in values)


def test_a_failure_is_shared_by_the_threads_that_wait_for_the_value():
    cache, made, begun = LoadCache(), [], threading.Barrier(4)

    def waits(frame):
        while frame is not None and frame.f_code is not concurrent.futures.Future.result.__code__:
            frame = frame.f_back
        return frame is not None and frame.f_back.f_code is LoadCache.get.__code__

    def make():
        made.append(1)
        while sum(map(waits, sys._current_frames().values())) < 3:
            threading.Event().wait(0.001)
        raise ConfigError("broken")

    def get():
        begun.wait()
        return cache.get("key", make)

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        errors = [future.exception() for future in [threads.submit(get) for _ in range(4)]]
    assert made == [1]
    assert [str(error) for error in errors] == ["broken"] * 4


def test_what_failed_is_tried_again():
    cache = LoadCache()
    with pytest.raises(ZeroDivisionError):
        cache.get("key", lambda: 1 // 0)
    assert cache.get("key", lambda: 7) == 7
