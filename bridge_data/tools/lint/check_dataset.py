"""Checks across shards: whether the files in `.nv-meta` agree with each other and with the folder, and which keys occur
in several shards.

`check_metadata` opens no shard. `KeyLog` finds repeated keys in bounded memory for any size of data set: 128-bit
digests are sorted into files on disk by their first bits, and each file, a few million keys, is then searched alone.
"""

import contextlib
import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from bridge_data.errors import BridgeDataError
from bridge_data.prepare.tars import find_shards
from bridge_data.shards.index_file import BridgeIndex
from bridge_data.shards.metadata import (
    BRIDGE_INDEX,
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    SPLIT_JSON,
    SPLIT_YAML,
    load_document,
    read_shard_counts,
    read_split,
    read_uuid,
)
from bridge_data.tools.lint.faults import Fault

KEYS_A_FILE = 1 << 22
MAX_FILES = 256

KEY_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("shard", "<u4"), ("offset", "<u8")])
"""A key: its digest, the number of its shard, and the offset of its sample in the shard."""


def check_metadata(root: Path) -> Iterator[Fault]:
    """Faults in the metadata of the data set in the folder `root`."""
    dataset, meta = str(root), root / META_FOLDER
    try:
        counts = read_shard_counts(meta)
    except BridgeDataError as error:
        yield Fault("metadata-damaged", str(error), dataset)
        return
    yield from _check_twins(meta, dataset)
    for name in counts:
        if not (root / name).is_file():
            yield Fault(
                "missing-shard", f"{INFO_JSON} has {counts[name]} samples in it, but the file is missing", dataset, name
            )
    for name in _tars(root):
        if name not in counts:
            yield Fault("unprepared-shard", f"{INFO_JSON} does not list it", dataset, name)
    try:
        split = read_split(meta)
        exclude = split.excluded()
    except BridgeDataError as error:
        yield Fault("metadata-damaged", str(error), dataset)
    else:
        parts = {}
        for part in split.parts:
            try:
                parts[part] = split.shards(part)
            except BridgeDataError as error:
                yield Fault("metadata-damaged", str(error), dataset)
        yield from _check_split(parts, exclude, counts, dataset)
    index = BridgeIndex.open(meta / BRIDGE_INDEX)
    if index is None:
        if (meta / BRIDGE_INDEX).is_file():
            yield Fault("index-outdated", f"{BRIDGE_INDEX} is damaged, or of another version", dataset)
    elif not index.describes(counts, read_uuid(meta)):
        yield Fault("index-outdated", f"{BRIDGE_INDEX} is of another preparation than {INFO_JSON}", dataset)


def _check_twins(meta: Path, dataset: str) -> Iterator[Fault]:
    """Compare files that exist in two formats."""
    for first, second in ((INFO_JSON, INFO_YAML), (SPLIT_YAML, SPLIT_JSON)):
        if not ((meta / first).is_file() and (meta / second).is_file()):
            continue
        try:
            same = load_document(meta / first) == load_document(meta / second)
        except BridgeDataError as error:
            yield Fault("metadata-damaged", str(error), dataset)
            continue
        if not same:
            yield Fault("metadata-disagree", f"{first} and {second} differ; {first} is used", dataset)


def _check_split(
    parts: dict[str, list[str]], exclude: list[str], counts: dict[str, int], dataset: str
) -> Iterator[Fault]:
    used = set(exclude)
    for part, names in parts.items():
        for name, times in Counter(names).items():
            if name not in counts:
                yield Fault("split-unknown-shard", f"split part {part!r} lists it, {INFO_JSON} does not", dataset, name)
            elif times > 1:
                yield Fault("split-repeated-shard", f"{times} times in split part {part!r}", dataset, name)
        used.update(names)
    for name in counts:
        if name not in used:
            yield Fault("unused-shard", f"in none of {', '.join(parts) or 'no parts at all'}", dataset, name)
    for entry in exclude:
        shards = {entry[:at] for at, character in enumerate(entry) if character == "/"}
        if entry not in counts and shards.isdisjoint(counts):
            yield Fault("exclude-unknown", f"`exclude` names {entry!r}, but there is no such shard", dataset)


def _tars(root: Path) -> list[str]:
    try:
        return find_shards(root)
    except BridgeDataError:
        return []


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
    """The keys of data sets with about `num_keys` samples in all, on disk; a context manager that removes them."""

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
        """Record the keys of a shard."""
        if not self._bits:
            self._files[0].write(rows.tobytes())
            return
        file_of = rows["high"] >> np.uint64(64 - self._bits)
        for number in np.unique(file_of).tolist():
            self._files[number].write(rows[file_of == number].tobytes())

    def repeated(self) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """((shard, offset) of the first sample with a key, (shard, offset) of a later one in another shard)."""
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
