"""Storing fields of JSON parts as columns of samples, in `.nv-meta/columns.parquet`.

Reads the folder of a prepared data set, names such as `json.score`, and the JSON parts, by an `Executor`. A task reads
a few shards and keeps the values of each in the folder `.columns`, so a killed run resumes where it was. Values of
unchanged shards are taken from the previous file. Returns the types of the columns; `StoredColumns` reads the file,
which appears whole or not at all, and does not depend on the number of processes or on what was known before. Memory is
bounded by a few shards. Raises, and stores nothing, if the values of a column have no common type.
"""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any, BinaryIO

from bridge_data import storage
from bridge_data.data.index_file import BridgeIndex, Segment, ShardEntry
from bridge_data.data.metadata import BRIDGE_INDEX, META_FOLDER
from bridge_data.data.prepared import PreparedDataset
from bridge_data.data.tar_files import open_tar
from bridge_data.errors import ConfigError, DatasetError, bridge_command
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plugins.where.json_fields import JsonField, common_type, parse_content, parse_fields, typed
from bridge_data.plugins.where.stored_columns import (
    COLUMNS_PARQUET,
    INTEGER,
    LIST,
    NUMBER,
    TEXT,
    StoredColumns,
    StoredShard,
    arrow_type,
    write_stored_columns,
)
from bridge_data.prepare.commit import preparing_alone
from bridge_data.prepare.executors import Executor, LocalProcesses, Progress, no_progress
from bridge_data.prepare.sample_columns import arrow_package
from bridge_data.prepare.shard_work import ShardWork
from bridge_data.prepare.tar_scan import raise_faults
from bridge_data.storage import Location
from bridge_data.storage.atomic import replacing, writing

READ_COLUMNS = ".columns"
"""The folder, in the data set's, for values that are not in the file yet; removed when they are."""

_SUFFIX = ".parquet"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsPreparation:
    """The result: the type of each column and how many samples have no value; samples, shards that were read, and
    shards whose values were known."""

    types: dict[str, str]
    num_missing: dict[str, int]
    num_samples: int
    num_read: int
    num_unchanged: int


def prepare_columns(
    root: Path,
    columns: Sequence[str],
    *,
    num_workers: int = 1,
    executor: Executor | None = None,
    rescan: bool = False,
    limits: Limits = DEFAULT_LIMITS,
    on_progress: Progress = no_progress,
) -> ColumnsPreparation:
    """Store `columns`, such as `json.score`, of the samples of the prepared data set `root`, and remove all others.
    `limits` apply to its metadata. `executor` reads; None: `num_workers` processes do. With `rescan`, all shards are
    read.

    Raises:
        ConfigError: if a name is wrong, or the data set is not prepared.
        DatasetError: naming shards and samples, if values cannot be read or have several types.
    """
    fields = parse_fields(columns)
    arrow_package("pyarrow.parquet")  # before processes fork
    executor = executor or LocalProcesses(num_workers)
    storage.close_files()  # a file that was replaced since this process read it must be reopened
    with preparing_alone(root) as remove_temporary:
        index = PreparedDataset.open(root, limits).index
        if index is None:
            fix_command = bridge_command("prepare", root, "--tar-index-only")
            raise ConfigError(f"{root}: has no {BRIDGE_INDEX} of its preparation; run `{fix_command}` first")
        path, folder = root / META_FOLDER / COLUMNS_PARQUET, root / READ_COLUMNS
        remove_temporary([path.parent, folder])
        known, num_read = _KnownValues(root, index, [field.column for field in fields]), 0
        for stored in () if rescan else (path, *sorted(folder.glob(f"*{_SUFFIX}"))):
            with contextlib.suppress(DatasetError):  # what is damaged is read again
                known.add(stored)
        while missing := known.missing():
            _read(root, fields, index, known, missing, executor, on_progress)
            num_read += len(missing)
        types = known.common_types()
        with writing(root):
            with replacing(path) as temporary, open(temporary, "w+b") as file:
                write_stored_columns(file, types, known.values())
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder)
    return ColumnsPreparation(
        types=types,
        num_missing=known.num_missing(),
        num_samples=sum(shard.count for shard in known.shards.values()),
        num_read=num_read,
        num_unchanged=len(known.shards) - num_read,
    )


