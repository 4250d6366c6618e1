"""Crude data with auxiliary data beside it."""

import json
from pathlib import Path
from typing import Any

from bridge_data import WorkerConfig, get_train_dataset
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.task import TaskEncoder
from tests.data.tars import prepare_by_ratio, write_tar
from tests.prepared import CRUDE, write_dataset

SAMPLES = 12


def content(number: int) -> bytes:
    """What is in file `number` of the auxiliary data."""
    return f"file {number} ".encode() * (20 + number)


def write_media(folder: Path, *, num_shards: int = 3, per_shard: int = 8) -> Path:
    """A prepared data set of `000007.bin`, and of `a/000007.left.txt`, in some shards."""
    for shard in range(num_shards):
        members = {}
        for number in range(shard * per_shard, (shard + 1) * per_shard):
            members[f"{number:06d}.bin"] = content(number)
            members[f"a/{number:06d}.left.txt"] = f"left {number}".encode()
        write_tar(folder / f"m-{shard}.tar", members)
    prepare_by_ratio(folder, "1,0,0")
    return folder


def write_job(root: Path) -> Path:
    """A metadataset over crude samples that name the file they belong with, in a data set and in a folder; its path."""
    samples = (
        {"__key__": f"{n:06d}", "json": json.dumps({"file": f"{n:06d}.bin"}), "txt": f"text {n}"}
        for n in range(SAMPLES)
    )
    write_dataset(root / "crude", samples, per_shard=5, definition=CRUDE)
    write_media(root / "media")
    (root / "files/sub").mkdir(parents=True)
    for number in range(SAMPLES):
        (root / "files/sub" / f"{number}.txt").write_text(f"note {number}")
    path = root / "job.yaml"
    path.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    path: crude\n"
        "    aux:\n      media: media\n      files: filesystem://files\n"
    )
    return path


def dataset(path: Path, encoder: TaskEncoder[Any, Any, Any, Any], *, workers: int = 0, **settings: Any) -> LaneDataset:
    """The data of a job, one epoch in batches of 3."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers, num_lanes=2)
    arguments: dict[str, Any] = {"batch_size": 3, "shuffle_buffer_size": 10, "max_samples_per_sequence": 5}
    return get_train_dataset(
        path, worker_config=config, task_encoder=encoder, **arguments | {"repeat": False} | settings
    )
