"""Cold start with ten thousand shards: the first batch of a new process whose data is not in the page cache.

Input: 10,000 shards of 5 texts. Output: runs of a first batch with two workers. Before each, the pages of
all files of the data are dropped from the page cache.
"""

import os
from pathlib import Path

from benchmarks.speed import data
from benchmarks.speed.programs import ENERGON, OURS, Figures, convert, run
from benchmarks.speed.rounds import Extent, report

WORKERS = 2
PEERS = (ENERGON, "webdataset", "mosaicml-streaming", "litdata")
WITHOUT = "datasets and torchdata do without shards, or with few"


def measure(extent: Extent) -> dict[str, list[Figures]]:
    """The runs of each library, in turn."""
    folder = data.make("cold", extent.folder, extent.scale)
    names = [OURS, *(name for name in PEERS if name in extent.peers)]
    for name in names:
        convert(name, "cold", folder)
    results: dict[str, list[Figures]] = {name: [] for name in names}
    for number in range(extent.rounds):
        for name in names:
            if number < extent.other_rounds or name in (OURS, ENERGON):
                drop_page_cache(folder)
                results[name].append(run(name, "cold", folder, WORKERS, 0))
                report("cold", WORKERS, name, results[name][-1])
    return results


def drop_page_cache(folder: Path) -> None:
    """Drop the pages of all files below a folder from the page cache, after writing dirty ones."""
    os.sync()
    for parent, _, files in os.walk(folder):
        for name in files:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
