import io
import threading
from pathlib import Path

import pytest
from PIL import Image

from bridge_data.tools.cli import terminal
from bridge_data.tools.cli.terminal import progress_bar
from tests.object_store import Bucket
from tests.prepared import write_blend, write_dataset, write_texts
from tests.tools.cli.runner import run_command

IMAGES = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "png", "caption": "__key__"},
}


def test_it_shows_what_is_done(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "SHOWN_AFTER_S", 0)
    with progress_bar("checking", "samples", shown=True) as show:
        show(0, 8)
        show(8, 8)
    shown = capsys.readouterr().err
    assert "checking: 100%" in shown
    assert "8/8" in shown


def test_it_shows_nothing_of_what_is_soon_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "SHOWN_AFTER_S", 3600)
    with progress_bar("checking", "samples", shown=True) as show:
        show(0, 8)
        show(8, 8)
    assert capsys.readouterr().err == ""


def test_it_starts_nothing_before_the_first_call_and_shows_nothing_unasked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "SHOWN_AFTER_S", 0)
    before = threading.active_count()
    with progress_bar("checking", "samples", shown=False) as show:
        assert threading.active_count() == before
        show(1, None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("prepare-media", "s3://bucket/a", "--media-metadata-by-extension"),
        ("lint", "s3://bucket/a"),
        ("preview", "s3://bucket/a"),
        ("convert", "s3://bucket/a", "here"),
    ],
)
def test_what_takes_data_on_a_disk_says_so(arguments: tuple[str, ...]) -> None:
    done = run_command(*arguments)
    assert done.exit_code == 1
    assert f"s3://bucket/a: `main {arguments[0]}` takes data on a disk" in done.output


def test_info_reads_from_a_store(bucket: Bucket) -> None:
    write_texts(bucket.folder / "a", 120, ratio="2,1,0")
    write_blend(bucket.folder / "blend.yaml", {"a": 1}, val="a")
    shown = run_command("info", f"{bucket.url}/a").output
    assert f"data set     {bucket.url}/a" in shown and "120 samples in 3 shards" in shown and "index.bridge" in shown
    assert "120 samples" not in (shown := run_command("info", f"{bucket.url}/blend.yaml").output)
    assert f"{bucket.url}/a [train]" in shown
    assert run_command("info", f"{bucket.url}/nowhere").exit_code == 1


@pytest.mark.parametrize("command", ["lint", "preview"])
def test_limits_are_named_by_what_they_refuse(command: str, tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("L", (100, 90)).save(file, "PNG")
    data = write_dataset(tmp_path / "a", [{"__key__": "k", "png": file.getvalue()}], definition=IMAGES)
    refused = run_command(command, data, "--limits", "max_image_pixels=8_999")
    assert "100 x 90 pixels are more than the 8999 allowed" in " ".join(refused.output.split())
    assert "Limits(max_image_pixels)" in refused.output
    taken = run_command(command, data, "--limits", "max_image_pixels=9_000")
    assert taken.exit_code == 0 and "Limits" not in taken.output


def test_limits_hold_for_metadata_too(tmp_path: Path) -> None:
    data = write_texts(tmp_path / "a", 3)
    for command in (["lint"], ["preview"], ["info"], ["prepare", "--tar-index-only"]):
        done = run_command(*command, data, "--limits", "max_document_bytes=5,max_shards=7")
        assert done.exit_code == 1
        assert "Limits(max_document_bytes)" in done.output


def test_the_limits_of_a_preparation_hold_for_patterns_and_lines(tmp_path: Path) -> None:
    data = write_texts(tmp_path / "a", 3)
    arguments = ["--non-interactive", "--force-overwrite", "--split-parts", "train:data-{0000..0009}.tar"]
    refused = run_command("prepare", data, *arguments, "--limits", "max_shards=9")
    assert refused.exit_code == 1 and "Limits(max_shards)" in refused.output
    assert run_command("prepare", data, *arguments, "--limits", "max_shards=10").exit_code == 0
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"a": 1}\n')
    Path(f"{lines}.split.yaml").write_text("split_parts: {train: [0, 1]}")
    refused = run_command("prepare", lines, "--limits", "max_document_bytes=5")
    assert refused.exit_code == 1 and "Limits(max_document_bytes)" in refused.output
    assert run_command("prepare", lines, "--limits", "max_document_bytes=500").exit_code == 0


@pytest.mark.parametrize(
    "text", ["max_json=3", "max_shards", "max_shards=-1", "max_shards=1,max_shards=2", "max_shards=x"]
)
def test_wrong_limits_are_refused(text: str, tmp_path: Path) -> None:
    done = run_command("info", write_texts(tmp_path / "a", 3), "--limits", text)
    assert done.exit_code == 1
    assert f"--limits {text}: got" in done.output and "max_image_pixels=200000000" in done.output
    assert "expected an integer of at least 1" in run_command("info", tmp_path, "--limits", "max_shards=0").output
