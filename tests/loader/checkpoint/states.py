"""Loader states for tests: small, and different at every step."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import torch

from bridge_data.loader.checkpoint import rank_file
from bridge_data.order.state import LoaderState

FINGERPRINT = {
    "sources": [["aa", "photos/train"], ["bb", "pages/train"]],
    "weights": [0.25, 0.75],
    "seed": 0,
    "order": "shuffled",
    "batch_size": 4,
    "packing_buffer_size": 4,
}


def make_state(*lanes: int, step: int = 10, num_lanes: int = 8, **settings: Any) -> dict[str, Any]:
    """The state of these lanes, of all if none is given, after `step` micro-batches of each."""
    of_lanes = {
        lane: {
            "draws": 5 * step,
            "cursors": {"0": [step, lane, 1, 7], "1": [0, 0, 3, 3 * step]},
            "micro_batches": step,
            "pending": {
                "packs": [[0, 2], [1, [3, 1]]],
                "base": {"draws": 5 * step - 4, "cursors": {"0": [step, 0, 0, 0]}},
            },
        }
        for lane in lanes or range(num_lanes)
    }
    generations = [(num_lanes, [[100, 8, 1024, 0], [50, 8, 1024, 0]])]
    return LoaderState(FINGERPRINT | settings, generations, step * num_lanes, of_lanes).to_dict()


def rank_states(world_size: int, **settings: Any) -> list[dict[str, Any]]:
    """The state of every rank of a job."""
    return [make_state(*range(rank, 8, world_size), **settings) for rank in range(world_size)]


def write_version_1(folder: Path, *, step: int, world_size: int) -> Path:
    """A checkpoint as earlier releases wrote it: a file a rank, and a manifest that completes them."""
    folder.mkdir(parents=True, exist_ok=True)
    files, whole = {}, LoaderState.from_dict(make_state(step=step))
    for rank in range(world_size):
        state = whole.of_rank(rank, world_size) if rank else whole
        content = {"dataloader_state_dict": state.to_dict(), "format": "bridge_data.checkpoint", "version": 1}
        buffer = io.BytesIO()
        torch.save(content | {"step": step, "rank": rank, "world_size": world_size}, buffer)
        data = buffer.getvalue()
        rank_file(folder, rank).write_bytes(data)
        checksum = hashlib.blake2b(data, digest_size=16).hexdigest()
        files[rank_file(folder, rank).name] = {"size_bytes": len(data), "blake2b": checksum}
    manifest = {"format": "bridge_data.checkpoint", "version": 1, "step": step, "world_size": world_size}
    text = json.dumps(manifest | {"fingerprint": "ab", "files": files, "replaced": []}, indent=1)
    (folder / "train_dataloader_manifest.json").write_text(text)
    return folder
