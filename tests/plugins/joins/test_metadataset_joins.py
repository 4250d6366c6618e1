"""Joins are tested against a dict: what the index of a join says is what looking up every key would."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge_data import prepare_metadataset
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.plugins.joins import metadataset_joins
from tests.data.joins import dataset, join, narrowed, rows
from tests.plan.joins import BY_FIELDS, joined, metadataset, own, texts


def test_a_sample_without_match_is_skipped_or_joined_with_none(tmp_path: Path) -> None:
    a = dataset(tmp_path / "a", [["1", "2"], ["3", "4"]])
    b, c = dataset(tmp_path / "b", [["4", "2"]]), dataset(tmp_path / "c", [["4", "1"]])
    index = join(tmp_path / "j", a, (b, "skip"), (c, "none"))
    assert rows(index) == [[1, 1, -1], [3, 0, 0]]
    assert (index.counts, index.num_left_out) == ([1, 1], 2)
    assert [member.num_missing for member in index.members] == [0, 2, 2]
    path = index.path
    before = path.stat()
    assert rows(join(tmp_path / "j", a, (b, "skip"), (c, "none"))) == rows(index)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert os.listdir(tmp_path / "j") == [path.name], "it is made once"


def test_a_sample_without_match_is_an_error_that_names_the_first(tmp_path: Path) -> None:
    a = dataset(tmp_path / "a", [["0", *map(str, range(10, 20))]])
    b = dataset(tmp_path / "b", [["0", "14"]])
    with pytest.raises(DatasetError) as caught:
        join(tmp_path / "j", a, (b, "error"))
    assert "has no sample for 9 of the 11 samples" in str(caught.value)
    assert "0.tar/10, 0.tar/11, 0.tar/12, 0.tar/13, 0.tar/15, ...; say `nonmatch: skip`" in str(caught.value)
    assert os.listdir(tmp_path / "j") == []


def test_excluded_samples_and_other_split_parts_are_not_there(tmp_path: Path) -> None:
    a = dataset(tmp_path / "a", [["1", "2", "3"], ["4"]], exclude=["0.tar/1"])
    b = dataset(tmp_path / "b", [["4", "3", "2", "1"], ["5"]], exclude=["0.tar/4", "0.tar/1"])
    assert rows(join(tmp_path / "j", a, (b, "none"))) == [[0, 1], [1, 0], [2, -1]]
    b = narrowed(tmp_path / "b", split_parts={"train": ["1.tar"]})
    assert rows(join(tmp_path / "i", a, (b, "none"))) == [[0, -1], [1, -1], [2, -1]]
    none = narrowed(tmp_path / "b", exclude=["1.tar/5"])
    assert rows(join(tmp_path / "k", a, (none, "none"))) == [[0, -1], [1, -1], [2, -1]]
    assert rows(join(tmp_path / "l", none, (a, "error"))) == []


@pytest.mark.parametrize("member", ["a", "b"])
def test_duplicate_keys_are_an_error(tmp_path: Path, member: str) -> None:
    """Preparing accepts them, but a join cannot tell which is meant."""
    keys = {"a": [["1", "2"], ["3"]], "b": [["1", "2"], ["3"]], member: [["1", "2"], ["3"], ["2", "1"]]}
    sets = {name: dataset(tmp_path / name, keys[name]) for name in "ab"}
    with pytest.raises(
        DatasetError,
        match=rf"/{member} \[train\]: duplicate key: 0.tar/(1|2) and 2.tar/\1, and 1 more:.*prepare .*--fix-duplicates",
    ):
        join(tmp_path / "j", sets["a"], (sets["b"], "none"))


@pytest.mark.processes
def test_what_a_killed_process_left_is_removed_and_one_that_works_is_waited_for(tmp_path: Path) -> None:
    a, b = dataset(tmp_path / "a", [["1"]]), dataset(tmp_path / "b", [["1"]])
    code = f"""
import os, sys, time
from pathlib import Path
from bridge_data.plugins.joins import metadataset_joins
from bridge_data.data import open_shards
from bridge_data.plugins.joins.joins import JoinMember

def write(*_):
    print("working", flush=True)
    time.sleep(60)

metadataset_joins._write = write
sets = [open_shards(Path({str(tmp_path)!r}) / name, "train") for name in "ab"]
metadataset_joins.make_join(Path({str(tmp_path / "j")!r}), [JoinMember(one, "error") for one in sets])
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "working\n"
        assert len(list((tmp_path / "j").glob(".joining.*"))) == 1
        threading.Timer(0.2, other.kill).start()
        path = join(tmp_path / "j", a, (b, "error")).path
    assert other.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path / "j") == [path.name]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.lists(st.integers(0, 40), min_size=1, unique=True), data=st.data())
