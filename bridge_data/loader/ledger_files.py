"""Ledger files: which samples each micro-batch of a run had, one file a data-parallel rank in a folder of the run.

Enters: what `ledger_writer` wrote. Leaves: for any micro-batch, the keys of its samples. Guarantees: an incomplete
record that a crash left at the end (half of one, zeros) is ignored; damage before a whole record is an error; after a
resume from an earlier step, what came after that step is superseded, on any number of ranks.

A file is `MAGIC`, then records: length and CRC-32 (uint32 each, little-endian), then the payload. Payloads begin with a
letter. `B`, a beginning: JSON with the micro-batch where the rank continues, the repetition of finite data, and the
names and labels of the sources. `M`, micro-batches: two uint32 (micro-batches, samples), then six columns: number of
each micro-batch, its number of samples, then source, epoch, index and part of each sample. A column is its lowest value
(int64), the bytes of each difference from that (uint8: 0, 1, 2, 4 or 8), and the differences. That is 2 to 5 bytes a
sample.
"""

import bisect
import dataclasses
import io
import json
import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.lanes.restoring import SampleKey
from bridge_data.order.ledger import SAMPLE_BYTES, Columns, LedgerSums, MicroBatch, columns_of, tallies

MAGIC = b"bridge_data ledger 1\n"

_HEAD = struct.Struct("<II")
_COUNTS = struct.Struct("<II")
_COLUMN = struct.Struct("<qB")
_NAME = re.compile(r"ledger_dprank(\d{3,})\.bin")

_KIND = re.compile(rb"[BM]")
_MAX_CHECKED_BYTES = 1 << 30
"""Maximum bytes read to find a whole record after damage."""

_At = tuple[int, int]
"""(repetition, number of a micro-batch)."""


class DamagedLedgerError(DatasetError):
    """The record at byte `at` of the file at `path` is damaged, and whole ones come after it."""

    def __init__(self, path: Path, at: int) -> None:
        super().__init__(
            f"{path}: the record at byte {at} is damaged, and more come after it. Restore the file; or continue the "
            f"run with it, or cut it (truncate -s {at} {path.name}): then it lacks everything from that byte on"
        )
        self.at = at


def ledger_file(folder: Path, rank: int) -> Path:
    """The file of a rank."""
    return folder / f"ledger_dprank{rank:03d}.bin"


def ledger_paths(folder: Path) -> dict[int, Path]:
    """The files in `folder` by rank."""
    found = ((match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name)))
    return {int(match[1]): path for match, path in sorted(found, key=lambda item: int(item[0][1]))}


def record(payload: bytes) -> bytes:
    """A record with this payload."""
    return _head(payload) + payload


def _head(payload: bytes) -> bytes:
    return _HEAD.pack(len(payload), zlib.crc32(payload))


def has_begun(file: BinaryIO | io.FileIO, path: Path) -> bool:
    """Whether a file, open at its beginning, has a ledger; False if a crash left only zeros, or less.
    Records come next.

    Raises:
        DatasetError: if it is of another format, or damaged.
    """
    head = file.read(len(MAGIC))
    if head == MAGIC:
        return True
    if any(head) and not MAGIC.startswith(head):
        raise DatasetError(f"{path}: is not a ledger of a format that this release knows")
    if _has_record(file, 0):
        raise DamagedLedgerError(path, 0)
    return False


