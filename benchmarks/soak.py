"""A long run of photos with kills and resumes: memory and file handles must not grow, and no sample may be lost.

Two workers decode JPEGs of 160x120 in batches of 32. Every 250 batches a worker is killed; every 1,000 the loader is
closed, and a new one continues from the state of the old one. The ledger of the last state must be that of a run
without any of it, which decodes nothing. `python -m benchmarks.pictures --only soak` measures and draws it.
"""

import io
import itertools
import logging
import os
import random
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from bridge_data import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.loader import SavableDataLoader
from bridge_data.order.state import LoaderState
from bridge_data.plugins.ledger.ledger import sums_of
from tests.prepared import write_dataset

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
    samples = ({"__key__": f"{number:06d}", "jpg": photos[number % 20]} for number in range(NUM_PHOTOS))
    write_dataset(folder, samples, per_shard=PER_SHARD, definition=_IMAGE)


def loader_of(path: Path, num_workers: int, encoder: DefaultTaskEncoder[Any, Any, Any, Any]) -> SavableDataLoader:
    """The loader of these photos, with a ledger."""
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(0, 1, num_workers, num_lanes=8),
        batch_size=BATCH,
        shuffle_buffer_size=1_000,
        max_samples_per_sequence=100,
        task_encoder=encoder,
    )
    ledger = path.parent / f"ledger-{num_workers}"
    return get_savable_loader(dataset, max_worker_restarts=10, ledger_path=ledger)


def measure() -> dict[str, Any]:
    """Memory in MB, of the trainer and of its workers, and open files of the trainer, after every 50 batches.

    Raises:
        RuntimeError: if the samples differ from those of an undisturbed run.
    """
    logging.getLogger("bridge_data").setLevel(logging.ERROR)  # a warning for each kill
    trainer, rng = psutil.Process(), random.Random(0)
    found: dict[str, Any] = {"batches": [], "trainer_MB": [], "workers_MB": [], "files": [], "kills": [], "resumes": []}
    state: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "photos"
        path.mkdir()
        write_photos(path)
        for first in range(0, BATCHES, RESUME_EVERY):
            with loader_of(path, 2, Photos()) as loader:
                if state:
                    loader.restore_state_rank(state)
                    found["resumes"].append(first)
                loader.wait_for_workers()
                for number, _ in zip(range(first + 1, first + RESUME_EVERY + 1), loader, strict=False):
                    if number % KILL_EVERY == KILL_EVERY // 2:
                        server = trainer.children()[0]  # which forks the workers
                        os.kill(rng.choice(server.children()).pid, signal.SIGKILL)
                        found["kills"].append(number)
                    if number % POINT_EVERY == 0:
                        metrics = loader.metrics()
                        found["batches"].append(number)
                        found["trainer_MB"].append(metrics.trainer_bytes / 1e6)
                        found["workers_MB"].append(metrics.workers_bytes / 1e6)
                        found["files"].append(trainer.num_fds())
                state = loader.save_state_rank()
        with loader_of(path, 0, Bytes()) as undisturbed:
            for _ in itertools.islice(undisturbed, BATCHES):
                pass
            expected = undisturbed.save_state_rank()
    sums = [sums_of(LoaderState.from_dict(one)) for one in (state, expected)]
    if sums[0] is None or sums[0] != sums[1]:
        raise RuntimeError("the samples differ from those of an undisturbed run")
    return found | {"samples": sums[0].samples}
