"""The ledger writer: appends which samples each micro-batch had to the ledger file of a rank, during the run.

Enters: states with micro-batches that are not counted yet. Leaves: records, of the format in `ledger_files`.
Guarantees: a file is only appended to; a record that a crash cut short is cut off when the file is opened again.
Records are written at each save, when a loader is closed, and after 16,384 samples at the latest, so a kill loses no
more than the end, which a resume repeats. A file that cannot be written, or is damaged, does not stop the run.
"""

import contextlib
import errno
import fcntl
import io
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from bridge_data.errors import BridgeDataError, ConfigError, DatasetError, repeats
from bridge_data.loader.ledger_files import (
    MAGIC,
    DamagedLedgerError,
    encoded,
    has_begun,
    ledger_file,
    ledger_paths,
    record,
    records,
)
from bridge_data.order.ledger import waiting
from bridge_data.order.state import LoaderState
from bridge_data.storage.atomic import is_at
from bridge_data.topology import WorkerConfig

logger = logging.getLogger("bridge_data")

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

MAX_KEPT_BYTES = 1 << 24
"""Maximum bytes of references kept while a ledger file cannot be written: of 524,288 samples."""


class LedgerFile:
    """The ledger file of the rank of `config` in `folder`, opened to be appended to.

    No fault of the file system stops a started run: what cannot be written is logged, kept in memory up to
    `MAX_KEPT_BYTES`, and retried with each write. What is lost beyond that, or at the end, is logged. If a signal
    handler saves during a write, that write also writes the save.

    Raises:
        ConfigError: if another loader writes it, or it has another format; or if it cannot be written, and no run has
            a ledger in `folder` yet.
    """

    def __init__(self, folder: str | Path, config: WorkerConfig) -> None:
        self._folder, self._config, self._owner = Path(folder), config, os.getpid()
        self._path = ledger_file(self._folder, config.rank)
        self._from, self._last, self._needs_begin = 0, -1, True
        self._begin: dict[str, Any] = {}
        """Repetition and sources of what is written now."""
        self._kept: dict[int, bytes] = {}
        """References that are not written yet, by micro-batch."""
        self._fails = self._is_busy = self._is_closing = False
        self._file: io.FileIO | None = None
        self._end = 0
        try:
            self._open()
        except OSError as error:
            if not _has_ledger(self._folder):
                raise ConfigError(f"ledger_path={str(folder)!r}: cannot be written to: {error}") from error
            self._tell(error)

    def go_to(self, next_slot: int) -> None:
        """Note that the job continues with micro-batch `next_slot`: older records of that and later ones are superseded
        by the next write."""
        self._write_last()
        self._from, self._last, self._needs_begin = next_slot, -1, True

    def write(self, state: LoaderState) -> None:
        """Append the micro-batches that `state` has not counted yet. What was written before is not written again."""
        if os.getpid() != self._owner:
            return  # a child that the trainer forked
        self._kept.update(batch for batch in waiting(state.uncounted) if batch[0] > self._last)
        self._begin = {"repetition": state.repetition, "sources": state.fingerprint["sources"]}
        if (error := self._write_kept()) is None:
            return
        if sum(map(len, self._kept.values())) > MAX_KEPT_BYTES:
            self._lose(error)
        else:
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        self._fails = True
        if number := repeats.count((LedgerFile, str(self._folder))):
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
        self._file = _opened(self._path)
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
                with _opened(path) as file:
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


def _opened(path: Path) -> io.FileIO:
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
