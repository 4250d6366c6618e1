"""A data set in memory, a list of samples or any map-style data set, as a source like any other.

Reads dicts, which become crude samples for cookers, or `Sample`s. Returns a `Source`, whose records hold values instead
of bytes. Order and states are those of any data set of one shard. Changing a sample does not change the data, as each
read returns a copy. A state is refused for data with another fingerprint.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeGuard

from bridge_data.data import SubsetRange
from bridge_data.data.blocks import ByteRange, RawSample, RecordReader
from bridge_data.data.records import READ_BYTES, Records, verified
from bridge_data.errors import ConfigError, SampleError
from bridge_data.later import is_tensor, numpy
from bridge_data.plan.factories import BaseCoreDatasetFactory, Decode
from bridge_data.plan.source import EpochsPerShuffle, Parts, SampleClass, Source
from bridge_data.samples import CrudeSample, Sample
from bridge_data.storage import Location, location

_GIVE = "give one, fingerprint='...', which differs where the data do"

MEMORY = "memory"
"""The name of such data in messages, states and keys, instead of a path."""

SAMPLE_BYTES = float(1 << 20)
"""The assumed size of a sample, so large that samples are read singly: reading neighbours together would gain
nothing."""


class Items(Protocol):
    """A list, or another map-style data set."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class MemorySample(RawSample):
    """An item: its values by name. The key is the item's, or its number."""

    __slots__ = ()

    @property
    def full_key(self) -> str:
        """The key, without a shard, as there are none."""
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
    """The samples `items`, which count as one shard; `fingerprint` identifies them."""

    items: Items
    fingerprint: str
    num_samples: int
    split_part: str
    read_bytes = READ_BYTES

    @property
    def root(self) -> Location:
        return location(MEMORY)

    @property
    def shards(self) -> list[tuple[str, int]]:
        return [(MEMORY, self.num_samples)]

    @property
    def sample_bytes(self) -> float:
        return SAMPLE_BYTES

    def identity(self) -> dict[str, Any]:
        """The fingerprint and the number of samples."""
        return {"memory": [self.fingerprint, self.num_samples]}

    def reader(self) -> RecordReader:
        return MemoryReader(self)


@verified.register
def _verified(records: MemoryRecords) -> Records:
    raise ConfigError("verify_digests: samples in memory have no digests; leave it out")


class MemoryReader(RecordReader):
    """Returns copies of the items of `records`, one by one."""

    dataset_path = MEMORY

    def __init__(self, records: MemoryRecords) -> None:
        self._records = records

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        """A copy of item `index`. A `SampleError` if the data set raises an exception, or the item is not a sample."""
        self._check(index)
        try:
            item = self._records.items[index]
            values = {name: value for name, value in values_of(item).items() if parts is None or name in parts}
            return MemorySample(key_of(item, index), MEMORY, index, copy.deepcopy(values), MEMORY)
        except Exception as error:
            raise SampleError(f"{MEMORY}/{index}: {type(error).__name__}: {error}") from error

    def byte_ranges(self, block: range, parts: Container[str] | None = None) -> list[ByteRange]:
        """None: nothing is read from files."""
        self._check(block[-1])
        return []

    def _check(self, index: int) -> None:
        if not 0 <= index < self._records.num_samples:
            raise IndexError(f"{MEMORY}: sample {index} of {self._records.num_samples}")


def in_memory(data: object, split_part: str, fingerprint: str | None, *, training: bool) -> InMemoryDataset | None:
    """The data set of the samples `data`, or of this part if they are a dict of samples by split part; None if they
    are something else.

    Raises:
        ConfigError: if there is no such part; see `InMemoryDataset`.
    """
    if isinstance(data, Mapping) and data and all(map(_are_samples, data.values())):
        if split_part not in data:
            raise ConfigError(f"{MEMORY}: there is no split part {split_part!r}; there is {', '.join(map(str, data))}")
        data = data[split_part]
    if not _are_samples(data):
        return None
    return InMemoryDataset(data, fingerprint=fingerprint, split_part=split_part, training=training)


def _are_samples(data: object) -> TypeGuard[Items]:
    """Whether `data` are samples, rather than text, paths, a metadataset, or one of our data sets."""
    if isinstance(data, (list, tuple)):
        return not (data and isinstance(data[0], (str, bytes, Path)))
    is_sequence = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return is_sequence and not isinstance(data, (str, bytes, Mapping)) and not hasattr(data, "worker_config")