class _KnownValues:
    """The known values of `columns` by shard of `index`."""

    def __init__(self, root: Path, index: BridgeIndex, columns: Sequence[str]) -> None:
        self.shards = dict(index.entries)
        self._columns = columns
        self._found: dict[str, tuple[StoredShard, dict[str, str], Path]] = {}
        """Of each shard what is stored, and the file, which has columns of these types."""
        self._open = functools.lru_cache(maxsize=64)(lambda path, version: StoredColumns(root, path))

    def add(self, path: Path, *, is_new: bool = False) -> None:
        """Take the values in the file at `path`, if it has the columns: all, if it `is_new`, or else those that are
        intact and not known yet.

        Raises:
            DatasetError: if there is no usable file.
        """
        source = self._open(path, storage.version(path))
        for name in source.shards.keys() & self.shards.keys() if source.kinds.keys() >= set(self._columns) else ():
            if is_new or name not in self._found:
                with contextlib.suppress(DatasetError):
                    _, stored = source.shard(self.shards[name])
                    if not is_new:
                        source.table(self.shards[name], self._columns)
                    types = {column: stored.types[column] for column in self._columns}
                    self._found[name] = stored._replace(types=types), source.kinds, path

    def missing(self) -> list[str]:
        """The shards that must be read: what is not known, or else where integers were stored among numbers, perhaps
        rounded, of which there are none any more."""
        found = [name for name in self.shards if name not in self._found]
        types = {} if found else self.common_types()
        return found or [
            name
            for name, (_, kinds, _) in self._found.items()
            if any(kinds[column].startswith(NUMBER) and kind.startswith(INTEGER) for column, kind in types.items())
        ]

    def values(self) -> Iterator[tuple[StoredShard, Any]]:
        """Each shard, and the table of its values."""
        for name, entry in self.shards.items():
            stored, _, path = self._found[name]
            yield stored, self._open(path, storage.version(path)).table(entry, self._columns)

    def num_missing(self) -> dict[str, int]:
        """How many samples have no value, by column."""
        found = dict.fromkeys(self._columns, 0)
        for shard, _, _ in self._found.values():
            for column in found:
                found[column] += shard.num_samples - sum(count for _, _, count in shard.types[column])
        return found

    def common_types(self) -> dict[str, str]:
        """The type of each column.

        Raises:
            DatasetError: if the values of a column have no common type.
        """
        return _common_types(self._columns, [self._found[name][0] for name in self.shards])


def _common_types(columns: Sequence[str], shards: Iterable[StoredShard]) -> dict[str, str]:
    found = dict.fromkeys(columns, ("", ""))
    faults: dict[str, str] = {}
    for shard in shards:
        for column in columns:
            for kind, key, _ in shard.types[column]:
                before, seen = found[column]
                both, where = common_type(before, kind), f"{shard.name}/{key}"
                if both is None:
                    faults.setdefault(column, f"{column}: is {before} in {seen}, but {kind} in {where}")
                else:
                    found[column] = both, where if both == kind != before else seen
    if faults:
        raise DatasetError(
            "; ".join(faults.values()) + ". A column has values of one type (integers among numbers count as "
            "numbers): leave it out, or write the shards again"
        )
    return {column: f"{TEXT}{kind}" if kind in ("", LIST) else kind for column, (kind, _) in found.items()}


def _read(
    root: Path,
    fields: list[JsonField],
    index: BridgeIndex,
    known: _KnownValues,
    missing: list[str],
    executor: Executor,
    on_progress: Progress,
) -> None:
    """Read the shards `missing`, so that they are known."""
    import hashlib  # imported here: slow, and not needed for an unchanged data set

    columns = [field.column for field in fields]
    work = ShardWork(
        root=root,
        folder=root / READ_COLUMNS,
        what="read JSON parts",
        do=functools.partial(_read_some, root, fields, index),
        open=_if_there,
        suffix=_SUFFIX,
        prefix=hashlib.blake2b(json.dumps(columns).encode(), digest_size=8).hexdigest() + "-",
    )
    num_shards, errors = len(known.shards), list[str]()
    done = num_shards - len(missing)
    for file, run, faults in work.results(missing, executor):
        known.add(file, is_new=True)
        errors += faults
        for _ in run:
            done += 1
            on_progress(done, num_shards)
    raise_faults(errors, num_shards)


