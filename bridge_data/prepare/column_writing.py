"""Storing fields of JSON parts as columns of samples, in `.nv-meta/columns.bridge`.

Enters: the folder of a prepared data set, names such as `json.score`, an `Executor`. Leaves: the file, which
`JsonColumns` reads. A task reads the JSON parts of a few shards and keeps their values in the folder `.columns`, so a
killed run resumes where it was. Values of unchanged shards are taken from the previous file. Guarantee: the file
appears whole or not at all, and does not depend on the number of processes or on what was known before; all values of a
column have one type, or nothing is stored; memory is bounded by a few shards.
"""

import contextlib
import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any

from bridge_data import storage
from bridge_data.errors import ConfigError, DatasetError, bridge_command
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.prepare.commit import preparing_alone
from bridge_data.prepare.executors import Executor, LocalProcesses, Progress, no_progress
from bridge_data.prepare.json_fields import JsonField, common_type, parse_content, parse_fields, typed
from bridge_data.prepare.shard_work import ShardFiles, shard_runs
from bridge_data.shards.index_file import BridgeIndex, ShardEntry
from bridge_data.shards.metadata import BRIDGE_INDEX, META_FOLDER
from bridge_data.shards.prepared import PreparedDataset
from bridge_data.shards.segment import DamagedIndexError, Segment
from bridge_data.shards.tar_bytes import open_tar
from bridge_data.shards.tar_scan import raise_faults
from bridge_data.shards.where.json_columns import (
    COLUMNS_BRIDGE,
    LIST,
    TEXT,
    ColumnsWriter,
    JsonColumns,
    Types,
    decode_values,
    encode_values,
)
from bridge_data.storage.atomic import replacing, writing

READ_COLUMNS = ".columns"
"""The folder, in the data set's, for values that are not in the file yet; removed when they are."""

