"""Numbered samples of a source: what is known without reading them.

Reads the metadata of a data set. Returns how many samples there are, grouped by shard, and the reader of them (see
`blocks`), which gives key and parts of sample number i. Tars, JSONL files, tables, selections of these and joins are
all `Records`; callers need not know which. `Records` are immutable and can be pickled, without handles; only readers
hold handles.
"""

from __future__ import annotations

import abc
import bisect
import dataclasses
import functools
import itertools
import json
import operator
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bridge_data.data.blocks import Block, ByteRange, RawSample, RecordReader
from bridge_data.errors import ConfigError
from bridge_data.storage import Location

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


READ_BYTES = 1 << 18
"""`Records.read_bytes` of data that are read by the bytes of each sample. It is a part of the order, since
`Geometry.choose` cuts blocks by it: see `order.state.VERSION`."""


class Records(Protocol):
    """Numbered samples from 0 on, grouped by shard: neighbours in a shard are read front to back. A shard is any
    contiguous range of samples, such as a JSONL file, or a row group.

    With these six members, a kind of data can be read and trained on. What a feature asks besides is a function, for
    which a class registers its own way; without it, the feature refuses these data, or reads all samples:

        keys_of, find (`sample_keys`)             keys without their samples, and samples by key
        join_problem (`sample_keys`)              joins by key
        files_of (`withheld`)                     lists of samples that may not be read
        derivation_of                             such lists, of records that are made of others
        contents_of                               refusing a state of other data of the same identity
        shard_identities                          measuring only shards that have changed
        verified                                  digests
        columns_of (`prepare.sample_columns`)     `where:`
    """

    @property
    def root(self) -> Location:
        """The folder or file that holds the samples."""

    @property
    def shards(self) -> Sequence[tuple[str, int]]:
        """(name, number of samples) of each shard."""

    @property
    def sample_bytes(self) -> float | None:
        """Mean bytes of a stored sample (uncompressed); None if no index has it."""

    @property
    def read_bytes(self) -> int:
        """Approximate bytes of one efficient read, and so of a block."""

    def identity(self) -> Mapping[str, Any]:
        """A value for `json.dumps` that differs if the samples or their order do, regardless of where they are stored.

        Raises:
            DatasetError: if it cannot be determined, as a file is missing.
        """

    def reader(self) -> RecordReader:
        """A reader of these samples, with its own handles."""


def count_samples(records: Records) -> int:
    """The number of samples of all shards."""
    return sum(counts_of(records))


def counts_of(records: Records) -> list[int]:
    """The number of samples of each shard."""
    return list(map(operator.itemgetter(1), records.shards))


def names_of(records: Records) -> list[str]:
    """The name of each shard."""
    return [name for name, _ in records.shards]


def shard_at(records: Records, index: int) -> int:
    """The number of the shard that sample `index` is in."""
    return bisect.bisect_right([*itertools.accumulate(counts_of(records))], index)


def label_of(records: Records) -> str:
    """Folder or file, and split part, for messages."""
    part = split_part_of(records)
    return f"{records.root} [{part}]" if part else str(records.root)


def split_part_of(records: Records) -> str:
    """The split part that the data were opened as; empty if they do not know."""
    return getattr(stored_records(records), "split_part", "")


def place_of(records: Records, index: int) -> str:
    """Where sample `index` is stored, for messages, without reading it; of records that are made of several, where the
    first of these has it."""
    while (derivation := derivation_of(records)) is not None:
        records, index = derivation.members[0], derivation.row(index)[0]
    return stored_place(records, index)


@functools.singledispatch
def stored_place(records: Records, index: int) -> str:
    """`shard/number`, where shards of one name count as one."""
    first = 0
    for name, run in itertools.groupby(records.shards, key=lambda shard: shard[0]):
        count = sum(count for _, count in run)
        if index < first + count:
            return f"{name}/{index - first}"
        first += count
    raise IndexError(f"{label_of(records)}: there is no sample {index}")


@functools.singledispatch
def verified(records: Records) -> Records:
    """The same records; their readers raise a `DatasetError` if a part differs from what was prepared.

    Raises:
        ConfigError: if they have no digests.
    """
    raise ConfigError(f"{records.root}: has no digests to verify: only prepared folders of tars can have some")


