"""Data to look at: split parts of which any sample can be shown, page by page, or found by its key.

Reads a path; the beginning of a key. Returns `BrowsedSplit`s, and stored samples by (source, index). Listing and paging
are arithmetic over sample counts; a key is looked up in the index that `prepare` writes; a shard is opened only to show
its samples.
"""

import bisect
import collections
import dataclasses
import itertools
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from bridge_data import storage
from bridge_data.data import RawSample, RecordReader, Records
from bridge_data.data.blocks import bytes_of
from bridge_data.data.key_index import KeyIndex
from bridge_data.data.metadata import META_FOLDER, split_shard
from bridge_data.data.records import names_of, shard_at
from bridge_data.data.sample_keys import find
from bridge_data.data.withheld import reader_of
from bridge_data.decode import SampleDecoder, SourceReader, open_source_reader
from bridge_data.errors import BridgeDataError, ConfigError
from bridge_data.plan import Plan, opening
from bridge_data.plugins.view.catalog import CatalogSource, SampleAddress, SplitCatalog
from bridge_data.runs.named_samples import located
from bridge_data.storage import Location

MAX_KEPT_BYTES = 256 << 20
"""Stored samples kept in memory, so that the media of a page are not read again."""

CHECK_EVERY_S = 1.0
"""Seconds between two checks for changed data."""

MAX_KEYS = 500
"""Keys of a data set checked per search: some may be in another split part."""