def records(file: BinaryIO | io.FileIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """(end, payload) of each whole record from here on.

    Raises:
        DamagedLedgerError: if one is damaged, and not the last.
    """
    at, size = file.tell(), os.fstat(file.fileno()).st_size
    while at + _HEAD.size <= size:
        length, checksum = _HEAD.unpack(file.read(_HEAD.size))
        end = at + _HEAD.size + length
        payload = file.read(length) if end <= size else b""
        if not payload or zlib.crc32(payload) != checksum:
            if _has_record(file, at + 1):
                raise DamagedLedgerError(path, at)
            return  # torn, or being written
        yield end, payload
        at = end


def _has_record(file: BinaryIO | io.FileIO, begin: int) -> bool:
    """Whether there is a whole record at byte `begin` or later; True if finding out takes too long."""
    left, size = _MAX_CHECKED_BYTES, os.fstat(file.fileno()).st_size
    if size <= begin + _HEAD.size:
        return False
    with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as content:
        for found in _KIND.finditer(content, begin + _HEAD.size):
            length, checksum = _HEAD.unpack_from(content, found.start() - _HEAD.size)
            end = found.start() + length
            if not length or end > size:
                continue
            left -= length
            if left < 0 or zlib.crc32(content[found.start() : end]) == checksum:
                return True
    return False


def encoded(batches: Sequence[MicroBatch]) -> bytes:
    """Micro-batches as the payload of a record."""
    numbers, sizes, samples = Columns.of(batches)
    return _COUNTS.pack(len(numbers), samples.shape[1]) + b"".join(map(_column, (numbers, sizes, *samples)))


def _column(values: NDArray[np.int64]) -> bytes:
    if not len(values):
        return _COLUMN.pack(0, 0)
    lowest, highest = int(values.min()), int(values.max())
    width = next(width for width in (0, 1, 2, 4, 8) if highest - lowest < 1 << 8 * width)
    data = b"" if width == 0 else (values - lowest).astype(f"<u{width}").tobytes()
    return _COLUMN.pack(lowest, width) + data


def decoded(payload: bytes) -> list[MicroBatch]:
    """The inverse of `encoded`."""
    num_batches, num_samples = _COUNTS.unpack_from(payload)
    numbers, sizes, *samples = _columns(payload, num_batches, num_samples)
    ends = (np.cumsum(sizes) * SAMPLE_BYTES).tolist()
    references = np.stack(samples, axis=1).astype("<i8").tobytes()
    each = zip(numbers.tolist(), [0, *ends[:-1]], ends, strict=True)
    return [(number, references[start:end]) for number, start, end in each]


def _columns(payload: bytes, num_batches: int, num_samples: int) -> Iterator[NDArray[np.int64]]:
    at = _COUNTS.size
    for count in (num_batches, num_batches, *[num_samples] * 4):
        lowest, width = _COLUMN.unpack_from(payload, at)
        at += _COLUMN.size
        values = np.full(count, lowest, dtype=np.int64)
        if width:
            values += np.frombuffer(payload, f"<u{width}", count, at).astype(np.int64)
            at += count * width
        yield values


@dataclasses.dataclass(slots=True)
class _Record:
    """Where a record of micro-batches is, its first and last valid ones, and whose sources they number."""

    first: _At
    last: _At
    path: Path
    at: int
    length: int
    sources: list[str]


class RunLedger:
    """The ledger files of all ranks in `folder`, as of the last `update` (the first is made here); also of a
    running job.

    Raises:
        ConfigError: if there are none. DatasetError: naming file and byte, if one is damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._ranks: dict[Path, _RankLedger] = {}
        self.update()

    def update(self) -> bool:
        """Read what was written since; return whether anything was. Raises as when opened."""
        paths = ledger_paths(self.folder) if self.folder.is_dir() else {}
        if not paths:
            raise ConfigError(f"{self.folder}: holds no ledger; expected {ledger_file(Path(), 0)} and one per rank")
        ranks = {path: self._ranks.get(path) or _RankLedger(path) for path in paths.values()}
        has_changed = ranks.keys() != self._ranks.keys()
        for rank in ranks.values():
            has_changed |= rank.update()
        self._ranks = ranks
        return has_changed

    @property
    def last(self) -> tuple[int, int] | None:
        """(repetition, number) of the last micro-batch; None if there is none yet."""
        return max((rank.records[-1].last for rank in self._ranks.values() if rank.records), default=None)

    def has(self, number: int) -> bool:
        """Whether it has a micro-batch of the first pass through the data."""
        return self._references(number, 0) is not None

    def micro_batch(self, number: int, repetition: int = 0) -> list[SampleKey]:
        """The samples of micro-batch `number` of the job, in their order.

        Raises:
            ConfigError: if the ledger does not have it.
        """
        found = self._references(number, repetition)
        if found is None:
            raise ConfigError(f"{self.folder}: the ledger does not have micro-batch {number}")
        return _keys(*found)

    def __iter__(self) -> Iterator[tuple[int, list[SampleKey]]]:
        """(number, samples) of each micro-batch, rank by rank."""
        for record in self._records():
            for number, references in _read(record):
                yield number, _keys(references, record.sources)

    def sums(self) -> Iterator[tuple[_At, LedgerSums]]:
        """((repetition, number), sums) of each micro-batch, rank by rank."""
        for record in self._records():
            batches = _read(record)
            sums = tallies(batches, record.sources, record.first[0])
            yield from (((record.first[0], number), one) for (number, _), one in zip(batches, sums, strict=True))

    def _records(self) -> Iterator[_Record]:
        return (record for rank in self._ranks.values() for record in rank.records)

    def _references(self, number: int, repetition: int) -> tuple[bytes, list[str]] | None:
        """(references of a micro-batch, the sources that they number); None if it is not there."""
        for rank in self._ranks.values():
            at = bisect.bisect_right([record.first for record in rank.records], (repetition, number)) - 1
            if at >= 0 and rank.records[at].last >= (repetition, number):
                for found, references in _read(rank.records[at]):
                    if found == number:
                        return references, rank.records[at].sources
        return None


class _RankLedger:
    """The file of a rank: its `records` that are not superseded, by their micro-batches, and how far it was read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self.records: list[_Record] = []
        self._repetition, self._sources = 0, list[str]()
        self._read_to, self._last_head = 0, (0, b"")
        self._stamp: tuple[int, ...] | None = None

    def update(self) -> bool:
        """Read the records added since, all if the file was replaced or cut; return whether it has changed."""
        found = os.stat(self._path)
        stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if stamp == self._stamp:
            return False
        with self._path.open("rb") as file:
            is_longer = self._stamp is None or (stamp[:2] == self._stamp[:2] and stamp[2] > self._stamp[2])
            if not (is_longer and self._goes_on(file)):
                self._begin()
            self._read(file)
        self._stamp = stamp
        return True

    def _goes_on(self, file: BinaryIO) -> bool:
        """Whether the last record read is still there."""
        at, head = self._last_head
        file.seek(at)
        return file.read(len(head)) == head

    def _read(self, file: BinaryIO) -> None:
        file.seek(self._read_to)
        if self._read_to == 0 and not has_begun(file, self._path):
            return
        self._read_to = file.tell()
        for end, payload in records(file, self._path):
            self._take(payload, end - len(payload))
            self._read_to, self._last_head = end, (end - len(payload) - _HEAD.size, _head(payload))

    def _take(self, payload: bytes, at: int) -> None:
        """A record whose payload is at byte `at`."""
        kind, body = payload[:1], payload[1:]
        if kind == b"B":
            begin: Mapping[str, Any] = json.loads(body)
            self._repetition, self._sources = begin["repetition"], [name for name, _ in begin["sources"]]
            self.records = _before(self.records, (self._repetition, begin["from"]))
        elif kind == b"M":
            numbers = next(_columns(body, *_COUNTS.unpack_from(body)))
            first, last = (self._repetition, int(numbers[0])), (self._repetition, int(numbers[-1]))
            self.records = _before(
                self.records, first
            )  # an interrupted save wrote them, and the next one wrote them again
            self.records.append(_Record(first, last, self._path, at, len(payload), self._sources))
        else:
            raise DatasetError(f"{self._path}: has a record of kind {kind!r}, which a later release wrote; use that")


def _before(records: list[_Record], stop: _At) -> list[_Record]:
    """The records of micro-batches before `stop`."""
    if not records or records[-1].last < stop:
        return records
    kept = [record for record in records if record.first < stop]
    if kept and kept[-1].last >= stop:
        kept[-1].last = stop[0], stop[1] - 1
    return kept


def _read(record: _Record) -> list[MicroBatch]:
    with record.path.open("rb") as file:
        file.seek(record.at + 1)
        batches = decoded(file.read(record.length - 1))
    return [batch for batch in batches if (record.first[0], batch[0]) <= record.last]


def _keys(references: bytes, sources: Sequence[str]) -> list[SampleKey]:
    columns = columns_of(references).tolist()
    return [SampleKey(sources[source], *rest) for source, *rest in zip(*columns, strict=True)]
