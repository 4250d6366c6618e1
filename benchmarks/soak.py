"""A long run of photos with kills and resumes: memory and file handles must not grow, and no sample may be lost.

Two workers decode JPEGs of 160x120 in batches of 32. Every 250 batches a worker is killed; every 1,000 the loader is
closed, and a new one goes on from the state of the old one. Printed: memory and file handles at points of the run, and
whether the ledger of the last state is that of a run without any of it, which decodes nothing.

    python -m benchmarks.soak [--batches 5000] [--json FILE]
"""

import argparse
import functools
import io
import itertools
import json
import logging
import os
import random
import signal
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from bridge_data import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.loader import SavableDataLoader
from bridge_data.order.state import LoaderState
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare, write_dataset_yaml

NUM_PHOTOS, PER_SHARD, WIDTH, HEIGHT = 4_000, 200, 160, 120
BATCH, BATCHES = 32, 5_000
POINT_EVERY, KILL_EVERY, RESUME_EVERY = 50, 250, 1_000

_IMAGE = {"sample_type": {"__module__": "megatron.energon", "__class__": "ImageSample"}, "field_map": {"image": "jpg"}}


class Photos(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Photos as bytes of pixels."""

    decoder = SampleDecoder(image_decode="torchrgb8")


class Bytes(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Photos as they are stored."""

    decoder = None


def write_photos(folder: Path) -> None:
    """A prepared data set of photos; 20 different ones, so that writing them is quick."""
    photos = []
    for seed in range(20):
        pixels = np.random.default_rng(seed).integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).resize((WIDTH, HEIGHT)).save(file, "JPEG")
        photos.append(file.getvalue())
    for shard in range(NUM_PHOTOS // PER_SHARD):
        with tarfile.open(folder / f"data-{shard:04d}.tar", "w") as tar:
            for number in range(shard * PER_SHARD, (shard + 1) * PER_SHARD):
                entry = tarfile.TarInfo(f"{number:06d}.jpg")
                entry.size = len(photos[number % len(photos)])
                tar.addfile(entry, io.BytesIO(photos[number % len(photos)]))
    prepare(folder, functools.partial(split_by_ratio, ratio=parse_ratio("1,0,0")))
    write_dataset_yaml(folder, _IMAGE, "dataset.yaml")


def loader_of(path: Path, num_workers: int, encoder: DefaultTaskEncoder[Any, Any, Any, Any]) -> SavableDataLoader:
    """The loader of these photos."""
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(0, 1, num_workers, num_lanes=8),
        batch_size=BATCH,
        shuffle_buffer_size=1_000,
        max_samples_per_sequence=100,
        task_encoder=encoder,
    )
    return get_savable_loader(dataset, max_worker_restarts=10)


def workers() -> list[psutil.Process]:
    """The workers of this process: forked by the server that it has started."""
    return [worker for server in psutil.Process().children() for worker in server.children()]


def measure(num_batches: int = BATCHES) -> dict[str, Any]:
    """Memory in MB, of the trainer and of its workers, and open files of the trainer, after every 50 batches."""
    trainer, rng = psutil.Process(), random.Random(0)
    found: dict[str, Any] = {"batches": [], "trainer_MB": [], "workers_MB": [], "files": [], "kills": [], "resumes": []}
    state: dict[str, Any] | None = None
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        write_photos(path)
        for first in range(0, num_batches, RESUME_EVERY):
            with loader_of(path, 2, Photos()) as loader:
                if state is not None:
                    loader.restore_state_rank(state)
                    found["resumes"].append(first)
                loader.wait_for_workers()
                last = min(first + RESUME_EVERY, num_batches)
                for number, _ in zip(range(first + 1, last + 1), loader, strict=False):
                    if number % KILL_EVERY == KILL_EVERY // 2 and (alive := workers()):
                        os.kill(rng.choice(alive).pid, signal.SIGKILL)
                        found["kills"].append(number)
                    if number % POINT_EVERY == 0:
                        metrics = loader.metrics()
                        found["batches"].append(number)
                        found["trainer_MB"].append(metrics.trainer_bytes / 1e6)
                        found["workers_MB"].append(metrics.workers_bytes / 1e6)
                        found["files"].append(trainer.num_fds())
                state = loader.save_state_rank()
        found["seconds"] = time.perf_counter() - began
        with loader_of(path, 0, Bytes()) as undisturbed:
            for _ in itertools.islice(undisturbed, num_batches):
                pass
            expected = undisturbed.save_state_rank()
    assert state is not None
    sums = [LoaderState.from_dict(one).sums() for one in (state, expected)]
    found["samples"], found["ledgers are equal"] = sums[0].samples, sums[0] == sums[1]
    return found


def main() -> None:
    """Print the figures; fail if samples differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    logging.getLogger("bridge_data").setLevel(logging.ERROR)  # a warning for each kill
    found = measure(arguments.batches)
    print(f"{'batches':>8s}{'trainer, MB':>14s}{'workers, MB':>14s}{'files':>8s}")
    columns = (found[name] for name in ("batches", "trainer_MB", "workers_MB", "files"))
    for batches, trainer, of_workers, files in zip(*columns, strict=True):
        print(f"{batches:8,d}{trainer:14.0f}{of_workers:14.0f}{files:8d}")
    for name in ("samples", "ledgers are equal", "seconds"):
        print(f"{name:20s}{found[name]}")
    print(f"{'kills, resumes':20s}{len(found['kills'])}, {len(found['resumes'])}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    if not found["ledgers are equal"]:
        raise SystemExit("the samples differ from those of an undisturbed run")


if __name__ == "__main__":
    main()
