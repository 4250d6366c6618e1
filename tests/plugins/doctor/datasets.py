"""Data sets with something wrong, each with one fault in an otherwise sound set of captioned pictures."""

import io
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare
from tests.data.tars import write_tar
from tests.prepare.files import picture
from tests.prepared import write_dataset_yaml

CAPTIONING = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "png", "caption": "json[caption]"},
}

PICTURE = picture()


def array(size: int) -> bytes:
    """An array of integers as an NPY file."""
    np.save(file := io.BytesIO(), np.arange(size))
    return file.getvalue()


def members(first: int, count: int = 3) -> dict[str, bytes]:
    """Members of a shard with samples from number `first` on."""
    found: dict[str, bytes] = {}
    for number in range(first, first + count):
        caption = json.dumps({"caption": f"picture {number}"}).encode()
        found |= {f"{number:04d}.json": caption, f"{number:04d}.png": PICTURE, f"{number:04d}.txt": b"a note"}
    return found


def write_dataset(folder: Path, shards: dict[str, dict[str, bytes]] | None = None, ratio: str = "1,1,0") -> Path:
    """A prepared data set; two sound shards, in train and val, unless `shards` says else."""
    shards = {"data-0.tar": members(0), "data-1.tar": members(3)} if shards is None else shards
    for name, content in shards.items():
        write_tar(folder / name, content)
    return prepare_again(folder, ratio)


def prepare_again(folder: Path, ratio: str = "1,1,0") -> Path:
    """Prepare the tars in `folder`."""
    prepare(folder, partial(split_by_ratio, ratio=parse_ratio(ratio)))
    write_dataset_yaml(folder, CAPTIONING, "dataset.yaml")
    return folder


def change(folder: Path, **parts: bytes | None) -> Path:
    """A prepared data set in which sample 0001 has these parts (`png`, `json`, ...), or lacks them."""
    named = {f"0001.{part}": data for part, data in parts.items()}
    content = {name: data for name, data in sorted((members(0) | named).items()) if data is not None}
    return write_dataset(folder, {"data-0.tar": content, "data-1.tar": members(3)})


def edit_meta(folder: Path, file: str, **changes: Any) -> None:
    """Change entries of a metadata file."""
    path = folder / ".nv-meta" / file
    content = yaml.safe_load(path.read_text()) | changes
    path.write_text(json.dumps(content) if path.suffix == ".json" else yaml.safe_dump(content))