_SUFFIX = ".bridge"


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
        ConfigError: if a name is wrong, or the data set is not prepared. DatasetError: naming shards and samples, if
        values cannot be read or have several types.
    """
    fields = parse_fields(columns)
    executor = executor or LocalProcesses(num_workers)
    storage.close_files()  # a file that was replaced since this process read it must be reopened
    with preparing_alone(root) as remove_temporary:
        index = _index_of(root, limits)
        path, folder = root / META_FOLDER / COLUMNS_BRIDGE, root / READ_COLUMNS
        remove_temporary([path.parent, folder])
        known = _KnownValues(index, [field.column for field in fields])
        if not rescan:
            known.add(JsonColumns.open(path))
            for kept in sorted(folder.glob(f"*{_SUFFIX}")):
                known.add(JsonColumns.open(kept))
        missing = known.missing()
        _read(root, fields, limits, known, missing, executor, on_progress)
        types = known.common_types()
        with writing(root):
            with replacing(path) as temporary, open(temporary, "wb") as file:
                writer = ColumnsWriter(file)
                for shard in known.shards:
                    writer.add(shard, *known.values(shard))
                writer.finish(types)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(folder)
    return ColumnsPreparation(
        types=types,
        num_missing=known.num_missing(),
        num_samples=sum(shard.count for shard in known.shards),
        num_read=len(missing),
        num_unchanged=len(known.shards) - len(missing),
    )


def _index_of(root: Path, limits: Limits) -> BridgeIndex:
    index = PreparedDataset.open(root, limits).index
    if index is None:
        way_out = bridge_command("prepare", root, "--tar-index-only")
        raise ConfigError(f"{root}: has no {BRIDGE_INDEX} of its preparation; run `{way_out}` first")
    return index


class _KnownValues:
    """The known values of `columns` by shard of `index`."""

    def __init__(self, index: BridgeIndex, columns: Sequence[str]) -> None:
        self.shards = list(index.entries.values())
        self._index, self._columns = index, columns
        self._sources: dict[str, JsonColumns] = {}

    def add(self, source: JsonColumns | None) -> None:
        """Take values that are intact and not known yet from `source`, if it has the columns."""
        if source is None or not source.types.keys() >= set(self._columns):
            return
        for name in source.entries.keys() - self._sources.keys():
            if name in self._index.entries and source.knows(self._index.entries[name]):
                with contextlib.suppress(DamagedIndexError):
                    source.segment_bytes(name)
                    self._sources[name] = source

    def missing(self) -> list[str]:
        """The shards that must be read."""
        return [shard.name for shard in self.shards if shard.name not in self._sources]

    def types(self, shard: ShardEntry) -> list[Types]:
        """The types in a shard, by column."""
        source = self._sources[shard.name]
        by_column = dict(zip(source.types, source.entries[shard.name].types, strict=True))
        return [by_column[column] for column in self._columns]

    def values(self, shard: ShardEntry) -> tuple[bytes, list[Types]]:
        """The values of a shard, and their types."""
        source = self._sources[shard.name]
        segment = source.segment_bytes(shard.name)
        if list(source.types) != list(self._columns):
            by_column = dict(zip(source.types, decode_values(segment), strict=True))
            segment = encode_values([by_column[column] for column in self._columns])
        return segment, self.types(shard)

    def num_missing(self) -> dict[str, int]:
        """How many samples have no value, by column."""
        found = {column: sum(shard.count for shard in self.shards) for column in self._columns}
        for shard in self.shards:
            for column, types in zip(self._columns, self.types(shard), strict=True):
                found[column] -= sum(count for _, _, count in types)
        return found

    def common_types(self) -> dict[str, str]:
        """The type of each column.

        Raises:
            DatasetError: if the values of a column have no common type.
        """
        found = dict.fromkeys(self._columns, ("", ""))
        faults: dict[str, str] = {}
        for shard in self.shards:
            for column, types in zip(self._columns, self.types(shard), strict=True):
                for kind, key, _ in types:
                    before, seen = found[column]
                    both, place = common_type(before, kind), f"{shard.name}/{key}"
                    if both is None:
                        faults.setdefault(column, f"{column}: is {before} in {seen}, but {kind} in {place}")
                    else:
                        found[column] = both, place if both == kind != before else seen
        if faults:
            raise DatasetError(
                "; ".join(faults.values()) + ". A column has values of one type (integers among numbers count as "
                "numbers): leave it out, or write the shards again"
            )
        return {column: f"{TEXT}{kind}" if kind in ("", LIST) else kind for column, (kind, _) in found.items()}


def _read(
    root: Path,
    fields: list[JsonField],
    limits: Limits,
    known: _KnownValues,
    missing: list[str],
    executor: Executor,
    on_progress: Progress,
) -> None:
    """Read the shards `missing`, so that they are known."""
    if not missing:
        return
    folder = root / READ_COLUMNS
    with writing(root):
        folder.mkdir(exist_ok=True)
    num_shards, errors = len(known.shards), list[str]()
    done = num_shards - len(missing)
    mtime_ns = (root / META_FOLDER / BRIDGE_INDEX).stat().st_mtime_ns
    read = functools.partial(_read_run, root, fields, limits, mtime_ns)
    runs = shard_runs(ShardFiles(root), missing, executor.num_workers)
    with contextlib.closing(executor.map(read, runs, what=f"read JSON parts of {root}")) as results:
        for file, num_read, faults in results:
            found = JsonColumns.open(folder / file)
            if found is None:
                raise DatasetError(
                    f"{folder / file}: is not there, though it was written: do all workers see {root} under this path?"
                )
            known.add(found)
            errors += faults
            for _ in range(num_read):
                done += 1
                on_progress(done, num_shards)
    raise_faults(errors, num_shards)


def _read_run(
    root: Path, fields: list[JsonField], limits: Limits, index_mtime_ns: int, names: list[str]
) -> tuple[str, int, list[str]]:
    """Read some shards. Return the file with their values, its count, and the errors of unusable shards."""
    import hashlib  # imported here: slow, and not needed for an unchanged data set

    columns = [field.column for field in fields]
    file = hashlib.blake2b(json.dumps([columns, names]).encode(), digest_size=16).hexdigest() + _SUFFIX
    index, errors = _opened_index(root, limits, index_mtime_ns), list[str]()
    folder = root / READ_COLUMNS
    with writing(folder), replacing(folder / file, durable=False) as temporary, open(temporary, "wb") as output:
        writer = ColumnsWriter(output)
        for name in names:
            try:
                values, types = _read_shard(root, fields, index, name)
            except DatasetError as error:
                errors.append(str(error))
                continue
            writer.add(index.entries[name], encode_values(values), types)
        writer.finish(dict.fromkeys(columns, ""))
    return file, len(names), errors


@functools.lru_cache(maxsize=2)
def _opened_index(root: Path, limits: Limits, mtime_ns: int) -> BridgeIndex:
    """Our index as of `mtime_ns`, opened only once for all shards."""
    return _index_of(root, limits)


def _read_shard(
    root: Path, fields: list[JsonField], index: BridgeIndex, shard: str
) -> tuple[list[list[Any]], list[Types]]:
    """The values of each field in a shard, and their types."""
    entry, segment = index.entries[shard], index.segment(shard)
    _check_unchanged(root, entry)
    values: list[list[Any]] = [[None] * entry.count for _ in fields]
    types: list[dict[str, tuple[str, int]]] = [{} for _ in fields]
    wanted: dict[str, list[int]] = {}
    for number, field in enumerate(fields):
        wanted.setdefault(field.part, []).append(number)
    for position, part, content in _contents(root / shard, segment, wanted.keys()):
        try:
            parsed = parse_content(content)
        except ValueError as error:
            raise DatasetError(f"{root / shard}: part {part} of sample {segment.key(position)!r} is {error}") from None
        for number in wanted[part]:
            try:
                value = fields[number].value(parsed)
                if value is None:
                    continue
                kind, values[number][position] = typed(value)
            except ValueError as error:
                raise DatasetError(
                    f"{root / shard}: sample {segment.key(position)!r}: {fields[number].column}: {error}"
                ) from None
            key, count = types[number].get(kind) or (segment.key(position), 0)
            types[number][kind] = key, count + 1
    _check_unchanged(root, entry)
    return values, [[(kind, *found) for kind, found in by_kind.items()] for by_kind in types]


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
        way_out = bridge_command("prepare", root, "--tar-index-only")
        raise DatasetError(f"{root / shard.name}: has changed since it was indexed; run `{way_out}` first")
