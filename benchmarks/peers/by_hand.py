"""A hand-written data set for one workload: all texts in one memory-mapped file, keys and offsets in memory.

It has no shards, no resume of a blend, no provenance. It shows how fast Python can be with a sample, and what
torchdata's StatefulDataLoader adds for the transfer from a worker.
"""

import mmap
import shutil
from pathlib import Path
from typing import Any

import measure
import numpy as np
import work
from torch.utils.data import Dataset
from torchdata_files import Loader

FOLDER = "mapped"


def convert(workload: str, data: Path) -> None:
    """Copy the tars of a workload into one file, with the offset of each sample."""
    part = work.part_of(workload)
    for folder in work.sets_of(data):
        target = folder / FOLDER
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        keys, ends, end = [], [0], 0
        with open(target / "all", "wb") as file:
            for key, parts in work.read_tars(folder / "tars"):
                file.write(parts[part])
                keys.append(key)
                end += len(parts[part])
                ends.append(end)
        np.savez(target / "index.npz", keys=np.array(keys), ends=np.array(ends))


class Records(Dataset):
    """Records of one mapped file."""

    def __init__(self, workload: str, folder: Path) -> None:
        index = np.load(folder / FOLDER / "index.npz")
        self._keys, self._ends = index["keys"].tolist(), index["ends"].tolist()
        with open(folder / FOLDER / "all", "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._decode = work.DECODERS.get(workload, ("", bytes.decode))[1]

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, at: int) -> Any:
        return self._keys[at], self._decode(self._bytes[self._ends[at] : self._ends[at + 1]])


class Mapped(Loader):
    """The same loader over `Records`."""

    samples = Records
    format = "one mapped file, written for this"


if __name__ == "__main__":
    measure.main(Mapped, convert)
