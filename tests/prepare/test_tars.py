import errno
import json
import os
import struct
import tarfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge_data.data import PreparedDataset, open_shards
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.prepare import commit
from bridge_data.prepare.tars import PrepareConfig, find_shards, prepare, refresh_index, tars_beside
from bridge_data.task.stores.part_reader import PartReader
from tests.data.tars import prepare_by_ratio, write_shards, write_tar
from tests.prepare.same_indexes import assert_same_indexes, copy_unprepared, rows_of
from tests.prepared import write_dataset_yaml

ONE = PrepareConfig(num_workers=1)


def test_writes_what_energon_writes_with_any_number_of_processes(tmp_path: Path) -> None:
    write_shards(tmp_path / "one")
    copy_unprepared(tmp_path / "one", tmp_path / "three")
    prepare_by_ratio(tmp_path / "one", "2,1,1")
    prepare_by_ratio(tmp_path / "three", "2,1,1", num_workers=3)
    assert_same_indexes(tmp_path / "one", tmp_path / "three")
    meta = tmp_path / "one/.nv-meta"
    names = [".info.json", "index.bridge", "index.sqlite", "index.uuid", "split.yaml"]
    assert sorted(path.name for path in meta.iterdir()) == names
    counts = {f"data-00000{number}.tar": 5 for number in range(4)}
    assert json.loads((meta / ".info.json").read_text()) == {"energon_version": "7.4.1", "shard_counts": counts}
    parts = {"train": ["data-{000000..000001}.tar"], "val": ["data-000002.tar"], "test": ["data-000003.tar"]}
    assert yaml.safe_load((meta / "split.yaml").read_text()) == {"split_parts": parts, "exclude": []}
    uuid.UUID((meta / "index.uuid").read_text())
    rows = rows_of(tmp_path / "one")
    for shard in range(4):
        with tarfile.open(tmp_path / f"one/data-00000{shard}.tar") as tar:
            members = tar.getmembers()
            offsets = [member.offset for member in members[::2]]  # two parts a sample
            ends = [*offsets[1:], tar.offset]
        index = (tmp_path / f"one/data-00000{shard}.tar.idx").read_bytes()
        assert index == struct.pack("<6Q", *offsets, ends[-1])
        samples = [(f"{5 * shard + n:06d}", n, offsets[n], ends[n] - offsets[n]) for n in range(5)]
        assert [row[1:] for row in rows["samples"] if row[0] == shard] == samples
        found = [row[1:] for row in rows["sample_parts"] if row[0] == shard]
        expected = [(at // 2, m.name.split(".")[1], m.offset_data, m.size) for at, m in enumerate(members)]
        assert found == sorted(expected)


def test_tars_that_were_added_are_told_where_indexes_alone_are_renewed(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path)
    assert (
        refresh_index(tmp_path, ONE).notes == () and tars_beside(tmp_path, ["data-000000.tar"])[0] == "data-000001.tar"
    )
    write_tar(tmp_path / "more/a.tar", {"1.txt": b""})
    done = refresh_index(tmp_path, ONE)
    (note,) = done.notes
    assert note.startswith("not in the data set") and "1 tar of the folder, such as more/a.tar" in note
    assert len(done.shard_counts) == 4


def test_an_older_info_yaml_is_kept_in_step_and_gets_a_json(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / ".nv-meta").mkdir()
    counts = {f"data-00000{number}.tar": 5 for number in range(4)}
    (tmp_path / ".nv-meta/.info.yaml").write_text(yaml.safe_dump({"shard_counts": counts}))
    refresh_index(tmp_path, ONE)
    assert json.loads((tmp_path / ".nv-meta/.info.json").read_text())["shard_counts"] == counts
    write_tar(tmp_path / "data-000000.tar", {"1.txt": b""})
    prepare_by_ratio(tmp_path)
    assert yaml.safe_load((tmp_path / ".nv-meta/.info.yaml").read_text())["shard_counts"]["data-000000.tar"] == 1
    with pytest.raises(ConfigError, match="no: no such folder"):
        refresh_index(tmp_path / "no", ONE)


def test_shards_are_files_and_links_to_files_and_sorted_folder_by_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b/0.tar", "a-x.tar", "a/1.tar", "a/0.tar", "a/notes.txt"):
        write_tar(tmp_path / name, {"1.txt": b""})
    (tmp_path / "a/2.tar").mkdir()
    (tmp_path / "a/3.tar").symlink_to(tmp_path / "gone")
    (tmp_path / "a/4.tar").symlink_to(tmp_path / "a/0.tar")
    (tmp_path / "c").symlink_to(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    with commit.scratch_folder(tmp_path, "packing") as scratch:
        write_tar(scratch / "b.tar", {"2.txt": b"two"})  # no part of the data set yet
        found = ["a/0.tar", "a/1.tar", "a/4.tar", "a-x.tar", "b/0.tar"]
        assert find_shards(Path()) == find_shards(tmp_path) == found
    assert find_shards(tmp_path, "^a/|x") == ["b/0.tar"]


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        write_tar(tmp_path / name / "data.tar", {f"{name}.txt": b""})
    listed = os.scandir

    def scandir(path: str) -> Any:
        if path.endswith("/b"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DatasetError, match="/b: cannot be listed: Permission denied"):
        find_shards(tmp_path)


def test_folders_without_shards(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    write_tar(tmp_path / "full/a.tar", {})
    for name, exclude, told in (
        ("empty", None, r"there are no \.tar files.*bridge-data convert"),
        ("no", None, "no such folder"),
        ("file", None, "expected a folder of tars"),
        ("full", "tar", "leaves out all 1 tars"),
    ):
        with pytest.raises(ConfigError, match=told):
            find_shards(tmp_path / name, exclude)


def test_odd_splits_are_told_or_refused(tmp_path: Path) -> None:
    write_shards(tmp_path)
    with pytest.raises(ConfigError, match=r"split part 'a' names 'data-000000\.tar' 2 times: name it once"):
        prepare(tmp_path, lambda names: {"a": [names[0], names[0]]}, ONE)
    with pytest.raises(ConfigError, match=r"the list of tars names 'data-000001\.tar' 2 times"):
        prepare(tmp_path, lambda names: {"a": list(names)}, ONE, names=["data-000001.tar"] * 2)
    assert not (tmp_path / ".nv-meta").exists()
    found = prepare(tmp_path, lambda names: {"a": list(names[:2]), "b": list(names[1:3])}, ONE)
    assert found.notes == ("1 of 4 shards are in no split part", "1 shards are in more than one split part")


def test_exclusions_that_are_dropped_are_told(tmp_path: Path) -> None:
    keys = write_shards(tmp_path)
    assert prepare_by_ratio(tmp_path).notes == ()
    split = tmp_path / ".nv-meta/split.yaml"
    excluded = f"data-000000.tar/{keys['data-000000.tar'][0]}"
    split.write_text(split.read_text().replace("exclude: []", f"exclude: [{excluded}, data-000001.tar]"))
    (note,) = prepare_by_ratio(tmp_path).notes
    assert note.startswith(f"the previous split.yaml excluded 2 shards or samples, such as {excluded!r}; the new one")
    assert prepare_by_ratio(tmp_path).notes == ()


@pytest.mark.parametrize("action", [prepare_by_ratio, refresh_index])
def test_what_another_process_prepares_meanwhile_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Callable[[Path], object]
) -> None:
    write_tar(tmp_path / "b.tar", {"1.txt": b"one"})
    prepare_by_ratio(tmp_path, "1,0,0")
    lock, waits = commit._lock, True

    def wait_and_lock(*arguments: Any) -> bool:
        nonlocal waits
        if waits:
            waits = False
            write_tar(tmp_path / "a.tar", {"2.txt": b"two"})
            prepare_by_ratio(tmp_path, "1,0,0")
        return lock(*arguments)

    monkeypatch.setattr(commit, "_lock", wait_and_lock)
    action(tmp_path)
    shards = PreparedDataset.open(tmp_path)
    assert shards.index is not None and list(shards.index.entries) == list(shards.shard_counts) == ["b.tar", "a.tar"]
    parts = PartReader(tmp_path)
    assert parts.read(parts.find("1.txt")) == b"one"


def test_the_index_is_refreshed_and_the_rest_left_alone(tmp_path: Path) -> None:
    write_shards(tmp_path)
    prepare_by_ratio(tmp_path)
    meta = tmp_path / ".nv-meta"
    write_dataset_yaml(tmp_path, {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}, "dataset.yaml")
    (meta / "split.yaml").write_text("split_parts: {train: [data-000000.tar]}")
    kept = {name: (meta / name).read_bytes() for name in (".info.json", "split.yaml", "dataset.yaml")}
    for path in [*tmp_path.glob("*.idx"), meta / "index.bridge", meta / "index.sqlite", meta / "index.uuid"]:
        path.unlink()
    assert refresh_index(tmp_path, ONE).num_scanned == 4
    assert {name: (meta / name).read_bytes() for name in kept} == kept
    assert open_shards(tmp_path, "train").index is not None
    assert len(list(tmp_path.glob("*.idx"))) == 4
