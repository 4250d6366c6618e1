from pathlib import Path

import pytest

from bridge_data.shards.media_metadata import ImageMetadata, MediaIndex
from tests.tools.cli.conftest import Run
from tests.tools.cli.test_prepare_command import QUIET


def test_a_folder_of_files(run: Run, raw: Path) -> None:
    (raw / "bad.png").write_bytes(b"no picture")
    result = run("prepare-media", raw, "--media-metadata-by-extension", "--no-progress")
    assert result.exit_code == 0, result.output
    assert f"{raw}: metadata of 12 media files stored" in result.output
    assert "left out, for it cannot be read: 1 media file\n  bad.png: not a readable image" in result.stderr
    assert MediaIndex.open(raw).get("000001.png") == ImageMetadata(width=41, height=30, format="PNG", mode="RGB")
    assert "13 had not changed" in run("prepare-media", raw, "--media-metadata-by-extension", "--no-progress").output


def test_a_prepared_data_set(run: Run, tars: Path) -> None:
    run("prepare", tars, *QUIET, "--split-ratio", "1,0,0")
    assert run("prepare-media", tars, "--media-metadata-by-glob", "*.png", "--num-workers", 2).exit_code == 0
    assert MediaIndex.open(tars).get("000012.png").width == 52


def test_in_one_go_with_prepare(run: Run, tars: Path) -> None:
    result = run("prepare", tars, *QUIET, "--split-ratio", "1,0,0", "--media-metadata-by-header")
    assert result.exit_code == 0, result.output
    assert "metadata of 12 media files stored" in result.output
    assert MediaIndex.open(tars).get("000012.png").width == 52


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        ("prepare-media", [], "Give exactly one of"),
        ("prepare-media", ["--media-metadata-by-header", "--media-metadata-by-extension"], "Give exactly one of"),
        ("prepare-media", ["--media-metadata-by-header", "--num-workers", "0"], "num_workers=0: expected at least 1"),
        ("prepare", ["--media-metadata-by-header", "--tar-index-only"], "run `bridge-data prepare-media`"),
    ],
)
def test_wrong_flags(run: Run, raw: Path, command: str, flags: list[str], message: str) -> None:
    result = run(command, raw, *flags)
    assert result.exit_code == 1
    assert message in result.stderr