@dataclasses.dataclass(frozen=True, eq=False)
class Selection(abc.ABC):
    """Some samples of `records`, in the same order, numbered from 0; shards without any are skipped.

    Their readers return them with their numbers and names in `records`.
    """

    records: Records

    @property
    def root(self) -> Location:
        return self.records.root

    @property
    @abc.abstractmethod
    def num_samples(self) -> int:
        """Samples in the selection."""

    @property
    @abc.abstractmethod
    def shard_counts(self) -> Sequence[int]:
        """The samples of the selection in each shard of `records`."""

    @abc.abstractmethod
    def to_base(self, index: int) -> int:
        """The number in `records` of sample `index`, which must exist."""

    @abc.abstractmethod
    def to_base_array(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """`to_base` of many samples at once."""

    @abc.abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """The identity of `records`, and which of them."""

    @abc.abstractmethod
    def rank(self, number: int) -> int:
        """How many samples of the selection come before sample `number` of `records`."""

    def from_base(self, number: int) -> int | None:
        """The number in the selection of sample `number` of `records`; None if it is not in it."""
        index = self.rank(number)
        return index if index < self.num_samples and self.to_base(index) == number else None

    @functools.cached_property
    def shards(self) -> Sequence[tuple[str, int]]:
        """The shards that have samples in the selection."""
        own = zip(self.records.shards, self.shard_counts, strict=True)
        return [(name, count) for (name, _), count in own if count]

    @property
    def sample_bytes(self) -> float | None:
        """Mean bytes of a sample of `records`."""
        return self.records.sample_bytes

    @property
    def read_bytes(self) -> int:
        return self.records.read_bytes

    def reader(self) -> RecordReader:
        return _SelectionReader(self)


def _selections(records: Records) -> tuple[list[Selection], Records]:
    """(the selections that `records` are made by, the outermost first, what they select from)."""
    found = []
    while isinstance(records, Selection):
        found.append(records)
        records = records.records
    return found, records


class Derivation(NamedTuple):
    """Where records have their samples from: `members`, and the number of a sample in each of these, -1 if it has none
    there."""

    members: Sequence[Records]
    row: Callable[[int], Sequence[int]]


@functools.singledispatch
def derivation_of(records: Records) -> Derivation | None:
    """Where these records have their samples from; None if they are stored themselves."""
    return None


@derivation_of.register
def _derivation(records: Selection) -> Derivation:
    return Derivation((records.records,), lambda index: (records.to_base(index),))


@verified.register
def _verified(records: Selection) -> Records:
    return dataclasses.replace(records, records=verified(records.records))


class Contents(NamedTuple):
    """What tells data of one identity apart, by what is known without reading them.

    `start` is a CRC-32 of their first bytes, the same however they were prepared; 0 if the identity says all. `more`
    depends on the index: `kind:digest`, to be compared with another of the same kind; it may be empty.
    """

    start: int = 0
    more: str = ""


@functools.singledispatch
def contents_of(records: Records) -> Contents:
    """What tells these data from others of their identity.

    Raises:
        DatasetError: if a file is missing.
    """
    return Contents()


@contents_of.register
def _contents(records: Selection) -> Contents:
    return contents_of(records.records)


@functools.singledispatch
def shard_identities(records: Records) -> list[Any]:
    """For each shard, a value for `json.dumps` that differs if its samples do. Data that do not tell their shards apart
    change as a whole."""
    whole = records.identity(), contents_of(records)
    return [[*whole, shard] for shard in range(len(records.shards))]


def fingerprint_of(records: Records) -> str:
    """24 hex digits that identify the samples and their order: 16 of their identity, 8 of their first bytes.

    Raises:
        DatasetError: if a shard is missing.
    """
    import hashlib  # imported here: commands that read no data do not need it

    text = json.dumps(records.identity(), sort_keys=True, separators=(",", ":"))
    return f"{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}{contents_of(records).start:08x}"


def stored_records(records: Records) -> Records:
    """The records below all selections; `records` itself if it is no selection."""
    return _selections(records)[1]


def stored_number(records: Records, index: int) -> int:
    """The number of sample `index` below all selections."""
    return functools.reduce(lambda number, one: one.to_base(number), _selections(records)[0], index)


def selected_number(records: Records, stored: int) -> int | None:
    """The number in `records` of the sample that has the number `stored` below all selections; None if it is not in
    them."""
    number: int | None = stored
    for one in reversed(_selections(records)[0]):
        number = None if number is None else one.from_base(number)
    return number


MAX_READ_PER_CHOSEN = 8
"""Maximum samples read together per sample of a selection; beyond it, they are read singly."""


class _SelectionReader(RecordReader):
    """Reads the samples of a selection; neighbours in it together, even if others are between them."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._reader = reader = selection.records.reader()
        self.dataset_path, self.sample_class = reader.dataset_path, reader.sample_class
        self.has_blocks = reader.has_blocks

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        return self._reader.read(self._to_base(index), parts)

    def byte_ranges(self, block: range, parts: Container[str] | None = None) -> Sequence[ByteRange]:
        self._to_base(block[0]), self._to_base(block[-1])
        whole = self._whole(block)
        return () if whole is None else self._reader.byte_ranges(whole, parts)

    def read_block(self, block: range, parts: Container[str] | None) -> Block | None:
        whole = self._whole(block)
        found = None if whole is None else self._reader.read_block(whole, parts)
        if found is None or whole is None or len(whole) == len(block):
            return found
        return found.at([self._selection.to_base(index) - whole.start for index in block])

    def part_names(self, shard: int) -> Collection[str] | None:
        kept = [number for number, count in enumerate(self._selection.shard_counts) if count]
        return self._reader.part_names(kept[shard])

    def _whole(self, block: range) -> range | None:
        """The samples of `records` from the first of a block to the last; None if these are too many."""
        whole = range(self._selection.to_base(block[0]), self._selection.to_base(block[-1]) + 1)
        return whole if len(whole) <= MAX_READ_PER_CHOSEN * len(block) else None

    def _to_base(self, index: int) -> int:
        own = self._selection
        if not 0 <= index < own.num_samples:
            raise IndexError(f"{label_of(own)}: sample {index} of {own.num_samples}")
        return own.to_base(index)
