"""The records of a source that a condition chooses, as a source of their own.

Enters: tables, or the tars of a prepared folder; clauses (`where`). Leaves: a `RecordSource` with these records alone,
numbered from 0, in the same order. Guarantee: they are those that a run with the same clauses would see in all split
parts, so without forgotten and excluded samples.
"""

import array
import bisect
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.limits import Limits
from bridge_data.prepare.converters.columnar_tables import ColumnarTables
from bridge_data.prepare.converters.sample_files import TarCollection
from bridge_data.prepare.converters.source_records import BrokenRecord, RecordSource, SourceRecord
from bridge_data.shards.metadata import META_FOLDER
from bridge_data.shards.prepared import PreparedDataset
from bridge_data.shards.table_records import open_records
from bridge_data.shards.where.choosing import Where, evaluate, shown


class ChosenSource:
    """The records of `source` with these numbers, in their order."""

    def __init__(self, source: RecordSource, numbers: Iterable[int]) -> None:
        self._source, self._numbers = source, array.array("q", sorted(numbers))
        self.title, self.has_parts, self.is_scattered = source.title, source.has_parts, source.is_scattered
        self.definition, self.notes = source.definition, source.notes

    def __len__(self) -> int:
        return len(self._numbers)

    def blocks(self) -> Iterator[range]:
        for block in self._source.blocks():
            first, end = (bisect.bisect_left(self._numbers, number) for number in (block.start, block.stop))
            if first < end:
                yield range(first, end)

    def read(self, numbers: Sequence[int]) -> Iterator[SourceRecord | BrokenRecord]:
        records = self._source.read([self._numbers[number] for number in numbers])
        for number, record in zip(numbers, records, strict=True):
            yield record._replace(number=number)

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(self._numbers.tobytes(), digest_size=16)
        digest.update(self._source.fingerprint().encode())
        return digest.hexdigest()


def choose_records(path: Path, source: RecordSource, clauses: Sequence[Where], limits: Limits) -> ChosenSource:
    """The records of `source`, which was opened at `path`, for which all clauses hold.

    Raises:
        ConfigError: if there are no columns to choose by, a clause is wrong, or nothing is chosen. DatasetError: if
            tars have other samples than when they were prepared.
    """
    numbers: Sequence[int] | set[int]
    if isinstance(source, ColumnarTables):
        numbers = _chosen_rows(path, source, clauses)
    elif isinstance(source, TarCollection) and (path / META_FOLDER).is_dir():
        numbers = _chosen_samples(path, source, clauses, limits)
    else:
        raise ConfigError(
            f"{path}: where: is for prepared folders of tars, Parquet and Arrow files, and what `datasets` saved: "
            "convert it whole, and choose from the result"
        )
    if not numbers:
        raise clauses[-1].error(f"where: {shown(clauses)} chooses none of the {len(source):,} records of {path}")
    return ChosenSource(source, numbers)


def _chosen_rows(path: Path, source: ColumnarTables, clauses: Sequence[Where]) -> list[int]:
    """The numbers of chosen rows."""
    root = path if path.is_dir() else path.parent
    files = [(file.relative_to(root).as_posix(), str(file)) for file in source.files]
    records = open_records(root, files, "train", lambda columns: []).with_tombstones()
    gone = records.forgotten([0 if own is None else own.newest.number for own in records.tombstones])
    return [row for row in evaluate(records, clauses).between(0, records.num_samples) if row not in gone]


def _chosen_samples(root: Path, source: TarCollection, clauses: Sequence[Where], limits: Limits) -> set[int]:
    """The numbers of chosen samples."""
    dataset = PreparedDataset.open(root, limits)
    samples = {file.relative_to(root).as_posix(): found for file, found in source.samples_of_files()}
    for name in samples.keys() & dataset.shard_counts.keys():
        if len(samples[name]) != dataset.shard_counts[name]:
            raise DatasetError(
                f"{root / name}: has {len(samples[name]):,} samples, but had {dataset.shard_counts[name]:,} when it "
                "was prepared: prepare it again"
            )
    numbers: set[int] = set()
    for shards in map(dataset.split, dataset.split_parts()):
        if not shards.num_samples:
            continue  # it has no columns
        choice = evaluate(shards, clauses)
        forgotten = shards.list_of_forgotten
        gone = () if forgotten is None else shards.forgotten([forgotten.newest.number])
        for index in choice.between(0, shards.num_samples):
            shard, position = shards.locate(index)
            if index not in gone and shards.names[shard] in samples:
                numbers.add(samples[shards.names[shard]][position])
    return numbers
