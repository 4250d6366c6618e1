"""The common code of the programs that draw a library's order: from batches to files of sample numbers."""

import gc
import json
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

Batches = Callable[[dict[str, Any], int], Iterator[list[str]]]
"""Of a job and a seed: the texts of each batch of an endless training stream."""


def write_orders(batches: Batches, package: str) -> None:
    """Long streams of the job's first seeds, and the very first sample of many seeds."""
    job = json.loads(sys.argv[1])
    gc.freeze()  # a loader that collects garbage when it starts need not go through all that was imported
    streams = {}
    for seed in range(job["seeds"]):
        streams[f"stream{seed}"], streams[f"sizes{seed}"] = _stream(batches(job, seed), job)
    firsts = [int(next(batches(job, seed))[0]) for seed in range(job["first_seeds"])]
    try:
        release = version(package)
    except PackageNotFoundError:  # run from a checkout
        release = "this checkout"
    np.savez(job["out"], firsts=np.array(firsts, dtype=np.int64), version=release, **streams)


def _stream(batches: Iterator[list[str]], job: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and sizes of batches until each sample has come once an epoch; one epoch more at the most."""
    epochs, samples = job["epochs"], sum(job["counts"])
    seen, drawn, sizes = np.zeros(samples, dtype=np.int64), [], []
    while len(drawn) < epochs * samples or (seen.min() < epochs and len(drawn) < (epochs + 1) * samples):
        numbers = [int(text) for text in next(batches)]
        np.add.at(seen, numbers, 1)
        drawn += numbers
        sizes.append(len(numbers))
    return np.array(drawn, dtype=np.int64), np.array(sizes, dtype=np.int64)
