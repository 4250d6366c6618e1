"""Ledger files: which samples each micro-batch of a run had, one file a data-parallel rank in a folder of the run.

    loader ─▶ LedgerFile ─▶ ledger_dprank000.bin ... ─▶ RunLedger ─▶ the samples of any micro-batch

Reads the samples of each micro-batch that a rank gets, as the lanes noted them, and appends them to the file of the
rank. Returns for any micro-batch the keys of its samples. An incomplete record that a crash left at the end (half of
one, zeros) is ignored, and cut off when a run opens the file again; damage before a whole record is an error; after a
resume from an earlier step, what came after that step is superseded, on any number of ranks. Records are written at
each save, when a loader is closed, and after 16,384 samples at the latest, so a kill loses no more than the end, which
a resume repeats. A file that cannot be written, or is damaged, does not stop a run. In an object store, where nothing
can be appended to, a file is replaced when the loader is closed, and before that at writes, as long as this takes
little time.

A file is `MAGIC`, then records: length and CRC-32 (uint32 each, little-endian), then the payload. Payloads begin with a
letter. `B`, a beginning: JSON with the micro-batch where the rank continues, the repetition of finite data, and the
names and labels of the sources. `M`, micro-batches: two uint32 (micro-batches, samples), then six columns: number of
each micro-batch, its number of samples, then source, epoch, index and output of each sample. A column is its lowest
value (int64), the bytes of each difference from that (uint8: 0, 1, 2, 4 or 8), and the differences. That is 2 to 5
bytes a sample.
"""

import bisect
import contextlib
import dataclasses
import errno
import fcntl
import io
import json
import logging
import mmap
import os
import re
import shutil
import struct
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from bridge_data import storage
from bridge_data.errors import BridgeDataError, ConfigError, DatasetError, log_throttle
from bridge_data.order.cursor import SampleKey
from bridge_data.order.extras import Recorder
from bridge_data.order.state import LoaderState
from bridge_data.plugins.ledger.ledger_sums import (
    SAMPLE_BYTES,
    Columns,
    LedgerSums,
    MicroBatch,
    columns_of,
    tallies,
)
from bridge_data.storage import AnyLocation, RemotePath
from bridge_data.storage.atomic import is_at
from bridge_data.topology import WorkerConfig

logger = logging.getLogger("bridge_data")

MAGIC = b"bridge_data ledger 1\n"

_HEAD = struct.Struct("<II")
_COUNTS = struct.Struct("<II")
_COLUMN = struct.Struct("<qB")
_NAME = re.compile(r"ledger_dprank(\d{3,})\.bin")

