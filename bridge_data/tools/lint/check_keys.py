"""Finding keys that occur more than once in a data set of any size, in memory that does not grow with it.

Enters: the keys of shards, in any order. Leaves: shard and offset of the repeated ones. Digests of 128 bits are sorted
into files on disk by their first bits, and each file, a few million keys, is then searched by itself.
"""

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

KEYS_A_FILE = 1 << 22
MAX_FILES = 256

KEY_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("shard", "<u4"), ("offset", "<u8")])
"""A key: its digest, the number of its shard, and where in the shard its sample begins."""


def digests(dataset: int, shard: int, keys: Sequence[str], offsets: Sequence[int]) -> NDArray[np.void]:
    """The rows of the samples of a shard; keys of different data sets are different keys."""
    table = np.zeros(len(keys), KEY_DTYPE)
    salt = dataset.to_bytes(8, "little")
    text = b"".join(
        hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=16, salt=salt).digest() for key in keys
    )
    table["high"], table["low"] = np.frombuffer(text, "<u8").reshape(-1, 2).T
    table["shard"], table["offset"] = shard, offsets[: len(keys)]
    return table


class KeyLog:
    """The keys of some data sets with about `num_keys` samples, on disk; a context manager that removes them."""

    def __init__(self, num_keys: int) -> None:
        self._bits = min(MAX_FILES.bit_length() - 1, max(0, (num_keys // KEYS_A_FILE).bit_length()))
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "KeyLog":
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bridge-data-lint-")))
        self._files: list[BinaryIO] = []
        for number in range(1 << self._bits):
            self._files.append(self._stack.enter_context(open(folder / str(number), "w+b")))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def add(self, rows: NDArray[np.void]) -> None:
        """Note the keys of a shard."""
        if not self._bits:
            self._files[0].write(rows.tobytes())
            return
        file_of = rows["high"] >> np.uint64(64 - self._bits)
        for number in np.unique(file_of).tolist():
            self._files[number].write(rows[file_of == number].tobytes())

    def repeated(self) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """((shard, offset) of the first sample with a key, the same of a later one in another shard)."""
        for file in self._files:
            file.seek(0)
            rows = np.frombuffer(file.read(), KEY_DTYPE)
            rows = rows[np.lexsort((rows["offset"], rows["shard"], rows["low"], rows["high"]))]
            same = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
            first = 0
            for number in (np.flatnonzero(same) + 1).tolist():
                if number < 2 or not same[number - 2]:
                    first = number - 1
                if rows["shard"][number] != rows["shard"][first]:
                    yield _position(rows[first]), _position(rows[number])


def _position(row: np.void) -> tuple[int, int]:
    return int(row["shard"]), int(row["offset"])
