"""The seam of conversions: a source is numbered records, which any process can read by their numbers.

`CONVERTERS` has, by the name of a format, the function that opens its sources: from a path and a `SourceConfig` to a
`RecordSource`.

Opening a source, once, finds the number of its records and where they are, in some bytes of memory for each; their
contents are read later, in forked processes. A number stands for the same record as long as the fingerprint is the
same; what cannot be read is a `BrokenRecord`, never skipped.
"""

import abc
import dataclasses
import fnmatch
import hashlib
import os
import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bridge_data import storage
from bridge_data.data import Records
from bridge_data.errors import ConfigError
from bridge_data.extensions import Seam
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plan.declared import WHERE, Clause


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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig:
    """How a source is read; `bridge-data convert --help` explains the settings. `format` is that of the seam
    `CONVERTERS`; None: found by the name and the first bytes."""

    format: str | None = None
    include: str | None = None
    follow_links: bool = False
    prefix_keys: bool = False
    same_parts: bool = False
    dropped: frozenset[str] = frozenset()
    limits: Limits = DEFAULT_LIMITS


class RecordSource(abc.ABC):
    """The extension point: what a family of formats provides.

    `has_parts`: a record holds the parts of a sample, not columns to make parts from. `has_columns`: it was opened
    without the columns to be dropped. `is_scattered`: records are equally fast to read in any order; if not, they are
    read in `blocks`, runs of numbers. `definition`: the class of
    the samples and its field map, if the source says. `notes`: messages on what of the source is in no record, and on
    what is odd about it.
    """

    title: str
    has_parts, has_columns = False, False
    is_scattered = True
    block_records = 64
    definition: tuple[str, Mapping[str, str]] | None = None
    notes: Sequence[str] = ()

    @abc.abstractmethod
    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[range]:
        """All numbers, in runs that are best read together."""
        starts = range(0, len(self), self.block_records)
        return (range(start, min(start + self.block_records, len(self))) for start in starts)

    @abc.abstractmethod
    def read(self, numbers: Sequence[int]) -> Iterator[SourceRecord | BrokenRecord]:
        """The records of these numbers of one block, in this order."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """A digest that changes when the files of the source do."""

    def chosen_numbers(self, clauses: Sequence[Clause]) -> Collection[int] | None:
        """The numbers of the records for which all clauses hold: those that a run with the same clauses would see in
        all split parts. None if there are no columns to choose by.

        Raises:
            ConfigError: if a clause is wrong.
            DatasetError: if files have changed since they were prepared.
        """
        return None

    def forgotten_numbers(self) -> Container[int]:
        """The numbers of the records on a list of forgotten samples.

        Raises:
            DatasetError: if files have changed since samples in them were forgotten.
        """
        return ()


CONVERTERS = Seam[Callable[[Path, SourceConfig], RecordSource]]("converters")
"""By the name of a format, what opens its sources."""


def chosen_of(records: Records, clauses: Sequence[Clause]) -> Collection[int]:
    """The numbers of the samples for which all clauses hold; see `RecordSource.chosen_numbers`."""
    return WHERE.get(needed_by="--where").numbers(records, clauses)


def note_left_out(names: Sequence[str], why: str) -> list[str]:
    """A note on what is in no record, if there is anything."""
    if not names:
        return []
    shown = ", ".join(map(repr, names[:3]))
    return [f"left out, {why}: {len(names):,} file{'s' * (len(names) > 1)}{', such as' * (len(names) > 3)} {shown}"]


def digest_of_files(files: Iterable[str | os.PathLike[str]]) -> str:
    """A digest of paths, sizes and times of change; of a folder, those of all files in it.

    Raises:
        ConfigError: if a file is gone.
    """
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        if os.path.isdir(file):
            digest.update(digest_of_files(sorted(map(str, Path(file).rglob("*.*")))).encode())
        try:
            status = os.stat(file)
        except OSError as error:
            raise ConfigError(f"{os.fspath(file)}: cannot be read: {error.strerror}") from None
        digest.update(f"{os.fspath(file)}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def is_included(path: str, include: str | None) -> bool:
    """Whether the path of a file, or its name, matches the pattern `include`, if there is one."""
    return include is None or any(fnmatch.fnmatchcase(one, include) for one in (path, os.path.basename(path)))


def included_files(folder: Path, suffixes: tuple[str, ...], include: str | None = None) -> list[Path]:
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
            is_wanted = is_included(path.relative_to(folder).as_posix(), include)
            if is_wanted and name.lower().endswith(suffixes) and not name.startswith("."):
                found.append(path)
    if not found:
        matching = "" if include is None else f" and match --include {include}"
        raise ConfigError(f"{folder}: holds no files that end with {' or '.join(suffixes)}{matching}")
    return sorted(found)


_SPLIT = re.compile(r"(train|validation|valid|val|dev|test)(?![a-z])")


def split_names(names: Iterable[str]) -> list[str]:
    """The splits whose names start names of files or folders."""
    return sorted({match[1] for match in map(_SPLIT.match, names) if match is not None})


def files_of_source(path: Path, config: SourceConfig, endings: tuple[str, ...]) -> list[Path]:
    """The files of a source with these endings, those that `config` includes; or the file that it is.

    Raises:
        ConfigError: if there are none, or they are of several splits.
    """
    if not path.is_dir():
        return [path]
    files = included_files(path, endings, config.include)
    splits = split_names(file.name for file in files)
    if len(splits) > 1:
        raise ConfigError(
            f"{path}: its files are of the splits {', '.join(splits)}; convert each by itself, such as --include "
            f"'{splits[0]}*'"
        )
    return files
