"""What the checks of data cost while it is read: CPU time with them, over that without, in one process.

Two loaders read the same samples in the same order, one with the checks, one without, in slices by turns; the one that
begins alternates. Taken out are: the checksums of the pages of `index.bridge`, the comparison of shards with their
index as they are opened, that of the version of a shard in each read, and the limit of pixels. Printed: the median of
the pairs' ratios, with the interval that 90 of 100 such medians are in, by resampling the pairs. CPU time is that of
the process, so other work on the machine matters less.

    python -m benchmarks.checks_cost [--pairs 100] [--data .bench] [--json FILE]
"""

import argparse
import contextlib
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from bridge_data import DefaultTaskEncoder, SampleDecoder, WorkerConfig, get_savable_loader, get_train_dataset, storage
from bridge_data.decode import sample_decoder
from bridge_data.shards import shard_reader
from bridge_data.shards.index_file import IndexFile
from bridge_data.shards.shard_reader import WatchedFile

ROOT = Path(__file__).parents[1]
BATCH_SIZE = 32
CASES = {"text": 100, "jpeg": 4}
"""Workload: batches of a slice."""


class Plain(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Leaves texts as they are, and decodes images to uint8."""

    decoder = SampleDecoder(image_decode="torchrgb8")


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Let this process check nothing of what it reads, and shards that it opens meanwhile never."""

    def read(self: WatchedFile, start: int, num_bytes: int) -> bytes:
        return storage.read_with_version(self._path, start, num_bytes)[0]

    def read_page(self: IndexFile, start: int, num_bytes: int, checksum: int) -> bytes:
        return storage.read(self.path, start, num_bytes)

    with (
        mock.patch.object(WatchedFile, "read", read),
        mock.patch.object(IndexFile, "read", read_page),
        mock.patch.object(shard_reader, "is_intact", lambda *_: True),
        mock.patch.object(sample_decoder, "image_within", lambda _, handler, data: handler(data)),
    ):
        yield


def batches_of(folder: Path) -> Iterator[Any]:
    """Batches of a loader without workers."""
    dataset = get_train_dataset(
        folder / "tars",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=BATCH_SIZE,
        shuffle_buffer_size=1000,
        max_samples_per_sequence=100,
        task_encoder=Plain(),
    )
    return iter(get_savable_loader(dataset))


def slice_us(batches: Iterator[Any], num_batches: int, *, is_checked: bool) -> float:
    """Microseconds of CPU time of a sample."""
    with contextlib.nullcontext() if is_checked else unchecked():
        before = time.process_time()
        for _ in range(num_batches):
            next(batches)
        return (time.process_time() - before) / num_batches / BATCH_SIZE * 1e6


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure and print all cases."""
    from benchmarks.speed import data

    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--data", type=Path, default=ROOT / ".bench")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    print("checks of data, CPU time with them over that without")
    for workload, num_batches in CASES.items():
        folder = data.make(workload, chosen.data.absolute())
        with unchecked():
            loaders = {False: batches_of(folder)}
            next(loaders[False])
        loaders[True] = batches_of(folder)
        next(loaders[True])
        pairs = []
        for number in range(chosen.pairs + 1):
            order = (True, False) if number % 2 else (False, True)
            pairs.append({checked: slice_us(loaders[checked], num_batches, is_checked=checked) for checked in order})
        ratios = [pair[True] / pair[False] for pair in pairs[1:]]  # the first one opens the shards
        medians = sorted(statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(10_000))
        results[workload] = {
            "ratio": statistics.median(ratios),
            "interval": [medians[500], medians[9500]],
            "us_per_sample": statistics.median(pair[False] for pair in pairs),
            "pairs": len(ratios),
        }
        print(
            f"  {workload:<5} {results[workload]['ratio']:.4f} ({medians[500]:.4f}–{medians[9500]:.4f}) of "
            f"{results[workload]['us_per_sample']:,.1f} µs/sample, {len(ratios)} pairs",
            flush=True,
        )
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    return results


if __name__ == "__main__":
    main()
