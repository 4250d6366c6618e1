"""The ledger writer: appends which samples each micro-batch had to the ledger file of a rank, while the run goes on.

Enters: states with micro-batches that are not counted yet. Leaves: records, of the format in `ledger_files`.
Guarantees: a file is only appended to; a record that a crash cut short is cut off when the file is opened again.
Records are written at each save, when a loader is closed, and after 16,384 samples at the latest, so a kill loses no
more than the end, which a resume repeats. A file that cannot be written does not stop the run.
"""

import contextlib
import fcntl
import io
import json
import logging
import os
from pathlib import Path

from bridge_data.errors import BridgeDataError, ConfigError, repeats
from bridge_data.loader.ledger_files import MAGIC, encoded, ledger_file, ledger_paths, record, records
from bridge_data.order.ledger import waiting
from bridge_data.order.state import LoaderState
from bridge_data.topology import WorkerConfig

logger = logging.getLogger("bridge_data")

MAX_KEPT_BYTES = 1 << 24
"""References that are kept while a ledger file cannot be written: of 524,288 samples."""


class LedgerFile:
    """The ledger file of the rank of `config` in `folder`, opened to be appended to.

    Once it is open, a disk that is full or fails does not stop the run: what cannot be written is logged, kept in
    memory up to `MAX_KEPT_BYTES`, and tried again with each write. What is lost beyond that, or at the end, is logged.

    Raises:
        ConfigError: if another loader writes it, or it cannot be written.
    """

    def __init__(self, folder: str | Path, config: WorkerConfig) -> None:
        self._folder, self._config, self._owner = Path(folder), config, os.getpid()
        self._from, self._last, self._begin = 0, -1, b""
        self._kept: dict[int, bytes] = {}
        """References that are not written yet, by micro-batch."""
        self._fails = False
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = _opened(ledger_file(self._folder, config.rank))
        except OSError as error:
            raise ConfigError(f"ledger_path={str(folder)!r}: cannot be written to: {error}") from error
        self._end = self._file.tell()

    def go_to(self, next_slot: int) -> None:
        """Note that the job goes on with micro-batch `next_slot`: what it wrote of that and later ones is superseded
        once something is written."""
        self._write_last()
        self._from, self._last, self._begin = next_slot, -1, b""

    def write(self, state: LoaderState) -> None:
        """Append the micro-batches that `state` has not counted yet. What was written before is not written again."""
        if os.getpid() != self._owner:
            return  # a child that the trainer forked
        self._kept.update(batch for batch in waiting(state) if batch[0] > self._last)
        if self._last < 0 and not self._begin:
            begin = {"repetition": state.repetition, "from": self._from, "sources": state.fingerprint["sources"]}
            self._begin = record(b"B" + json.dumps(begin).encode())
        if (error := self._write_kept()) is None:
            return
        if sum(map(len, self._kept.values())) > MAX_KEPT_BYTES:
            self._lose(error)
        elif number := repeats.count((LedgerFile, str(self._folder))):
            logger.error(
                "rank %d: the ledger in %s cannot be written, from micro-batch %d on: %s. The run goes on, and tries "
                "again; free space there soon (failure number %d)",
                self._config.rank,
                self._folder,
                min(self._kept),
                error,
                number,
            )

    def _write_kept(self) -> Exception | None:
        """Append what is kept; the error if it cannot be, and is still kept."""
        if not self._kept or os.getpid() != self._owner:
            return None
        batches = sorted(self._kept.items())
        try:
            if self._begin:
                self._supersede(self._begin)
            data = self._begin + record(b"M" + encoded(batches))
            _append(self._file, self._end, data)
        except (OSError, BridgeDataError) as error:
            self._fails = True
            return error
        self._end += len(data)
        self._begin, self._last, self._kept = b"", batches[-1][0], {}
        if self._fails:
            self._fails = False
            logger.warning("rank %d: the ledger in %s is written again", self._config.rank, self._folder)
        return None

    def _write_last(self) -> None:
        """Append what is kept, or lose it."""
        if (error := self._write_kept()) is not None:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        first, last = min(self._kept), max(self._kept)
        self._kept, self._last = {}, last
        logger.error(
            "rank %d: the ledger in %s LACKS micro-batches %d to %d of this rank, which could not be written: %s",
            self._config.rank,
            self._folder,
            first,
            last,
            error,
        )

    def _supersede(self, begin: bytes) -> None:
        """Append a beginning to the files of ranks that this run does not have; its rank 0 does it."""
        others = ledger_paths(self._folder) if self._config.rank == 0 else {}
        for rank, path in others.items():
            if rank >= self._config.world_size:
                with _opened(path) as file:
                    _append(file, file.tell(), begin)

    def close(self) -> None:
        """Let others write the file."""
        self._write_last()
        self._file.close()


def _append(file: io.FileIO, end: int, data: bytes) -> None:
    """Write `data` at `end`, where the last whole record ends; a part of it does not stay."""
    if os.fstat(file.fileno()).st_size != end:
        file.truncate(end)
    try:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]
    except BaseException:  # also Ctrl-C
        with contextlib.suppress(OSError):  # then the next write begins with it
            file.truncate(end)
        raise


def _opened(path: Path) -> io.FileIO:
    """The file at `path` with only whole records, at its end, and locked."""
    file = io.FileIO(path, "a+")
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{path}: another loader writes this ledger. Close it first; where tensor-, pipeline- or context-"
                "parallel processes share a data-parallel rank, give ledger_path to one of them"
            ) from None
        file.seek(0)  # each record is read by one call: regular files give all that is asked for
        size = os.fstat(file.fileno()).st_size
        if size < len(MAGIC):
            _append(file, 0, MAGIC)
            return file
        if file.read(len(MAGIC)) != MAGIC:
            raise ConfigError(f"{path}: is no ledger that this release can write; give another folder")
        ends = [len(MAGIC), *(end for end, _ in records(file, path))]
        file.truncate(ends[-1])
        file.seek(0, os.SEEK_END)
        return file
    except BaseException:
        file.close()
        raise
