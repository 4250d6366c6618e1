"""What `convert` makes of other forms loads in Megatron-Energon, with equal captions, pixels and parts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.peer.running import MARKS
from tests.peer.test_prepare_peer import energon, ours, theirs
from tests.peer.test_writing_peer import READ_CAPTIONED
from tests.plugins.convert.originals import (
    NUM,
    caption,
    converted,
    llava,
    picture_name,
    write_coco,
    write_media,
)
from tests.plugins.convert.test_conversion import SOURCES, SPLIT

pytestmark = MARKS


@pytest.mark.parametrize("form", SOURCES)
def test_captions_and_pixels_are_equal_there(form: str, tmp_path: Path) -> None:
    SOURCES[form](tmp_path / "source")
    names = {"jsonl": "photos.jsonl", "csv": "photos.csv", "tsv": "photos.tsv", "parquet": "photos.parquet"}
    names |= {"arrow": "photos.arrow", "feather": "photos.feather"}
    folder = converted(tmp_path / "source" / names.get(form, ""), tmp_path / "out", *SPLIT)
    write_media(tmp_path / "pictures")
    found = {text: pixels for _, text, pixels in energon(READ_CAPTIONED, folder)}
    assert found.keys() == {caption(number) for number in range(NUM)}
    for number in range(NUM):
        pixels = np.asarray(Image.open(tmp_path / "pictures" / picture_name(number)).convert("RGB")).astype(int)
        assert np.abs(np.asarray(found[caption(number)]).transpose(1, 2, 0) - pixels).max() <= 2


def llava_json(folder: Path) -> Path:
    (write_media(folder) / "chats.json").write_text(json.dumps(llava()))
    return folder / "chats.json"


@pytest.mark.parametrize(
    "write",
    [llava_json, lambda folder: write_coco(write_media(folder) / "captions.json")],
    ids=["conversations", "coco"],
)
def test_parts_are_equal_there(write: Any, tmp_path: Path) -> None:
    folder = converted(write(tmp_path / "source"), tmp_path / "out", *SPLIT, "--sample-type", "crude")
    mine, others = ours(folder, "train", "val"), theirs(folder, "train", "val")
    for part in ("train", "val"):
        assert [(s["shard"], s["parts"]) for s in others[part]] == [(s["shard"], s["parts"]) for s in mine[part]]
        assert mine[part]