_KIND = re.compile(rb"[BM]")
_MAX_CHECKED_BYTES = 1 << 30
"""Maximum bytes read to find a whole record after damage."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

_MAX_UNWRITTEN_BYTES = 1 << 19
"""Maximum bytes of references that wait to be written: of 16,384 samples."""
_LEAST_BYTES = 1 << 9
"""Minimum that a micro-batch counts for, so that not too many wait."""

MAX_KEPT_BYTES = 1 << 24
"""Maximum bytes of references kept while a ledger file cannot be written: of 524,288 samples."""

_RARELY = 20
"""What is left of the time of a run, to what uploads to a store take of it: 5 %."""

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


def ledger_file(folder: AnyLocation, rank: int) -> AnyLocation:
    """The file of a rank."""
    return folder / f"ledger_dprank{rank:03d}.bin"


def ledger_paths(folder: AnyLocation) -> dict[int, AnyLocation]:
    """The files in `folder` by rank."""
    names = os.listdir(folder) if isinstance(folder, Path) else storage.list_sizes(str(folder))
    found = {int(match[1]): folder / name for name in names if (match := _NAME.fullmatch(name))}
    return dict(sorted(found.items()))


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
    """The ledger files of all ranks in `folder`, a path or URL, as of the last `update` (the first is made here); also
    of a running job.

    Raises:
        ConfigError: if there are none.
        DatasetError: naming file and byte, if one is damaged.
    """

    FILES: ClassVar[str] = "ledger_dprank"

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = storage.location(folder)
        self._ranks: dict[Path, _RankLedger] = {}
        self.update()

    def update(self) -> bool:
        """Read what was written since; return whether anything was. Raises as when opened."""
        stored = ledger_paths(self.folder).values() if self.folder.is_dir() else ()
        if not stored:
            raise ConfigError(f"{self.folder}: holds no ledger; expected {ledger_file(Path(), 0)} and one per rank")
        paths = [path for one in stored if (path := storage.local_copy(one)) is not None]
        ranks = {path: self._ranks.get(path) or _RankLedger(path) for path in paths}
        has_changed = ranks.keys() != self._ranks.keys()
        for rank in ranks.values():
            has_changed |= rank.update()
        self._ranks = ranks
        return has_changed

    @property
    def last(self) -> tuple[int, int] | None:
        """(repetition, number) of the last micro-batch; None if there is none yet."""
        return max((rank.records[-1].last for rank in self._ranks.values() if rank.records), default=None)

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


class LedgerFile(Recorder):
    """The ledger file of the rank of `config` in `folder`, a path or URL, opened to be appended to.

    No fault of the file system stops a started run: what cannot be written is logged, kept in memory up to
    `MAX_KEPT_BYTES`, and retried with each write. What is lost beyond that, or at the end, is logged. If a signal
    handler saves during a write, that write also writes the save.

    Raises:
        ConfigError: if another loader writes it, or it has another format; or if it cannot be written, and no run has
            a ledger in `folder` yet.
    """

    def __init__(self, folder: str | os.PathLike[str], config: WorkerConfig) -> None:
        target = storage.output("ledger_path", folder)
        self._uploads: _Uploads | None = None
        if isinstance(target, Path):
            self._folder = target
        else:
            self._uploads = _Uploads(target, config)
            self._folder = self._uploads.folder
        self._config, self._owner = config, os.getpid()
        self._path = ledger_file(self._folder, config.rank)
        self._from, self._last, self._needs_begin = 0, -1, True
        self._begin: dict[str, Any] = {}
        """Repetition and sources of what is written now."""
        self._kept: dict[int, bytes] = {}
        """References that are not written yet, by micro-batch."""
        self._num_unwritten_bytes = 0
        self._fails = self._is_busy = self._is_closing = False
        self._file: io.FileIO | None = None
        self._end = 0
        try:
            self._open()
            if self._uploads is not None:
                self._uploads.send()
        except (OSError, DatasetError) as error:
            if self._uploads is not None or not _has_ledger(self._folder):
                raise ConfigError(f"ledger_path={str(folder)!r}: cannot be written to: {error}") from error
            self._tell(error)

    def begin(self, state: LoaderState) -> None:
        """The job continues with that of `state`: older records of that micro-batch and later ones are superseded by
        the next write."""
        self._write_last()
        self._from, self._last, self._needs_begin = state.micro_batch_index, -1, True
        self._begin = {"repetition": state.repetition, "sources": state.fingerprint["sources"]}

    def note(self, index: int, noted: bytes) -> None:
        """The references of a micro-batch, which is written now or later. What was written is not written again."""
        if index <= self._last or os.getpid() != self._owner:  # a child that the trainer forked writes nothing
            return
        self._kept[index] = noted
        self._num_unwritten_bytes += max(len(noted), _LEAST_BYTES)
        if self._num_unwritten_bytes > _MAX_UNWRITTEN_BYTES:
            self.save()

    def save(self) -> None:
        """Append the micro-batches that wait."""
        if os.getpid() != self._owner:
            return
        self._num_unwritten_bytes = 0
        if (error := self._write_kept()) is None:
            if self._uploads is not None:
                self._uploads.send_if_cheap()
            return
        if sum(map(len, self._kept.values())) > MAX_KEPT_BYTES:
            self._lose(error)
        else:
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        self._fails = True
        if number := log_throttle.count((LedgerFile, str(self._folder))):
            logger.error(
                "rank %d: the ledger in %s cannot be written, from micro-batch %d on: %s. The run continues and "
                "retries; make it writable soon (failure number %d)",
                self._config.rank,
                self._folder,
                min(self._kept, default=self._from),
                error,
                number,
            )

    def _write_kept(self) -> Exception | None:
        """Append what is kept; return the error if that fails: it is still kept."""
        while self._kept and not self._is_busy and os.getpid() == self._owner:
            try:
                self._is_busy = True
                self._write_now(sorted(self._kept.items()))
            except (OSError, BridgeDataError) as error:
                return error
            finally:
                self._is_busy = False
                if self._is_closing:
                    self.close()
        return None

    def _write_now(self, batches: list[tuple[int, bytes]]) -> None:
        if not batches:
            return  # a signal handler has just written them
        file, begin = self._opened(), b""
        if self._needs_begin:
            begin = record(b"B" + json.dumps({**self._begin, "from": self._from}).encode())
            self._supersede(begin)
        data = begin + record(b"M" + encoded(batches))
        _append(file, self._end, data)
        self._end += len(data)
        # In this order: after an interrupt here it is written again, which supersedes this.
        self._needs_begin, self._last = False, batches[-1][0]
        for number, _ in batches:
            self._kept.pop(number, None)
        if self._fails:
            self._fails = False
            logger.warning("rank %d: the ledger in %s can be written again", self._config.rank, self._folder)

    def _opened(self) -> io.FileIO:
        """The file, reopened if it could not be opened, or is not the one written before."""
        if self._file is not None:
            if is_at(self._file.fileno(), self._path) and os.fstat(self._file.fileno()).st_size >= self._end:
                return self._file
            logger.error(
                "rank %d: %s was removed, replaced or cut short while the run wrote it: it LACKS micro-batches before "
                "%d, which it had",
                self._config.rank,
                self._path,
                min(self._kept),
            )
            self._from, self._needs_begin = max(self._from, min(self._kept)), True
            self._file.close()
            self._file = None
        return self._open()

    def _open(self) -> io.FileIO:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = _open_whole(self._path)
        self._end = self._file.tell()
        return self._file

    def _write_last(self) -> None:
        """Append what is kept, or lose it."""
        if (error := self._write_kept()) is not None:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        first, last = min(self._kept), max(self._kept)
        self._kept, self._last, self._fails = {}, last, True
        logger.error(
            "rank %d: the ledger in %s LACKS micro-batches %d to %d of this rank, which could not be written: %s",
            self._config.rank,
            self._folder,
            first,
            last,
            error,
        )

    def _supersede(self, begin: bytes) -> None:
        """On rank 0: append a beginning to the files of ranks that this run does not have."""
        others = ledger_paths(self._folder) if self._config.rank == 0 else {}
        for rank, path in others.items():
            if rank >= self._config.world_size:
                with _open_whole(path) as file:
                    _append(file, file.tell(), begin)

    def close(self) -> None:
        """Let others write the file."""
        if self._is_busy:  # a signal handler closes the loader: the interrupted call does this at its end
            self._is_closing = True
            return
        self._is_closing = False
        self._write_last()
        if self._file is None:
            return
        try:
            if os.getpid() == self._owner:
                with contextlib.suppress(OSError):  # if there are no locks
                    fcntl.flock(self._file, fcntl.LOCK_UN)  # which children that the trainer forked hold, too
            self._file.close()
        except OSError as error:  # network file systems may say only now what they could not write
            logger.error("rank %d: the end of %s may be LACKING: %s", self._config.rank, self._path, error)
        if self._uploads is not None and os.getpid() == self._owner:
            self._uploads.finish()


class _Uploads:
    """The files of a rank's ledger in a store, at `target`: those that it appends to are in `folder`, on this machine,
    and replace the objects.

    Raises:
        ConfigError: if the store cannot be read.
    """

    def __init__(self, target: RemotePath, config: WorkerConfig) -> None:
        import tempfile  # imported here: slow, and a ledger on a disk needs none

        self._target, self._rank = target, config.rank
        self.folder = Path(tempfile.mkdtemp(prefix="bridge_data_ledger."))
        self._sent_bytes: dict[str, int] = {}
        self._sent_s = self._took_s = 0.0
        try:
            stored = ledger_paths(target) if config.rank == 0 else {config.rank: ledger_file(target, config.rank)}
            for rank, path in stored.items():
                is_written = rank == config.rank or rank >= config.world_size
                if is_written and (content := storage.read_if_there(path)) is not None:
                    (self.folder / path.name).write_bytes(content)
                    self._sent_bytes[path.name] = len(content)
        except (OSError, DatasetError) as error:
            raise ConfigError(f"ledger_path={str(target)!r}: cannot be read: {error}") from error

    def send(self) -> None:
        """Replace the objects whose files have changed."""
        began_s = time.monotonic()
        for path in ledger_paths(self.folder).values():
            size = path.stat().st_size
            if self._sent_bytes.get(path.name) != size:
                storage.upload(self._target / path.name, path)
                self._sent_bytes[path.name] = size
        self._sent_s = time.monotonic()
        self._took_s = self._sent_s - began_s

    def send_if_cheap(self) -> None:
        """`send`, if that has little of a run's time: at most one part in `_RARELY`. A fault is logged."""
        if time.monotonic() - self._sent_s < _RARELY * self._took_s:
            return
        try:
            self.send()
        except BridgeDataError as error:
            self._sent_s = time.monotonic()
            if number := log_throttle.count((_Uploads, str(self._target))):
                logger.error(
                    "rank %d: the ledger in %s cannot be written: %s. The run continues and retries (failure number "
                    "%d)",
                    self._rank,
                    self._target,
                    error,
                    number,
                )

    def finish(self) -> None:
        """`send`, and remove the files; they stay if that fails."""
        try:
            self.send()
        except BridgeDataError as error:
            logger.error(
                "rank %d: the ledger in %s LACKS its end, which could not be written: %s. It is in %s: copy it",
                self._rank,
                self._target,
                error,
                self.folder,
            )
            return
        shutil.rmtree(self.folder, ignore_errors=True)


