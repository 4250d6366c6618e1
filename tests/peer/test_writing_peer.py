"""What `ShardWriter` and `write` write loads in Megatron-Energon, with equal keys, contents, captions and pixels."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data import CaptioningSample, ShardWriter, write
from bridge_data.data import ShardReader, open_shards
from tests.peer.running import MARKS, PEER, run_python
from tests.peer.test_prepare_peer import READ, READ_BY_KEY, energon, ours, theirs
from tests.plugins.convert.originals import recording

pytestmark = MARKS

CAPTIONS = ("A cat on a mat", "Eine Katze auf der Größe", "マットの上の猫")
SPLIT = {"train": 0.75, "val": 0.25}

READ_CAPTIONED = """
import json, sys
from megatron.energon import WorkerConfig, get_loader, get_val_dataset
config = WorkerConfig(rank=0, world_size=1, num_workers=0)
found = []
for part in ("train", "val"):
    data = get_val_dataset(sys.argv[1], split_part=part, batch_size=None, worker_config=config)
    for s in get_loader(data):
        found.append([s.__key__, s.caption, (s.image * 255).round().int().tolist()])
json.dump(found, sys.stdout)
"""

SAVED_BY_TORCH = """
import io, json, sys, torch
print(json.dumps(torch.load(io.BytesIO(open(sys.argv[1], "rb").read()), weights_only=True)["a"].tolist()))
"""


def sample_of(number: int) -> dict[str, Any]:
    pixels = np.random.default_rng(number).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return {
        "__key__": f"größe/v1.0/{number:04d}",
        "png": Image.fromarray(pixels),
        "json": {"caption": CAPTIONS[number % 3]},
        "npy": np.arange(number, dtype=np.float32),
        "pth": {"a": torch.arange(number)},
        "wav": recording(number),
        "cls": number,
    }


@pytest.fixture(params=["one", "ranks"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """40 pictures with captions, arrays, tensors and recordings."""
    settings: dict[str, Any] = {
        "split": SPLIT,
        "max_samples": 8,
        "sample_type": CaptioningSample,
        "field_map": {"image": "png", "caption": "json[caption]"},
    }
    if request.param == "one":
        with ShardWriter(tmp_path / "data", **settings) as writer:
            for number in range(40):
                writer.write(sample_of(number))
    else:
        for rank in range(2):
            write(sample_of, tmp_path / "data", items=range(40), rank=rank, world_size=2, num_workers=2, **settings)
    return tmp_path / "data"


def test_captions_and_pixels_are_equal_there(folder: Path) -> None:
    found = {key.rpartition(".tar/")[2]: (caption, image) for key, caption, image in energon(READ_CAPTIONED, folder)}
    assert len(found) == 40
    for number in range(40):
        sample = sample_of(number)
        caption, image = found[sample["__key__"]]
        assert caption == CAPTIONS[number % 3]
        assert (np.asarray(image).transpose(1, 2, 0) == np.asarray(sample["png"])).all()


def test_crude_parts_are_equal_there_found_by_name_and_loaded_by_another_torch(folder: Path, tmp_path: Path) -> None:
    crude = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
    (folder / ".nv-meta/dataset.yaml").write_text(json.dumps(crude))
    assert "cookers" in READ
    mine, others = ours(folder, *SPLIT), theirs(folder, *SPLIT)
    for part in SPLIT:
        assert [sample["key"].rpartition(".tar/")[2] for sample in others[part]] == [s["key"] for s in mine[part]]
        assert [(s["shard"], s["parts"]) for s in others[part]] == [(s["shard"], s["parts"]) for s in mine[part]]
    sample = ShardReader(open_shards(folder, "train")).read(3)
    names = [f"{sample.key}.{part}" for part in sample.parts]
    assert energon(READ_BY_KEY, folder, *names) == [
        hashlib.sha256(content).hexdigest() for content in sample.parts.values()
    ]
    (tmp_path / "a.pth").write_bytes(sample.parts["pth"])
    printed = run_python(PEER, SAVED_BY_TORCH, str(tmp_path / "a.pth"))
    assert json.loads(printed) == list(range(int(sample.parts["cls"])))
