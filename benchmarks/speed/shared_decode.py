"""Two jobs that read the same photos at once and share what they encode, beside two that do not: CPU time and rate.

Each job is a process without workers, which reads JPEGs of 1600 x 1200, resized to 336 x 336, uint8. Its encoder may
draw random numbers, so nothing is shared between its epochs. Imports, and all before the first batch, do not count.
The digest is that of its stream, the same in all jobs.

    python -m benchmarks.speed.shared_decode DATA MEMO SAMPLES WORKERS    # one job; MEMO "-" for none
"""

import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers import measure as measuring
from benchmarks.speed import data
from benchmarks.speed.programs import OURS, Figures
from benchmarks.speed.rounds import Extent, Runs

SAMPLES, WORKERS, LIMIT_S, BATCH_SIZE = 400, 0, 300, 16
APART = "without a memo"


def measure(extent: Extent) -> Runs:
    """The means of two jobs that share (ours), and of two that do not."""
    folder = data.make("photos", extent.folder, extent.scale)
    data.warm(folder)
    shared: list[Figures] = []
    apart: list[Figures] = []
    for _ in range(extent.other_rounds):
        apart.append(_mean(_run(folder, "-")))
        with tempfile.TemporaryDirectory(dir="/dev/shm") as memo:
            shared.append(_mean(_run(folder, f"{memo}/memo")))
        if shared[-1]["digest"] != apart[-1]["digest"]:
            shared[-1] = {"failed": "the streams differ"}
        print(f"memo: {shared[-1]}; without: {apart[-1]}", file=sys.stderr)
    return {"memo": {OURS: shared, APART: apart}}


def _run(folder: Path, memo: str) -> list[dict[str, Any]]:
    """What two jobs print that run at the same time."""
    command = [sys.executable, "-m", __spec__.name, str(folder), memo, str(SAMPLES), str(WORKERS)]
    jobs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    return [json.loads(job.communicate(timeout=LIMIT_S)[0].splitlines()[-1]) for job in jobs]


def _mean(jobs: list[dict[str, Any]]) -> Figures:
    figures: Figures = {
        name: statistics.mean(job[name] for job in jobs) for name in ("cpu_s_per_1000", "samples_per_s", "memo_hits")
    }
    most = max(job["cpu_s_per_1000"] for job in jobs)
    return figures | {"most_cpu_s_per_1000": most, "digest": "+".join({job["digest"] for job in jobs})}


def job(folder: str, memo: str, samples: int, workers: int) -> dict[str, Any]:
    """Read `samples` samples."""
    from bridge_data import DefaultTaskEncoder, Memo, SampleDecoder, WorkerConfig, get_loader, get_train_dataset

    class Photos(DefaultTaskEncoder[Any, Any, Any, Any]):
        decoder = SampleDecoder(image_decode="torchrgb8", image_size=(336, 336))

        def encode_sample(self, sample: Any) -> Any:
            return sample

    dataset = get_train_dataset(
        f"{folder}/tars",
        worker_config=WorkerConfig(0, 1, workers),
        batch_size=BATCH_SIZE,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=Photos(),
    )
    digest = hashlib.blake2b(digest_size=8)
    with get_loader(dataset, memo=None if memo == "-" else Memo(memo, version="1")) as loader:
        cpu_s, begin_s = 0.0, 0.0
        for number, batch in zip(range(1 + samples // BATCH_SIZE), loader, strict=False):
            digest.update(repr(batch.__key__).encode() + batch.image.numpy().reshape(-1)[::1009].tobytes())
            if number == 0:  # imports and the start of workers are not of decoding
                cpu_s, begin_s = measuring.cpu_s(), time.perf_counter()
        cpu_s, wall_s = measuring.cpu_s() - cpu_s, time.perf_counter() - begin_s
        hits = loader.metrics().others["memo_hits"]
    rates = {"cpu_s_per_1000": 1000 * cpu_s / samples, "samples_per_s": samples / wall_s}
    return {**rates, "memo_hits": hits, "digest": digest.hexdigest()}


if __name__ == "__main__":
    print(json.dumps(job(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))))
