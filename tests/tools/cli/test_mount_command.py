from pathlib import Path

from tests.tools.cli.conftest import Run
from tests.tools.cli.test_prepare_command import QUIET


def test_one_layout_at_a_time(run: Run, tmp_path: Path) -> None:
    result = run("mount", tmp_path, tmp_path / "view", "--sample-folders", "--shard-folders")
    assert (result.exit_code, result.stderr) == (1, "error: --sample-folders and --shard-folders: give one of them\n")


def test_an_unprepared_folder(run: Run, tmp_path: Path) -> None:
    result = run("mount", tmp_path, tmp_path / "view")
    assert result.exit_code == 1
    assert "not a prepared data set" in result.stderr
    assert not (tmp_path / "view").exists()


def test_a_folder_that_cannot_be_mounted_on(run: Run, tars: Path) -> None:
    run("prepare", tars, *QUIET, "--split-ratio", "1,0,0")
    result = run("mount", tars, tars / "data-000000.tar" / "view")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