def test_partitions_and_tasks_change_nothing(
    first: list[int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("join")
    monkeypatch.setattr(metadataset_joins, "TASK_SAMPLES", data.draw(st.sampled_from([1, 3, 100])))
    monkeypatch.setattr(metadataset_joins, "PARTITION_SAMPLES", data.draw(st.sampled_from([1, 5, 100])))
    second = data.draw(st.lists(st.integers(0, 40), min_size=1, unique=True))
    third = data.draw(st.lists(st.integers(0, 40), min_size=1, unique=True))
    skip = data.draw(st.sampled_from(["skip", "none"]))
    a, b, c = (
        dataset(folder / name, [[str(key) for key in keys[at : at + 7]] for at in range(0, len(keys), 7)])
        for name, keys in (("a", first), ("b", second), ("c", third))
    )
    index = join(folder / "j", a, (b, skip), (c, "none"), num_workers=data.draw(st.sampled_from([1, 1, 2])))
    places = [{key: number for number, key in enumerate(keys)} for keys in (second, third)]
    expected = [[number, *(place.get(key, -1) for place in places)] for number, key in enumerate(first)]
    assert rows(index) == [row for row in expected if skip == "none" or row[1] >= 0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts(tmp_path / "a", "abcd")
    texts(tmp_path / "b", "dcba")
    return tmp_path


JOIN = {"join": [{"path": "a"}, {"path": "b"}], "joiner": BY_FIELDS}


def test_joins_at_any_depth_are_prepared_where_they_stand(folder: Path) -> None:
    (folder / "sub").mkdir()
    turned = {"join": [{"path": "../b"}, {"path": "../a"}], "joiner": own("Nobody")}
    metadataset(folder / "sub" / "inner.yaml", {"blend": [turned, {"path": "../a"}]})
    path = metadataset(
        folder / "outer.yaml", {"blend_epochized": [{"blend_epochized": [JOIN]}, {"path": "sub/inner.yaml"}]}, test=None
    )
    first, second = prepare_metadataset(path)
    assert first.path.parent == folder / "outer.yaml.joins"
    assert second.path.parent == folder / "sub" / "inner.yaml.joins"
    assert [[member.path for member in index.members] for index in (first, second)] == [["a", "b"], ["../b", "../a"]]


def test_a_join_is_found_below_the_first_format_and_under_paths_with_variables(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA", str(folder))
    joined(folder / "j.yaml", [{"path": "${DATA}/a"}, {"path": "b"}])
    (folder / "first.yaml").write_text("splits: {train: {datasets: [{path: $DATA/j.yaml}, {path: a}]}}\n")
    (index,) = prepare_metadataset(folder / "first.yaml")
    assert index.path.parent == folder / "j.yaml.joins"
    assert load_plan(folder / "first.yaml").num_samples == 8


def test_each_split_has_its_own_index_and_equal_ones_are_shared(folder: Path) -> None:
    other = {"join": [{"path": "b"}, {"path": "a"}], "joiner": BY_FIELDS}
    path = metadataset(
        folder / "j.yaml", JOIN, val={**other, "split_part": "train"}, test={**JOIN, "split_part": "train"}
    )
    assert len(prepare_metadataset(path)) == 2
    assert load_plan(path, split_part="val", training=False).num_samples == 4


def test_what_is_of_no_use_any_more_is_removed(folder: Path) -> None:
    path = joined(folder / "j.yaml", JOIN["join"])
    (old,) = prepare_metadataset(path)
    joined(path, [{"path": "b"}, {"path": "a"}])
    (new,) = prepare_metadataset(path)
    assert os.listdir(folder / "j.yaml.joins") == [new.path.name] != [old.path.name]


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        ({"path": "j.yaml"}, ConfigError, "refers to itself"),
        ({"path": "other.yaml"}, ConfigError, "other.yaml:1: splits: no split 'train' is declared"),
        (
            {"join": [{"path": "a"}, {"path": "c"}], "joiner": BY_FIELDS},
            DatasetError,
            r"c \[train\]: has no sample for 2 of the 4 samples of .*0001.tar/c, data-0",
        ),
        ("j.yaml", ConfigError, r"expected a metadataset .yaml, found no such file"),
        ("a", ConfigError, r"expected a metadataset .yaml$"),
        ("x.yaml", ConfigError, r"x.yaml:1: splits: expected a mapping, got 1"),
    ],
)
def test_what_cannot_be_prepared_is_named(folder: Path, content: Any, error: type[Exception], says: str) -> None:
    texts(folder / "c", "ab")
    (folder / "other.yaml").write_text("splits: {val: {path: a}}\n")
    (folder / "x.yaml").write_text("splits: 1\n")
    path = folder / content if isinstance(content, str) else metadataset(folder / "j.yaml", content)
    with pytest.raises(error, match=says):
        prepare_metadataset(path)


def test_a_metadataset_without_joins_has_nothing_to_prepare(folder: Path) -> None:
    assert prepare_metadataset(metadataset(folder / "j.yaml", {"path": "a"})) == []
    assert sorted(os.listdir(folder)) == ["a", "b", "j.yaml"]