class InMemoryDataset(BaseCoreDatasetFactory[Any]):
    """The samples `items`, copied to workers: a list, or an object with `__len__` and `__getitem__`.

    Dicts become crude samples: bytes are decoded by the extension of their name, like files; other values stay
    unchanged. `Sample`s, all of one class, stay samples. A sample has the key of the item, `__key__`, or the item's
    number. It is a deep copy of the item.

    >>> from bridge_data import TextSample
    >>> data = InMemoryDataset([TextSample(__key__=str(number), text="a") for number in range(10)])
    >>> data.build().num_samples
    10

    Args:
        fingerprint: a name for the contents, checked against states; None to make one of the number of items,
            the first and the last.
        split_part: the name of the split part; it has all items.
        subflavors, shuffle_over_epochs, subset, training: as for other factories.

    Raises:
        ConfigError: if there are no items, they are no samples, or no fingerprint can be made of them.
    """

    def __init__(
        self,
        items: Items,
        *,
        fingerprint: str | None = None,
        split_part: str = "train",
        subflavors: Mapping[str, Any] | None = None,
        training: bool = True,
        shuffle_over_epochs: EpochsPerShuffle = 1,
        subset: SubsetRange | None = None,
    ) -> None:
        self._set(training=training, worker_config=None, shuffle_over_epochs=shuffle_over_epochs, subset=subset)
        self.subflavors = dict(subflavors or {})
        try:
            num_samples = len(items)
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"{MEMORY}: the data have no length: {error}") from error
        if not num_samples:
            raise ConfigError(f"{MEMORY}: the data are empty: give at least one sample")
        if fingerprint is not None and not isinstance(fingerprint, str):
            raise ConfigError(f"fingerprint={fingerprint!r}: expected a text, such as the version of the data")
        first = _item(items, 0)
        self._class: SampleClass = type(first) if isinstance(first, Sample) else CrudeSample
        if fingerprint is None:
            fingerprint = _digest([num_samples, _content(first), _content(_item(items, num_samples - 1))])
        self._records = MemoryRecords(
            items=items, fingerprint=fingerprint, num_samples=num_samples, split_part=split_part
        )

    def source(self) -> Source:
        source = Source(
            path=MEMORY,
            split_part=self._records.split_part,
            records=self._records,
            sample_class=self._class,
            subflavors=self.subflavors,
            config_file=MEMORY,
            sample_loader=_Loader(self._class),
        )
        return self._cut(source)


@dataclasses.dataclass(frozen=True)
class _Loader:
    """Makes samples of `sample_class` from the values of items."""

    sample_class: SampleClass

    def load_function(self, decode: Decode | None, subflavors: dict[str, Any]) -> Callable[[Parts], Any]:
        """See `SampleLoader`."""
        if issubclass(self.sample_class, CrudeSample):
            return lambda parts: CrudeSample((decode or dict)({**parts, "__subflavors__": subflavors}))
        return lambda parts: self._sample(parts, subflavors)

    def _sample(self, parts: Parts, subflavors: dict[str, Any]) -> Any:
        values = {name: value for name, value in parts.items() if name != "__shard__"}
        try:
            return self.sample_class(**values, __subflavors__=subflavors)
        except TypeError as error:
            raise SampleError(
                f"{MEMORY}: sample {parts['__key__']} is not a {self.sample_class.__name__} like the first: {error}"
            ) from error


def _item(items: Items, index: int) -> Any:
    """An item that is a sample."""
    try:
        item = items[index]
        values_of(item)
    except Exception as error:
        raise ConfigError(f"{MEMORY}: item {index}: {type(error).__name__}: {error}") from error
    return item


def _content(item: Any) -> list[Any]:
    return [type(item).__name__, key_of(item, -1), values_of(item)]


def _digest(value: Any) -> str:
    """16 hex digits that identify the contents of a value: the same in every process."""
    import hashlib  # imported here: slow, and most data are not in memory

    hasher = hashlib.blake2b(digest_size=8)
    try:
        _update(hasher, value)
    except RecursionError:
        raise ConfigError(f"{MEMORY}: no fingerprint can be made of values nested so deeply: {_GIVE}") from None
    return hasher.hexdigest()


def _update(hasher: Any, value: Any) -> None:
    """Add a value: its kind, size and contents, so that no two different values look alike."""
    if isinstance(value, Mapping):
        value = list(value.items())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [[field.name, getattr(value, field.name)] for field in dataclasses.fields(value)]
    if isinstance(value, (list, tuple)):
        hasher.update(f"list {len(value)} ".encode())
        for one in value:
            _update(hasher, one)
        return
    kind, content = _bytes_of(value)
    hasher.update(f"{kind} {len(content)} ".encode())
    hasher.update(content)


def _bytes_of(value: Any) -> tuple[str, bytes]:
    """(kind, contents) of a value that contains no others."""
    if isinstance(value, (bytes, bytearray)):
        return "bytes", bytes(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return type(value).__name__, repr(value).encode("utf-8", "surrogatepass")
    if is_tensor(value):
        value = value.detach().cpu()
        value = value.float().numpy() if value.is_floating_point() else value.numpy()
    if isinstance(value, (numpy.ndarray, numpy.generic)) and not value.dtype.hasobject:
        return f"{value.dtype} {value.shape}", value.tobytes()
    if hasattr(value, "tobytes") and hasattr(value, "mode") and hasattr(value, "size"):  # of Pillow
        return f"{value.mode} {value.size}", value.tobytes()
    raise ConfigError(f"{MEMORY}: no fingerprint can be made of a {type(value).__name__}: {_GIVE}")