_LAST = "\udcff" * 4
"""Sorts after every key with the same prefix: the largest bytes, which are not UTF-8."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SampleFilter:
    """Which sources are shown: the one numbered `source` (None: all), those with the subflavor `subflavor`, written
    `key=value` (empty: all)."""

    source: int | None = None
    subflavor: str = ""

    def takes(self, source: CatalogSource) -> bool:
        """Whether a source is shown."""
        if self.source is not None and source.number != self.source:
            return False
        return not self.subflavor or self.subflavor in source.subflavors


class BrowsedSplit(SplitCatalog):
    """A split part, and its samples. Any thread may use it."""

    def __init__(self, name: str, plan: Plan | None, records: Sequence[Records], notice: str = "") -> None:
        super().__init__(name, plan, records, notice)
        self.search = KeySearch()
        self._lock = threading.Lock()
        self._readers: dict[int, RecordReader] = {}
        self._source_readers: dict[int, SourceReader] = {}
        self._kept: collections.OrderedDict[SampleAddress, RawSample] = collections.OrderedDict()
        self._kept_bytes = 0

    @classmethod
    def of(cls, part: SplitCatalog) -> Self:
        """That of a part that is open."""
        return cls(part.name, part.plan, [source.records for source in part.sources], part.notice)

    @property
    def subflavors(self) -> list[str]:
        """All subflavors, as `key=value`."""
        return list(dict.fromkeys(text for source in self.sources for text in source.subflavors))

    def shown(self, chosen: SampleFilter) -> list[CatalogSource]:
        """The sources that match a filter."""
        return [source for source in self.sources if chosen.takes(source)]

    def page(self, chosen: SampleFilter, number: int, size: int) -> tuple[list[SampleAddress], int, int]:
        """(samples of page `number`, from 1; number of that page, at most the last; number of pages)."""
        sources = self.shown(chosen)
        ends = list(itertools.accumulate(source.num_samples for source in sources))
        total = ends[-1] if ends else 0
        num_pages = max(1, -(-total // size))
        number = min(max(1, number), num_pages)
        found = []
        for place in range((number - 1) * size, min(number * size, total)):
            at = bisect.bisect_right(ends, place)
            found.append(SampleAddress(sources[at].number, place - (ends[at] - sources[at].num_samples)))
        return found, number, num_pages

    def source(self, address: SampleAddress) -> CatalogSource:
        """The source of a sample.

        Raises:
            LookupError: if there is no such sample.
        """
        if not 0 <= address.source < len(self.sources):
            raise LookupError(f"{self.name} has {len(self.sources)} sources, numbered from 0: got {address.source}")
        source = self.sources[address.source]
        if not 0 <= address.index < source.num_samples:
            raise LookupError(f"{source.name} has {source.num_samples:,} samples, numbered from 0: got {address.index}")
        return source

    def read(self, address: SampleAddress) -> RawSample:
        """A stored sample. Raises a LookupError if there is none, a ForgottenSampleError if it is forgotten, a
        DatasetError if it cannot be read."""
        source = self.source(address)
        with self._lock:
            raw = self._kept.get(address)
            if raw is not None:
                self._kept.move_to_end(address)
                return raw
            reader = self._readers.get(address.source)
            if reader is None:
                reader = self._readers[address.source] = reader_of(source.records)
            self._kept[address] = raw = reader.read(address.index)
            self._kept_bytes += _num_bytes(raw)
            while self._kept_bytes > MAX_KEPT_BYTES and len(self._kept) > 1:
                self._kept_bytes -= _num_bytes(self._kept.popitem(last=False)[1])
            return raw

    def build(self, address: SampleAddress) -> Any:
        """The sample made from the parts, images as uint8 (3, H, W); None if there is no definition of samples.

        Raises:
            BridgeDataError: if it cannot be made.
        """
        source = self.source(address).source
        if source is None:
            return None
        self.read(address)  # raises an error if it is forgotten
        with self._lock:
            reader = self._source_readers.get(address.source)
            if reader is None:
                reader = self._source_readers[address.source] = open_source_reader(
                    source, SampleDecoder(image_decode="torchrgb8")
                )
            return reader.build(reader.read(address.index), address.index)


def _num_bytes(raw: RawSample) -> int:
    return sum(len(bytes_of(part)) for part in raw.parts.values())


class DataCatalog:
    """All split parts of the data set, JSONL file or metadataset at `path`, each opened on first use, and again after
    data on a disk were prepared again.

    Raises:
        ConfigError, DatasetError: if there is no such data set.
    """

    def __init__(self, path: Location, trust: Mapping[str, Any]) -> None:
        self.path = path
        self.part_names = opening.split_parts(path)
        self._trust = trust
        self._lock = threading.Lock()
        self._parts: dict[str, BrowsedSplit | None] = {}
        self._versions = {path: _version(path)}
        self._next_check = 0.0

    def part(self, name: str) -> BrowsedSplit:
        """A split part.

        Raises:
            LookupError: if there is no such part.
            BridgeDataError: if it cannot be opened, or has no samples.
        """
        with self._lock:
            self._notice_changes()
            if name not in self.part_names:
                raise LookupError(f"there is no split part {name!r}; there is {', '.join(self.part_names)}")
            if name not in self._parts:
                self._parts[name] = opened = BrowsedSplit.open(self.path, name, self._trust, training=name == "train")
                roots = [] if opened is None else [source.records.root for source in opened.sources]
                self._versions |= {root: _version(root) for root in roots}
            found = self._parts[name]
        if found is None:
            raise ConfigError(f"{self.path}: no samples in {name}")
        return found

    def first_part(self) -> str:
        """The name of the first part with samples, or else of the first."""
        for name in self.part_names:
            try:
                self.part(name)
            except BridgeDataError:
                continue
            return name
        if not self.part_names:
            raise ConfigError(f"{self.path}: the split has no parts")
        return self.part_names[0]

    def _notice_changes(self) -> None:
        """Discard opened parts if a data set was prepared again since."""
        if time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + CHECK_EVERY_S
        if all(_version(path) == version for path, version in self._versions.items()):
            return
        storage.close_files()
        self.part_names = opening.split_parts(self.path)
        self._parts.clear()
        self._versions = {self.path: _version(self.path)}


def _version(path: Location) -> tuple[int, int] | None:
    """A value that changes when a data set is prepared or the file at `path` changes; None in a store."""
    if not isinstance(path, Path):
        return None
    try:
        found = os.stat(path / META_FOLDER if path.is_dir() else path)
    except OSError:  # opening it reports why
        return None
    return found.st_ino, found.st_mtime_ns


class KeySearch:
    """Searches the sources of a split part. Any thread may use it."""

    def __init__(self) -> None:
        self._indexes: dict[str, KeyIndex | None] = {}

    def find(self, text: str, sources: list[CatalogSource], limit: int) -> list[SampleAddress]:
        """The first `limit` samples of `sources` whose key is `text`, or `shard/key`; with an index of keys, those
        whose key begins so."""
        found = (SampleAddress(one.number, index) for one in sources for index in self._indices(one.records, text))
        return list(itertools.islice(found, limit))

    def _indices(self, records: Records, text: str) -> Iterator[int]:
        index = self._index(records.root)
        if index is None:
            yield from (number for number, _, _ in located(records, text))
            return
        shard, prefix = split_shard(text) or ("", text)
        for number, _ in find(records, index.sorted_keys(prefix, prefix + _LAST, MAX_KEYS)):
            if not shard or names_of(records)[shard_at(records, number)] == shard:
                yield number

    def _index(self, root: Location) -> KeyIndex | None:
        if str(root) not in self._indexes:
            self._indexes[str(root)] = KeyIndex.find(root)
        return self._indexes[str(root)]
