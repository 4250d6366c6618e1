"""A job of the tests: `python -m tests.loader.ray_job DATA RANK WORLD WORKERS NUM_BATCHES OUT [STATE]` writes a line
per batch, a digest of all in it and of the state after it, and at the end the state. WORKERS: `here`, `local`, or the
address of a Ray cluster; with `afar:` before it, as if its nodes were other machines."""

import dataclasses
import hashlib
import io
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from bridge_data import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.plugins.ray import ray_batches
from tests.prepared import write_dataset

NUM_LANES = 8
IMAGES = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "ImageSample"},
    "field_map": {"image": "jpg"},
}


def write_images(folder: Path) -> Path:
    """A prepared data set of 200 small images, no two alike."""

    def sample(number: int) -> dict[str, Any]:
        jpeg = io.BytesIO()
        image = Image.linear_gradient("L").resize((64, 48)).rotate(number)
        Image.merge("RGB", (image, image, image.rotate(90))).save(jpeg, "JPEG")
        return {"__key__": f"{number:06d}", "jpg": jpeg.getvalue()}

    return write_dataset(folder, map(sample, range(200)), per_shard=20, definition=IMAGES)


class Flipping(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Has a hook that draws random numbers, and one that takes time."""

    decoder = SampleDecoder(image_decode="torchrgb8")

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.pause_s = pause_s

    def encode_sample(self, sample: Any) -> Any:
        time.sleep(self.pause_s)
        if torch.rand(()) < 0.5:
            sample.image = sample.image.flip(-1)
        return sample


def digest(value: Any) -> str:
    """A digest of all tensors and texts of a batch."""
    found = hashlib.blake2b(digest_size=12)
    for name in sorted(each.name for each in dataclasses.fields(value)):
        field = getattr(value, name)
        is_tensor = isinstance(field, torch.Tensor)
        found.update(name.encode() + (field.numpy().tobytes() if is_tensor else repr(field).encode()))
    return found.hexdigest()


def digest_of_state(state: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(state).encode(), digest_size=12).hexdigest()


def batches(
    data: Path,
    rank: int,
    world_size: int,
    workers: str,
    num: int,
    state: dict[str, Any] | None = None,
    pause_s: float = 0,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The digests of `num` batches, each with the state after it."""
    num_workers = 0 if workers == "here" else 2
    ranks = WorkerConfig(rank, world_size, num_workers, num_lanes=NUM_LANES)
    options: dict[str, Any] = {"batch_size": 4, "shuffle_buffer_size": 8, "max_samples_per_sequence": 4}
    dataset = get_train_dataset(data, worker_config=ranks, task_encoder=Flipping(pause_s), **options)
    if workers.startswith("afar:"):
        ray_batches.is_on_this_machine = lambda handle: False
    address = workers.removeprefix("afar:")
    where: Any = "local" if workers in ("here", "local") else {"pool": "ray", "address": address, "required": True}
    with get_savable_loader(dataset, workers=where, max_worker_restarts=0) as loader:
        if state is not None:
            loader.restore_state_rank(state)
        if num_workers:
            assert loader.wait_for_workers()
        for batch, _ in zip(loader, range(num), strict=False):
            batch.image[0, 0, 0, 0] += 0  # it may be written
            yield digest(batch), loader.save_state_rank()


def main(data: str, rank: str, world_size: str, workers: str, num: str, out: str, state: str = "") -> None:
    """Run as a job."""
    before = json.loads(Path(state).read_text()) if state else None
    with open(out, "w") as lines:
        after = None
        for made, after in batches(Path(data), int(rank), int(world_size), workers, int(num), before, 0.005):
            print(made, digest_of_state(after), file=lines, flush=True)
        print(json.dumps(after), file=lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
