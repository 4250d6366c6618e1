"""What a source of a conversion is: numbered records, which any process can read by their numbers.

Opening a source, once, finds the number of its records and where they are, in some bytes of memory for each; their
contents are read later, in forked processes. Guarantee: a number stands for the same record as long as the fingerprint
is the same; what cannot be read is a `BrokenRecord`, never skipped.
"""

import codecs
import fnmatch
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from bridge_data import storage
from bridge_data.errors import ConfigError

Opened = TypeVar("Opened")


class SourceRecord(NamedTuple):
    """A record: its columns, or the parts of a sample. `where` names it in messages, as in `photos.csv, line 12`."""

    number: int
    where: str
    values: Mapping[str, Any]
    key: str | None = None
    """Key of the sample, if the source names its records."""


class BrokenRecord(NamedTuple):
    """A record of which no sample can be made, and why."""

    number: int
    where: str
    reason: str


class RecordSource(Protocol):
    """The extension point: what a family of formats provides.

    `has_parts`: a record holds the parts of a sample, not columns to make parts from. `is_scattered`: records are
    equally fast to read in any order; if not, they are read in `blocks`, runs of numbers.
    """

    title: str
    has_parts: bool
    is_scattered: bool

    @property
    def definition(self) -> tuple[str, Mapping[str, str]] | None:
        """The class of the samples and its field map, if the source says."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Messages on what of the source is in no record, and on what is odd about it."""
        ...

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[range]:
        """All numbers, in runs that are best read together."""
        ...

    def read(self, numbers: Sequence[int]) -> Iterator[SourceRecord | BrokenRecord]:
        """The records of these numbers of one block, in this order."""
        ...

    def fingerprint(self) -> str:
        """A digest that changes when the files of the source do."""
        ...


class LastOpened(Generic[Opened]):
    """The file that a source read last, reopened in each process: forked ones would share its position."""

    def __init__(self) -> None:
        self._key: tuple[int, int] | None = None

    def __reduce__(self) -> tuple[type["LastOpened[Any]"], tuple[()]]:
        return LastOpened, ()  # another process opens its own

    def get(self, number: int, opened: Callable[[int], Opened]) -> Opened:
        """File `number`, which `opened` opens."""
        key = os.getpid(), number
        if self._key != key:
            self._file = opened(number)
            self._key = key
        return self._file

    def forget(self) -> None:
        """Reopen it at the next read."""
        self._key = None


def note_left_out(names: Sequence[str], why: str) -> list[str]:
    """A note on what is in no record, if there is anything."""
    if not names:
        return []
    shown = ", ".join(map(repr, names[:3]))
    return [f"left out, {why}: {len(names):,} file{'s' * (len(names) > 1)}{', such as' * (len(names) > 3)} {shown}"]


def even_blocks(count: int, size: int) -> Iterator[range]:
    """The numbers below `count`, in runs of `size`."""
    return (range(start, min(start + size, count)) for start in range(0, count, size))


def check_is_utf8(file: Path) -> None:
    """Ensure that a text file does not start with the mark of UTF-16, which spreadsheets and consoles of Windows
    write.

    Raises:
        ConfigError: if it does, or cannot be read.
    """
    try:
        with open(file, "rb") as opened:
            mark = opened.read(2)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise ConfigError(f"{file}: is UTF-16; expected UTF-8: iconv -f UTF-16 -t UTF-8 {file.name} > ...")


def digest_of_files(files: Iterable[str | os.PathLike[str]]) -> str:
    """A digest of paths, sizes and times of change.

    Raises:
        ConfigError: if a file is gone.
    """
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        try:
            status = os.stat(file)
        except OSError as error:
            raise ConfigError(f"{os.fspath(file)}: cannot be read: {error.strerror}") from None
        digest.update(f"{os.fspath(file)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def files_below(folder: Path, suffixes: tuple[str, ...], include: str | None = None) -> list[Path]:
    """The files with these endings in `folder` and below it, sorted by name, without hidden ones; with `include`, only
    those whose path or name matches this pattern.

    Raises:
        ConfigError: if there are none.
    """
    found: list[Path] = []
    for parent, folders, names in storage.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            path = Path(parent, name)
            options = (name, path.relative_to(folder).as_posix())
            is_wanted = include is None or any(fnmatch.fnmatchcase(option, include) for option in options)
            if is_wanted and name.lower().endswith(suffixes) and not name.startswith("."):
                found.append(path)
    if not found:
        matching = "" if include is None else f" and match --include {include}"
        raise ConfigError(f"{folder}: holds no files that end with {' or '.join(suffixes)}{matching}")
    return sorted(found)