def _has_ledger(folder: Path) -> bool:
    """Whether a run has written a ledger in `folder`."""
    try:
        return bool(ledger_paths(folder))
    except OSError:
        return False


def _append(file: io.FileIO, end: int, data: bytes) -> None:
    """Write `data` at `end`, where the last whole record ends; a partial write is removed."""
    if os.fstat(file.fileno()).st_size != end:
        file.truncate(end)
    try:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]
    except BaseException:  # also Ctrl-C
        with contextlib.suppress(OSError):  # then the next write starts by doing it
            file.truncate(end)
        raise


def _open_whole(path: Path) -> io.FileIO:
    """The file at `path` with only whole records, at its end, and locked where its file system has locks."""
    file = io.FileIO(path, "a+")
    try:
        _lock(file, path)
        file.seek(0)  # each record is read by one call: regular files return all bytes requested
        end = 0
        try:
            if has_begun(file, path):
                end = len(MAGIC)
                for end, _ in records(file, path):  # noqa: B007
                    pass
        except DamagedLedgerError as error:
            end = error.at
            aside = path.with_name(f"{path.name}.damaged-at-{end}")
            shutil.copyfile(path, aside)
            logger.error("%s. The run continues without anything from there on; a copy of the file is %s", error, aside)
        except DatasetError as error:
            raise ConfigError(f"{error}; set another folder as ledger_path") from error
        if end:
            file.truncate(end)
        else:
            _append(file, 0, MAGIC)
        file.seek(0, os.SEEK_END)
        return file
    except BaseException:
        file.close()
        raise


def _lock(file: io.FileIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"{path}: another loader writes this ledger. Close it first; if tensor-, pipeline- or context-"
            "parallel processes share a data-parallel rank, set ledger_path on only one of them"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning("%s: its file system has no locks (%s); ensure that only one loader writes it", path, error)
