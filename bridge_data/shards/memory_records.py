"""Samples that are in memory: a list, or a data set with a length whose items can be had by number.

Enters: such a sequence. Leaves: `Records`, whose samples hold values instead of bytes. Guarantee: what is done to a
sample changes nothing in the sequence, as each read gives a copy.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Container, Mapping
from typing import Any, NoReturn, Protocol

from bridge_data.errors import ConfigError, SampleError
from bridge_data.samples import Sample
from bridge_data.shards.blocks import READ_BYTES, Held, OpenBlocks
from bridge_data.shards.records import ByteRange, RawSample, RecordReader
from bridge_data.storage import Location, location

MEMORY = "memory"
"""What such data are called in messages, states and keys, instead of a path."""

SAMPLE_BYTES = float(1 << 20)
"""What a sample is taken to have, so that none is drawn together with its neighbours: reading them together would
gain nothing."""


class Items(Protocol):
    """A list, or another map-style data set."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class MemorySample(RawSample):
    """An item: its values by name. The key is that of the item, or its number."""

    __slots__ = ()

    @property
    def full_key(self) -> str:
        """The key; there are no shards whose names could come before it."""
        return self.key


def values_of(item: object) -> dict[str, Any]:
    """The values of an item, a dict or a `Sample`, by name, without its provenance.

    Raises:
        TypeError: if it is neither.
    """
    if isinstance(item, Mapping):
        return {name: value for name, value in item.items() if not _is_provenance(name)}
    if isinstance(item, Sample):
        names = [field.name for field in dataclasses.fields(item) if field.init and not _is_provenance(field.name)]
        return {name: getattr(item, name) for name in names}
    raise TypeError(f"expected a dict of its parts, or a Sample, got a {type(item).__name__}")


def key_of(item: Any, index: int) -> str:
    """The key of an item; its number if it has none."""
    key = item.get("__key__") if isinstance(item, Mapping) else getattr(item, "__key__", None)
    return str(index) if key is None else str(key)


def _is_provenance(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MemoryRecords:
    """The samples `items`, which count as one shard; `fingerprint` tells them from others."""

    items: Items
    fingerprint: str
    num_samples: int
    split_part: str
    read_bytes = READ_BYTES

    @property
    def root(self) -> Location:
        return location(MEMORY)

    @property
    def names(self) -> list[str]:
        return [MEMORY]

    @property
    def counts(self) -> list[int]:
        return [self.num_samples]

    @property
    def sample_bytes(self) -> float:
        return SAMPLE_BYTES

    def identity(self) -> dict[str, Any]:
        """The fingerprint and the number of samples."""
        return {"memory": [self.fingerprint, self.num_samples]}

    def part_names(self, shard: int) -> Collection[str] | None:
        return None

    def describe(self, index: int) -> str:
        """The number of the item."""
        return f"{MEMORY}/{index}"

    def reader(self) -> RecordReader:
        return MemoryReader(self)

    def verified(self) -> NoReturn:
        raise ConfigError("verify_digests: samples in memory have no digests; leave it out")


class MemoryReader:
    """Gives copies of the items of `records`, one by one."""

    def __init__(self, records: MemoryRecords) -> None:
        self._records = records

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        """A copy of item `index`. A `SampleError` if the data set raises an exception, or it is no sample."""
        self._check(index)
        try:
            item = self._records.items[index]
            values = {name: value for name, value in values_of(item).items() if parts is None or name in parts}
            return MemorySample(key_of(item, index), MEMORY, index, copy.deepcopy(values), MEMORY)
        except Exception as error:
            raise SampleError(f"{self._records.describe(index)}: {type(error).__name__}: {error}") from error

    def byte_ranges(self, index: int, parts: Container[str] | None = None) -> list[ByteRange]:
        """None: nothing is read from files."""
        self._check(index)
        return []

    def read_in_blocks(self, blocks: OpenBlocks | None) -> None:
        """No effect."""

    def held(self, parts: Container[str] | None) -> Held | None:
        return None

    def block(self, index: int) -> range | None:
        self._check(index)
        return None

    def block_bytes(self, block: range) -> ByteRange | None:
        return None

    def _check(self, index: int) -> None:
        if not 0 <= index < self._records.num_samples:
            raise IndexError(f"{MEMORY}: sample {index} of {self._records.num_samples}")
