"""The cost index of a data set: what an encoder makes of each sample, in tokens, images and other numbers.

Reads the file that `bridge-data prepare --costs` writes for one encoder and one split part. Returns a `CostTable`: the
costs of samples by their numbers, as exact integers, in the numbering of a source, also after `subset` and `where`.
Opening reads the file's description alone; columns are mapped into memory, which the processes of a machine share. A
file in a store is copied to this machine once. Raises `ConfigError` if nobody has measured the data with this encoder,
and `DatasetError` if the data, or the file, have changed since.

The costs are those of the encoder, whatever a run packs: what a packer drops or cuts is seen by `CostTable.within`.

Layout: an Arrow IPC file, not compressed, with one record batch. A row is a sample: a list of its parts, each a struct
of the columns, unsigned numbers of 32 bits. A sample that the encoder skips has no parts; one that a generator hook
makes several of has several. The metadata of the schema, `bridge_data.costs`, are JSON: see `CostFacts`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bridge_data import storage
from bridge_data.data.metadata import META_FOLDER
from bridge_data.data.records import (
    Records,
    Selection,
    contents_of,
    count_samples,
    fingerprint_of,
    label_of,
    place_of,
    shard_identities,
    split_part_of,
    stored_records,
)
from bridge_data.data.withheld import withheld
from bridge_data.errors import ConfigError, DatasetError, bridge_command, listed
from bridge_data.plan import Source
from bridge_data.prepare.sample_columns import arrow_package
from bridge_data.storage import Location, RemotePath, location

COSTS_VARIABLE = "BRIDGE_DATA_COSTS"
"""The environment variable of another folder for costs, by the path of the data: for read-only data."""

FORMAT = 2
SUFFIX = ".costs"
"""None that a table has, so that no one reads the file as data."""

_METADATA = b"bridge_data.costs"
_SAMPLES_AT_ONCE = 1 << 20
MAX_COST = (1 << 32) - 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CostFacts:
    """What a file says of itself: `key` of the encoder that measured, and how to call it (`encoder`); the `data`, by
    their fingerprint, their split part, and `contents` (see `contents_of`); the `totals` of the columns `names`; for
    each shard a stamp, which differs if its samples do, the number of samples and of parts, and for each reason why
    samples were skipped, how many were, and the first of them; the samples that were not measured, as they were
    `forgotten` then: (first, count, first, count ...)."""

    key: str
    encoder: str
    data: str
    split_part: str
    contents: str = ""
    names: tuple[str, ...]
    totals: tuple[int, ...]
    shards: tuple[tuple[str, int, int, dict[str, tuple[int, str]]], ...]
    forgotten: tuple[int, ...] = ()
    most: tuple[int, ...] = ()
    """Of each column, the greatest cost of a part."""
    digest: str = ""
    """Of the content: the same samples and costs have the same."""

    def as_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def of_bytes(cls, content: bytes) -> CostFacts:
        """Raises: ValueError, KeyError or TypeError, if these are none."""
        told = json.loads(content)
        if told.pop("format") != FORMAT:
            raise ValueError("it is of another version of bridge_data")
        shards = tuple((stamp, samples, parts, dict(skipped)) for stamp, samples, parts, skipped in told.pop("shards"))
        lists = (tuple(told.pop(name)) for name in ("names", "totals", "most", "forgotten"))
        names, totals, most, forgotten = lists
        return cls(names=names, totals=totals, most=most, forgotten=forgotten, shards=shards, **told)

    def unmeasured(self) -> Iterator[int]:
        """The samples that were forgotten then."""
        for first, count in zip(self.forgotten[::2], self.forgotten[1::2], strict=True):
            yield from range(first, first + count)

    def come_back(self, gone: Container[int]) -> list[int]:
        """Those of them that are not in `gone`, the samples that are forgotten now: they have no costs yet."""
        return [number for number in self.unmeasured() if number not in gone]


class CostArrays(NamedTuple):
    """Sample i has parts `offsets[i]` to `offsets[i + 1]` - 1; of each column, the costs of all parts."""

    offsets: NDArray[Any]
    columns: Sequence[NDArray[np.uint32]]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CostLimits:
    """What packs take of samples: a part above a limit of `most` costs nothing, as it is dropped; above that of the
    cost `cut`, as much as the limit, as it is cut."""

    most: Mapping[str, int]
    cut: str | None = None


class CostTable:
    """The costs of the samples of `records`, by the file at `path`; with `limits`, of what packs take of them. It is
    picklable, and maps the file when needed."""

    def __init__(self, records: Records, path: Location, facts: CostFacts, limits: CostLimits | None = None) -> None:
        self._records, self._path, self.facts, self._limits = records, path, facts, limits
        self._mapped: CostArrays | None = None
        self._num_samples = count_samples(records)

    def within(self, limits: CostLimits) -> CostTable:
        """The costs of what packs with these `limits` take of the samples."""
        greatest = dict(zip(self.names, self.facts.most, strict=True))
        most = {name: limit for name, limit in limits.most.items() if greatest.get(name, 0) > limit}
        if not most:
            return self
        return CostTable(self._records, self._path, self.facts, dataclasses.replace(limits, most=most))

    @property
    def digest(self) -> str:
        """Of the costs: the same samples and costs have the same."""
        if self._limits is None:
            return self.facts.digest
        told = json.dumps([sorted(self._limits.most.items()), self._limits.cut])
        return f"{self.facts.digest} within {_digest(told.encode())}"

    def stored_number(self, index: int) -> int:
        """The number of a sample among those of the stored records, of which the source may have chosen some."""
        return int(self._stored(np.array([index]))[0])

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, `tokens` first if it is there."""
        return self.facts.names

    def take(self, indices: NDArray[np.int64], name: str) -> NDArray[np.int64]:
        """The cost `name` of each of these samples: the sum over its parts, 0 if the encoder skips it.

        Raises:
            ConfigError: if there is no such column.
            IndexError: if there is no such sample.
            DatasetError: if the file is damaged, or was replaced.
        """
        column = self._column(name)
        starts, counts, arrays = self._spans(indices)
        if (counts == 1).all():
            return self._taken(arrays, column, starts)
        costs = np.zeros(len(counts), np.int64)
        filled = counts > 0
        if filled.any():
            rows, firsts = _rows(starts[filled], counts[filled])
            costs[filled] = np.add.reduceat(self._taken(arrays, column, rows), firsts)
        return costs

    def _taken(self, arrays: CostArrays, column: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """A cost of some parts, within the limits."""
        costs = arrays.columns[column][rows].astype(np.int64)
        for name, most in {} if self._limits is None else self._limits.most.items():
            assert self._limits is not None
            own = self._column(name)
            if name != self._limits.cut:
                costs[arrays.columns[own][rows] > most] = 0
            elif own == column:
                costs = np.minimum(costs, most)
        return costs

    def parts(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """All parts of these samples, in order, as measured: position of the sample in `indices`, number of the part in
        its sample, costs (parts, columns). A sample that the encoder skips has none.

        Raises:
            As `take`.
        """
        starts, counts, arrays = self._spans(indices)
        rows, firsts = _rows(starts, counts)
        costs = np.empty((len(rows), len(self.names)), np.int64)
        for number, column in enumerate(arrays.columns):
            costs[:, number] = column[rows]
        numbers = np.arange(len(rows), dtype=np.int64) - np.repeat(firsts, counts)
        return np.repeat(np.arange(len(counts), dtype=np.int64), counts), numbers, costs

    def total(self, name: str) -> int:
        """The sum of `name` over all samples of the source; of a part of the data, by reading the column once."""
        if not isinstance(self._records, Selection) and self._limits is None:
            return self.facts.totals[self._column(name)]
        bounds = range(0, count_samples(self._records), _SAMPLES_AT_ONCE)
        pieces = (np.arange(at, min(at + _SAMPLES_AT_ONCE, count_samples(self._records))) for at in bounds)
        return sum(int(self.take(piece, name).sum()) for piece in pieces)

    def _column(self, name: str) -> int:
        if name not in self.names:
            raise ConfigError(f"{self._path}: there is no cost {name!r}; there is {listed(self.names)}")
        return self.names.index(name)

    def _spans(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], CostArrays]:
        """(first part, number of parts) of each sample, and the columns."""
        numbers = np.asarray(indices, np.int64)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self._num_samples:
            raise IndexError(f"{self._records.root}: samples {numbers.min()} to {numbers.max()} are not all there")
        numbers, arrays = self._stored(numbers), self._arrays()
        starts = arrays.offsets[numbers].astype(np.int64)
        counts = arrays.offsets[numbers + 1].astype(np.int64) - starts
        num_parts = len(arrays.columns[0])
        if len(starts) and not (starts.min() >= 0 <= counts.min() and (starts + counts).max() <= num_parts):
            raise DatasetError(f"{self._path}: is damaged; {self.again}")
        return starts, counts, arrays

    def _stored(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        records = self._records
        while isinstance(records, Selection):
            numbers, records = records.to_base_array(numbers), records.records
        return numbers

    @property
    def again(self) -> str:
        """What to do if the costs are wrong, in words."""
        return _again(stored_records(self._records), "--rescan")

    def _arrays(self) -> CostArrays:
        if self._mapped is None:
            opened = read_costs(self._path)
            if opened is None or opened[0].digest != self.facts.digest:
                raise DatasetError(f"{self._path}: was replaced while it was in use: start again")
            self._mapped = opened[1]
        return self._mapped

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None}


def _rows(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers of all parts of the spans, and where those of each span begin among them."""
    firsts = np.cumsum(counts) - counts
    return np.repeat(starts - firsts, counts) + np.arange(counts.sum(), dtype=np.int64), firsts


def open_costs(records: Records, key: str) -> CostTable:
    """The costs of `records` for the encoder whose `costs_key()` is `key`.

    Raises:
        ConfigError: if they were not measured with this encoder.
        DatasetError: if they have changed since, samples were forgotten then and are not now, or the file is damaged.
    """
    base = stored_records(records)
    path = costs_path(base, key)
    opened = read_costs(path)
    if opened is not None and not _is_of_others(opened[0], base):
        facts, arrays = opened
        if (facts.key, facts.data) == (key, fingerprint_of(base)) and len(arrays.offsets) == count_samples(base) + 1:
            if facts.forgotten and (back := facts.come_back(withheld(base))):
                raise DatasetError(
                    f"{label_of(base)}: {len(back):,} samples, the first {place_of(base, back[0])}, "
                    f"were forgotten when the others were measured, and are not any more; {_again(base)}, which "
                    "measures their shards"
                )
            return CostTable(records, path, facts)
        raise DatasetError(f"{path}: is not what its name says: it was renamed or damaged; {_again(base, '--rescan')}")
    others = [*known_costs(base)]
    if any((facts.key, facts.split_part) == (key, split_part_of(base)) for _, facts in others):
        raise DatasetError(
            f"{label_of(base)}: has changed since its samples were measured; {_again(base)}, with the "
            "encoder or the config of the run: it measures what is new"
        )
    there = [f"{facts.encoder}, {facts.split_part}, of {_written(other)}" for other, facts in others]
    raise ConfigError(
        f"{label_of(base)}: its samples were not measured with this encoder, or with these settings of it"
        + (f", only with others: {'; '.join(there)}" if there else "")
        + f"; {_again(base)}, with the encoder or the config of the run"
    )


def _is_of_others(facts: CostFacts, base: Records) -> bool:
    """Whether the file is of data with the same names and sizes, and other contents, as far as both are known."""
    then, now = facts.contents, contents_of(base).more
    return then.partition(":")[0] == now.partition(":")[0] and then != now


def _again(base: Records, *options: str) -> str:
    words = ("prepare", base.root, "--costs", "ENCODER", *options)
    return f"run `{bridge_command(*words)}`"


def costs_folder(base: Records) -> Location:
    """Where the costs of stored records are: in `$BRIDGE_DATA_COSTS`, by the last name of the data's path and a digest
    of the path; in `.nv-meta` of a prepared folder; or beside the data."""
    root, given = base.root, os.environ.get(COSTS_VARIABLE)
    if given:
        return location(given) / f"{root.name}-{_digest(str(root).encode())[:8]}"
    meta = root / META_FOLDER
    return meta / "costs" if meta.is_dir() else root.with_name(f"{root.name}{SUFFIX}")


def costs_path(base: Records, key: str) -> Location:
    """The file of the costs of stored records for an encoder."""
    return costs_folder(base) / f"{key}-{fingerprint_of(base)}{SUFFIX}"


def known_costs(base: Records) -> Iterator[tuple[Location, CostFacts]]:
    """All files of costs of the data, of any encoder, split part and state of the data; damaged ones are left out."""
    folder = costs_folder(base)
    if isinstance(folder, RemotePath):
        names = [name for name in storage.list_sizes(str(folder)) if "/" not in name]
    else:
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    for name in names:
        if name.endswith(SUFFIX) and not name.startswith("."):
            try:
                opened = read_costs(folder / name)
            except DatasetError:
                continue
            if opened is not None:
                yield folder / name, opened[0]


def measured_with(source: Source) -> dict[str, str]:
    """By the `costs_key` of each encoder with which the split part of a source was measured, what it is called."""
    base = stored_records(source.records)
    return {facts.key: facts.encoder for _, facts in known_costs(base) if facts.split_part == split_part_of(base)}


def _written(path: Location) -> str:
    copy = storage.local_copy(path)
    return "unknown time" if copy is None else f"{datetime.fromtimestamp(copy.stat().st_mtime):%Y-%m-%d %H:%M}"


def shard_stamps(base: Records) -> list[str]:
    """For each shard of stored records, 16 hex digits that differ if its samples do: of its name, its size, what is
    known of its contents, and the excluded samples. Data that do not tell their shards apart change as a whole."""
    stamped = shard_identities(base)
    return [_digest(json.dumps(one, sort_keys=True).encode()) for one in stamped]


def read_costs(path: Location) -> tuple[CostFacts, CostArrays] | None:
    """What the file at `path` says of itself, and its arrays, mapped; None if there is none.

    Raises:
        DatasetError: if it is damaged.
    """
    copy = storage.local_copy(path)
    if copy is None:
        return None
    arrow = arrow_package()
    try:
        file = arrow_package("pyarrow.ipc").open_file(arrow.memory_map(str(copy)))
        facts = CostFacts.of_bytes((file.schema.metadata or {})[_METADATA])
        if file.schema.field(0).type not in {_kind(facts.names, large=large) for large in (False, True)}:
            raise ValueError(f"its column is {file.schema.field(0).type}")
        batch = file.get_batch(0)
        batch.validate()
        samples = batch.column(0)
        columns = [_array(samples.values.field(number)) for number in range(len(facts.names))]
        return facts, CostArrays(_array(samples.offsets), columns)
    except (arrow.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DatasetError(
            f"{path}: is damaged, or no index of costs: {type(error).__name__}: {error}; delete it, and run "
            "`bridge-data prepare --costs` again"
        ) from error


def _array(values: Any) -> NDArray[Any]:
    found: NDArray[Any] = values.to_numpy(zero_copy_only=True)
    return found


def _kind(names: Sequence[str], *, large: bool) -> Any:
    arrow = arrow_package()
    parts = arrow.struct([arrow.field(name, arrow.uint32(), nullable=False) for name in names])
    part = arrow.field("part", parts, nullable=False)
    return arrow.large_list(part) if large else arrow.list_(part)


def write_costs(file: BinaryIO, arrays: CostArrays, facts: CostFacts) -> None:
    """Write a file; `arrays` may be mapped ones, and are not copied. The digest and `most` in `facts` are made here."""
    arrow = arrow_package()
    offsets, columns = arrays
    large = offsets.dtype.itemsize == 8
    most = tuple(int(column.max(initial=0)) for column in columns)
    facts = dataclasses.replace(facts, digest=_digest(offsets, *columns), most=most)
    kind = _kind(facts.names, large=large)
    fields = [arrow.array(column, arrow.uint32()) for column in columns]
    parts = arrow.StructArray.from_arrays(fields, fields=list(kind.value_type))
    buffers = [None, arrow.py_buffer(offsets)]
    samples = arrow.Array.from_buffers(kind, len(offsets) - 1, buffers, children=[parts])
    schema = arrow.schema([arrow.field("parts", kind, nullable=False)], metadata={_METADATA: facts.as_bytes()})
    with arrow_package("pyarrow.ipc").new_file(file, schema) as writer:
        writer.write_batch(arrow.record_batch([samples], schema=schema))


def offsets_kind(num_parts: int) -> type[np.signedinteger[Any]]:
    """The type of offsets: of 32 bits, if that is enough."""
    return np.int32 if num_parts < 1 << 31 else np.int64


def arrays_of(samples: Sequence[Sequence[Mapping[str, int]]], names: Sequence[str]) -> CostArrays:
    """The arrays of some samples, given the costs of each of their parts; a cost that a part lacks is 0.

    Raises:
        ConfigError: if a cost is no number from 0 to `MAX_COST`.
    """
    offsets = np.array([0, *itertools.accumulate(map(len, samples))], offsets_kind(0))
    parts = [part for sample in samples for part in sample]
    for name, cost in ((name, cost) for part in parts for name, cost in part.items()):
        if not isinstance(cost, (int, np.integer)) or not 0 <= cost <= MAX_COST:
            raise ConfigError(f"the cost {name!r} of a sample is {cost!r}: expected an integer from 0 to {MAX_COST}")
    return CostArrays(offsets, [np.array([part.get(name, 0) for part in parts], np.uint32) for name in names])


def spans_of(numbers: Iterable[int]) -> tuple[int, ...]:
    """Ascending numbers as [first, count, first, count, ...]."""
    spans: list[int] = []
    for number in numbers:
        if spans and spans[-2] + spans[-1] == number:
            spans[-1] += 1
        else:
            spans += [number, 1]
    return tuple(spans)


def _digest(*contents: Any) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for content in contents:
        digest.update(content)
    return digest.hexdigest()