def _if_there(file: Location) -> Path | None:
    path = Path(file)
    return path if path.is_file() else None


def _read_some(
    root: Path, fields: list[JsonField], index: BridgeIndex, output: BinaryIO, names: list[str]
) -> list[str]:
    """Read some shards, and write their values to `output`. Returns the errors of unusable shards."""
    found, errors = list[tuple[StoredShard, dict[str, list[Any]]]](), list[str]()
    for name in names:
        try:
            found.append(_read_shard(root, fields, index, name))
        except DatasetError as error:
            errors.append(str(error))
    kinds = _common_types([field.column for field in fields], [shard for shard, _ in found])
    tables = (
        (shard, arrow_package().table({column: _arrow_array(values[column], kind) for column, kind in kinds.items()}))
        for shard, values in found
    )
    write_stored_columns(output, kinds, tables)
    return errors


def _read_shard(
    root: Path, fields: list[JsonField], index: BridgeIndex, name: str
) -> tuple[StoredShard, dict[str, list[Any]]]:
    """A shard, and the values of each field in it."""
    entry, segment = index.entries[name], index.segment(name)
    _check_unchanged(root, entry)
    values: dict[str, list[Any]] = {field.column: [None] * entry.count for field in fields}
    types: dict[str, dict[str, tuple[str, int]]] = {field.column: {} for field in fields}
    for position, part, content in _contents(root / name, segment, {field.part for field in fields}):
        try:
            parsed = parse_content(content)
        except ValueError as error:
            raise DatasetError(f"{root / name}: part {part} of sample {segment.key(position)!r} is {error}") from None
        for field in fields:
            if field.part != part:
                continue
            try:
                value = field.value(parsed)
                if value is None:
                    continue
                kind, values[field.column][position] = typed(value)
            except ValueError as error:
                where = f"{root / name}: sample {segment.key(position)!r}"
                raise DatasetError(f"{where}: {field.column}: {error}") from None
            key, count = types[field.column].get(kind) or (segment.key(position), 0)
            types[field.column][kind] = key, count + 1
    _check_unchanged(root, entry)
    found = {column: [(kind, *one) for kind, one in by_kind.items()] for column, by_kind in types.items()}
    return StoredShard(name, entry.num_bytes, entry.mtime_ns, entry.count, found), values


def _arrow_array(values: list[Any], kind: str) -> Any:
    return arrow_package().array(_as_numbers(values) if kind.startswith(NUMBER) else values, arrow_type(kind))


def _as_numbers(values: list[Any]) -> list[Any]:
    """`values` with integers among numbers, or in lists of numbers, as numbers."""
    return [_as_numbers(one) if isinstance(one, list) else None if one is None else float(one) for one in values]


def _contents(path: Path, segment: Segment, parts: Set[str]) -> Iterator[tuple[int, str, bytes]]:
    """(position of the sample, part, content) of these parts in the shard at `path`."""
    if parts.isdisjoint(segment.names):
        return
    tar = open_tar(str(path))
    for position in range(len(segment)):
        for part, offset, num_bytes in segment.parts(position):
            if part in parts:
                yield position, part, tar.read(offset, num_bytes)


def _check_unchanged(root: Path, shard: ShardEntry) -> None:
    try:
        status = os.stat(root / shard.name)
    except OSError as error:
        raise DatasetError(f"{root / shard.name}: cannot be read: {error.strerror}") from error
    if (status.st_size, status.st_mtime_ns) != (shard.num_bytes, shard.mtime_ns):
        fix_command = bridge_command("prepare", root, "--tar-index-only")
        raise DatasetError(f"{root / shard.name}: has changed since it was indexed; run `{fix_command}` first")
