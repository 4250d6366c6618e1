import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bridge_data import get_loader
from bridge_data.data.metadata import BRIDGE_INDEX, META_FOLDER
from bridge_data.energon import CaptioningWebdataset, get_savable_loader
from bridge_data.plan.source import alike, other_names
from tests.cli.runner import run_command
from tests.data.tars import write_tar
from tests.prepared import train_dataset, val_dataset

CAPTIONS = {"image": "jpg", "caption": "txt"}


def picture(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8 + number, 8)).save(file, "JPEG")
    return file.getvalue()


def written(folder: Path, samples: Sequence[Sequence[str]], field_map: dict[str, str], kind: str, **more: Any) -> str:
    """Prepare one shard of samples with these parts: a picture of the width 8 + the sample's number, or that number as
    text or JSON. Returns what `prepare` printed."""
    members = {}
    for number, parts in enumerate(samples):
        for at, part in enumerate(parts):
            ending = part.rpartition(".")[2].lower()
            text = json.dumps({"a": str(number)}) if ending == "json" else str(number)
            members[f"{number:03d}.{part}"] = (
                picture(number + 100 * at) if ending[0] == "j" and ending != "json" else text.encode()
            )
    write_tar(folder / "0.tar", members)
    flags = ("--split-ratio", "1,0,0", "--sample-type", kind, "--field-map", json.dumps(field_map))
    result = run_command("prepare", folder, "--non-interactive", *flags)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize(
    ("images", "texts"),
    [
        (["jpg", "JPG"], ["txt"]),
        (["JPG"], ["txt", "TXT", "Txt"]),
        (["jpg", "jpeg", "JPEG", "Jpg", "jPg", "jpe"], ["txt"]),
    ],
)
def test_endings_match_without_case_and_with_the_other_names_of_a_format(
    tmp_path: Path, images: list[str], texts: list[str], has_index: bool
) -> None:
    samples = [(images[n % len(images)], texts[n % len(texts)]) for n in range(24)]
    assert "have no" not in written(tmp_path, samples, CAPTIONS, "CaptioningSample")
    if not has_index:
        (tmp_path / META_FOLDER / BRIDGE_INDEX).unlink()
    for data in (train_dataset(tmp_path, repeat=False, num_lanes=1, batch_size=1), val_dataset(tmp_path, batch_size=1)):
        loader, widths = get_loader(data), {}
        for batch in loader:
            (text,), (source,) = batch.caption, batch.__sources__
            widths[int(text)] = batch.image.shape[-1]
            assert sorted(source.file_names) == sorted(f"{int(text):03d}.{part}" for part in samples[int(text)])
        assert widths == {n: 8 + n for n in range(24)} and not loader.skipped
    assert run_command("check", tmp_path).exit_code == 0


def test_samples_of_one_part_and_values_in_json_too(tmp_path: Path) -> None:
    for name, parts, access in (
        ("a", ["TXT"], "txt"),
        ("b", ["JSON", "json"], "json[a]"),
        ("c", ["Left.JSON"], "left.json[a]"),
    ):
        written(tmp_path / name, [(parts[n % len(parts)],) for n in range(9)], {"text": access}, "TextSample")
        loader = get_loader(train_dataset(tmp_path / name, repeat=False, num_lanes=1))
        assert sorted(text for batch in loader for text in batch.text) == [*"012345678"]


def test_factories_take_them_too(tmp_path: Path) -> None:
    written(tmp_path, [("JPEG", "TXT")] * 4, CAPTIONS, "CaptioningSample")
    data = CaptioningWebdataset(tmp_path, field_map=CAPTIONS, split_part="train", training=False)
    batches = [*get_savable_loader(val_dataset(data))]
    assert sorted(int(text) for batch in batches for text in batch.caption) == [0, 1, 2, 3]


def test_a_part_that_the_field_map_names_is_taken_and_of_two_others_none(tmp_path: Path) -> None:
    samples = [("JPG", "jpg", "txt"), ("jpg", "jpeg", "txt"), ("JPG", "jpeg", "txt"), ("jpeg", "txt")]
    told = written(tmp_path, samples, CAPTIONS, "CaptioningSample")
    assert "3 of 4 samples" in told and "0.tar/000 (JPG, jpg, txt)" in told
    loader = get_loader(val_dataset(tmp_path, batch_size=1))
    widths = {int(batch.caption[0]): batch.image.shape[-1] for batch in loader}
    assert widths == {0: 108, 1: 9, 3: 11} and dict(loader.skipped) == {"decode": 1}
    result = run_command("convert", tmp_path, tmp_path.with_name("out"), "--non-interactive", "--no-progress")
    assert result.exit_code == 1 and "'JPG'" in result.stderr and "'jpg'" in result.stderr


def test_what_samples_lack_is_told_before_training(tmp_path: Path) -> None:
    samples = [("jpg", "txt"), ("png", "txt"), ("jpg",), ("JPG", "txt")] * 5
    told = written(tmp_path, samples, CAPTIONS, "CaptioningSample")
    expected = {("image", 5, "0.tar/001 (png, txt)"), ("caption", 5, "0.tar/002 (jpg)")}
    for field, count, example in expected:
        assert f"field {field!r}: {count} of 20 samples" in told and example in told
    facts = json.loads(run_command("info", tmp_path, "--json").stdout)
    assert {(one["field"], one["count"], one["example"]) for one in facts["odd_parts"]} == expected
    findings = json.loads(run_command("check", "--run", tmp_path, "--json").stdout)["findings"]
    assert sum(one["code"] == "missing-parts" and "5 of 20" in one["what"] for one in findings) == 2
    faults = run_command("check", tmp_path, "--json").stdout
    assert faults.count('"missing-part"') >= 10


def test_names_that_mean_the_same() -> None:
    assert {"jpg", "JPG", "jpeg", "Jpeg", "jPG"} <= alike("jpg") and "png" not in alike("jpg")
    assert {"left.TIFF", "LEFT.tif", "Left.Tif"} <= alike("left.tif") and "tif" not in alike("left.tif")
    assert {"TRANSCRIPT", "Transcript"} <= alike("transcript")
    others = other_names(["jpg", "jpeg"])
    assert (others["JPG"], others["JPEG"], others["jpe"]) == ("jpg", "jpeg", "jpg") and "jpeg" not in others
    assert "jpg" not in other_names(["JPG", "jpg"])
