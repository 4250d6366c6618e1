from pathlib import Path

import pytest

from tests.cli.runner import run_command
from tests.object_store import Bucket
from tests.prepare.files import picture
from tests.prepared import write_blend, write_dataset, write_texts

IMAGES = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "png", "caption": "__key__"},
}


@pytest.mark.parametrize(
    "arguments",
    [
        ("prepare", "s3://bucket/a", "--media", "extension"),
        ("check", "s3://bucket/a"),
        ("info", "s3://bucket/a", "--samples", 1),
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


@pytest.mark.parametrize("command", [("check",), ("info", "--samples", 1)])
def test_limits_are_named_by_what_they_refuse(command: tuple[object, ...], tmp_path: Path) -> None:
    sample = {"__key__": "k", "png": picture(size=(100, 90), mode="L")}
    data = write_dataset(tmp_path / "a", [sample], definition=IMAGES)
    refused = run_command(*command, data, "--limits", "max_image_pixels=8_999").output
    assert "100 x 90 pixels are more than the 8999 allowed" in " ".join(refused.split())
    assert "Limits(max_image_pixels)" in refused
    taken = run_command(*command, data, "--limits", "max_image_pixels=9_000")
    assert taken.exit_code == 0 and "Limits" not in taken.output


def test_limits_hold_for_metadata_patterns_and_lines_too(tmp_path: Path) -> None:
    data, lines = write_texts(tmp_path / "a", 3), tmp_path / "a.jsonl"
    lines.write_text('{"a": 1}\n')
    Path(f"{lines}.split.yaml").write_text("split_parts: {train: [0, 1]}")
    parts = ("--non-interactive", "--force-overwrite", "--split-parts", "train:data-{0000..0009}.tar")
    for command, limits, refused in (
        (("check", data), "max_document_bytes=5,max_shards=7", "max_document_bytes"),
        (("info", data, "--samples", 1), "max_document_bytes=5,max_shards=7", "max_document_bytes"),
        (("info", data), "max_document_bytes=5,max_shards=7", "max_document_bytes"),
        (("prepare", data, "--tar-index-only"), "max_document_bytes=5", "max_document_bytes"),
        (("prepare", data, *parts), "max_shards=9", "max_shards"),
        (("prepare", data, *parts), "max_shards=10", None),
        (("prepare", lines), "max_document_bytes=5", "max_document_bytes"),
        (("prepare", lines), "max_document_bytes=500", None),
    ):
        done = run_command(*command, "--limits", limits)
        assert (done.exit_code, f"Limits({refused})" in done.output) == ((0, False) if refused is None else (1, True))


@pytest.mark.parametrize(
    "text", ["max_json=3", "max_shards", "max_shards=-1", "max_shards=1,max_shards=2", "max_shards=x"]
)
def test_wrong_limits_are_refused(text: str, tmp_path: Path) -> None:
    done = run_command("info", write_texts(tmp_path / "a", 3), "--limits", text)
    assert done.exit_code == 1
    assert f"--limits {text}: got" in done.output and "max_image_pixels=200000000" in done.output
    assert "expected an integer of at least 1" in run_command("info", tmp_path, "--limits", "max_shards=0").output
