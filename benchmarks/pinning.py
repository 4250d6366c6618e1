"""How long a trainer waits in `next` for batches that are pinned, in its own thread and in one of the loader.

A worker makes batches of `--megabytes` by stacking four tensors; a step is `--step-ms` of sleep, as a GPU gives it.
Without a GPU, a batch is copied to memory that was allocated and touched before, which is what torch does once memory
of an earlier batch is free. Printed: milliseconds in `next`, median and 95th percentile of the steps after the first
ten, without pinning, pinned "in line" (when a batch is asked for), and pinned "ahead", as the loader does it.

    python -m benchmarks.pinning [--megabytes 100] [--steps 60] [--step-ms 150] [--json FILE]
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.numbers_data import write_numbers
from bridge_data import DefaultTaskEncoder, TextSample, WorkerConfig, batch_stack, get_loader, get_train_dataset
from bridge_data.lanes.produced import Produced
from bridge_data.loader import pinning
from bridge_data.loader.lane_runner import Ended
from bridge_data.loader.workers.worker_pool import WorkerPool

WARM_UP = 10


class Large(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Makes a batch of four equal tensors."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.num_bytes = num_bytes
        self._rows: list[torch.Tensor] | None = None

    def batch(self, samples: list[TextSample]) -> dict[str, Any]:
        if self._rows is None:
            self._rows = [torch.ones(self.num_bytes // 4, dtype=torch.uint8) for _ in range(4)]
        return {"__key__": [sample.__key__ for sample in samples], "pixels": batch_stack(self._rows)}


class CopyToReady:
    """The stand-in for pinning: a copy to one of two buffers that are in memory."""

    def __init__(self, num_bytes: int) -> None:
        self._buffers = itertools.cycle([torch.zeros(num_bytes, dtype=torch.uint8) for _ in range(3)])

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        buffer, pixels = next(self._buffers), batch["pixels"]
        return batch | {"pixels": buffer[: pixels.numel()].view_as(pixels).copy_(pixels)}


class InLine:
    """Pins each batch when it is asked for, in the thread that asks."""

    def __init__(self, pool: WorkerPool, turns: Any, pin: pinning.Pin) -> None:
        self._pool, self._pin = pool, pin

    def take(self, lane: int) -> Produced[Any] | Ended:
        item = self._pool.take(lane)
        if isinstance(item, Produced):
            item = Produced(item.lane, self._pin(item.batch), item.state, item.skipped, item.references)
        return item

    def stop(self) -> None:
        pass


def milliseconds(data: Path, num_bytes: int, steps: int, step_s: float, how: str) -> tuple[float, float]:
    """(median, 95th percentile) of the time in `next`."""
    dataset = get_train_dataset(
        data,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=1),
        batch_size=4,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=Large(num_bytes),
    )
    original = pinning.PinningThread
    if how == "in line":
        pinning.PinningThread = InLine  # type: ignore[assignment, misc]
    if how != "not pinned" and not torch.cuda.is_available():
        stand_in = CopyToReady(num_bytes)
        pinning.can_pin = lambda: True
        pinning.pinned = stand_in
    times = []
    try:
        with get_loader(dataset, pin_memory=how != "not pinned") as loader:
            loader.wait_for_workers()
            batches = iter(loader)
            for _ in range(WARM_UP + steps):
                begin = time.perf_counter()
                batch = next(batches)
                times.append(1e3 * (time.perf_counter() - begin))
                assert batch["pixels"].numel() == num_bytes // 4 * 4
                time.sleep(step_s)
    finally:
        pinning.PinningThread = original  # type: ignore[misc]
    times = sorted(times[WARM_UP:])
    return statistics.median(times), times[int(0.95 * len(times))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-ms", type=float, default=150)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write_numbers(data, 4_000, 1_000)
        for how in ("not pinned", "in line", "ahead"):
            num_bytes, step_s = options.megabytes * 1_000_000, options.step_ms / 1e3
            median, high = milliseconds(data, num_bytes, options.steps, step_s, how)
            figures[how] = {"median_ms": median, "p95_ms": high}
            print(f"{how:12} median {median:7.2f} ms   95% {high:7.2f} ms")
    if options.json:
        options.json.write_text(json.dumps(vars(options) | {"json": None} | figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
