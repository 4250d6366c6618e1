"""The files of a preparation replace those of before together, and one process at a time prepares a folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.prepare import commit
from bridge_data.prepare.commit import committing, preparing_alone, scratch_folder
from bridge_data.shards.metadata import PREPARING, meta_folder


def test_files_appear_together(tmp_path: Path) -> None:
    meta = tmp_path / ".nv-meta"
    with committing(meta) as temporary:
        temporary("a").write_text("1")
        temporary("b").write_text("2")
        assert not (meta / "a").exists()
    assert {path.name: path.read_text() for path in meta.iterdir()} == {"a": "1", "b": "2"}


def test_a_failure_leaves_what_was_there_and_no_folder_that_was_not(tmp_path: Path) -> None:
    meta = tmp_path / ".nv-meta"
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), committing(meta) as temporary:
            temporary("a").write_text("new")
            raise ZeroDivisionError
        assert meta.exists() == (meta / "a").exists()
        with committing(meta) as temporary:
            temporary("a").write_text("old")
    assert [path.read_text() for path in meta.iterdir()] == ["old"]


def test_a_data_set_of_which_some_files_are_replaced_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = tmp_path / ".nv-meta"
    replace = os.replace

    def killed(source: Path, target: Path) -> None:
        replace(source, target)
        if target.name == "a":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), committing(meta) as temporary:
        temporary("a").write_text("1")
        temporary("b").write_text("2")
        patch.setattr(commit.os, "replace", killed)
    assert (meta / PREPARING).exists() and not (meta / "b").exists()
    with pytest.raises(ConfigError, match=r"is being prepared now, or was until that was interrupted.*again"):
        meta_folder(tmp_path)
    with committing(meta) as temporary:
        temporary("b").write_text("2")
    assert meta_folder(tmp_path) == meta and not (meta / PREPARING).exists()


def test_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    left = [tmp_path / ".nv-meta/.index.sqlite.123.tmp", tmp_path / "in/.a.tar.idx.99.tmp"]
    kept = [tmp_path / ".nv-meta/index.sqlite", tmp_path / "in/a.tar", tmp_path / "in/.hidden.tmp"]
    for path in left + kept:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    with scratch_folder(tmp_path / "in", "packing") as scratch:
        shutil.copytree(scratch, left_folder := scratch.with_name(f"{scratch.name}.99.tmp"))
    (left_folder / "b.tar").touch()
    left += [left_folder, scratch]
    with preparing_alone(tmp_path) as remove_temporary:
        remove_temporary([tmp_path / ".nv-meta", tmp_path / "in", tmp_path / "none"])
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in kept)


@pytest.mark.processes
def test_another_process_waits_in_vain_and_a_killed_one_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"from bridge_data.prepare.commit import preparing_alone\nimport time\nfrom pathlib import Path\n\
with preparing_alone(Path({str(tmp_path)!r})):\n    print('held', flush=True)\n    time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        monkeypatch.setattr(commit, "PATIENCE_S", 0.1)
        with pytest.raises(DatasetError, match="another process is preparing it"), preparing_alone(tmp_path):
            pass
        other.kill()
        other.wait()
    with preparing_alone(tmp_path):
        pass
