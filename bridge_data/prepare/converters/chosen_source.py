"""The records of a source that a conversion takes, as a source of their own: not forgotten, and chosen by a condition.

Enters: a source, and clauses (`where`), which tables, JSONL files and the tars of a prepared folder support. Leaves: a
`RecordSource` with these records alone, numbered from 0, in the same order. Guarantee: no record is on a list of
forgotten samples; chosen ones are those that a run with the same clauses would see in all split parts, so without
excluded samples.
"""

import array
import bisect
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bridge_data.errors import ConfigError, DatasetError, bridge_command
from bridge_data.limits import Limits
from bridge_data.plan.document import is_jsonl
from bridge_data.plan.opening import split_parts
from bridge_data.prepare.converters.columnar_tables import ColumnarTables
from bridge_data.prepare.converters.sample_files import TarCollection
from bridge_data.prepare.converters.source_records import BrokenRecord, RecordSource, SourceRecord
from bridge_data.prepare.converters.text_tables import TextTable
from bridge_data.shards.jsonl_file import open_jsonl
from bridge_data.shards.metadata import META_FOLDER
from bridge_data.shards.prepared import PreparedDataset
from bridge_data.shards.records import stored_number, stored_records
from bridge_data.shards.shard_table import encode_offsets, offsets_digest
from bridge_data.shards.table_records import TableRecords, open_records
from bridge_data.shards.tombstones import ListedFiles, ShardStamp, newest_versions, read_lists
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


@dataclasses.dataclass(frozen=True, eq=False)
class _SourceFiles(ListedFiles):
    """The files of a source, with the numbers of the records of each."""

    numbers: Sequence[Sequence[int]]

    def number_in(self, file: int, position: int) -> int:
        return self.numbers[file][position]


class TakenRecords(NamedTuple):
    """The records that a conversion takes, how many clauses chose (None: there are no clauses), and how many of these
    are forgotten."""

    source: RecordSource
    num_chosen: int | None
    num_forgotten: int


def take_records(path: Path, source: RecordSource, clauses: Sequence[Where], limits: Limits) -> TakenRecords:
    """The records of `source`, which was opened at `path`, that are not forgotten, and for which all clauses hold.

    Raises:
        ConfigError: if there are no columns to choose by, a clause is wrong, or no record is left. DatasetError: if
            files have other samples than when they were prepared, or samples in them were forgotten.
    """
    chosen = _chosen(path.absolute(), source, clauses, limits) if clauses else range(len(source))
    if not chosen:
        raise clauses[-1].error(f"where: {shown(clauses)} chooses none of the {len(source):,} records of {path}")
    gone = _forgotten(path.absolute(), source)
    taken = [number for number in chosen if number not in gone] if gone else chosen
    if not taken:
        raise ConfigError(f"{path}: all of its records are forgotten, so there is nothing to convert")
    return TakenRecords(
        source=ChosenSource(source, taken) if len(taken) < len(source) else source,
        num_chosen=len(chosen) if clauses else None,
        num_forgotten=len(chosen) - len(taken),
    )


def _chosen(path: Path, source: RecordSource, clauses: Sequence[Where], limits: Limits) -> Collection[int]:
    """The numbers of the records for which all clauses hold."""
    if isinstance(source, ColumnarTables):
        records = _rows(path, source)
        return evaluate(records, clauses).between(0, records.num_samples)
    if isinstance(source, TarCollection) and (path / META_FOLDER).is_dir():
        return _chosen_samples(path, source, clauses, limits)
    if isinstance(source, TextTable) and is_jsonl(str(path)):
        return _chosen_lines(path, source, clauses, limits)
    raise ConfigError(
        f"{path}: where: is for prepared folders of tars, prepared JSONL files, Parquet and Arrow files, and what "
        "`datasets` saved: convert it whole, and choose from the result"
    )


def _rows(path: Path, source: ColumnarTables) -> TableRecords:
    root = path if path.is_dir() else path.parent
    files = [(file.relative_to(root).as_posix(), str(file)) for file in map(Path.absolute, source.files)]
    return open_records(path, files, "train", lambda columns: [])


def _chosen_samples(root: Path, source: TarCollection, clauses: Sequence[Where], limits: Limits) -> set[int]:
    """The numbers of the chosen samples of all split parts."""
    dataset = PreparedDataset.open(root, limits)
    samples = {file.absolute().relative_to(root).as_posix(): found for file, found in source.samples_of_files()}
    for name in samples.keys() & dataset.shard_counts.keys():
        _check_count(root / name, len(samples[name]), dataset.shard_counts[name])
    numbers: set[int] = set()
    for shards in map(dataset.split, dataset.split_parts()):
        if not shards.num_samples:
            continue  # it has no columns
        for index in evaluate(shards, clauses).between(0, shards.num_samples):
            shard, position = shards.locate(index)
            if shards.names[shard] in samples:
                numbers.add(samples[shards.names[shard]][position])
    return numbers


def _chosen_lines(path: Path, source: TextTable, clauses: Sequence[Where], limits: Limits) -> set[int]:
    """The numbers of the chosen lines of all split parts."""
    numbers: set[int] = set()
    for part in split_parts(path, limits):
        lines = open_jsonl(path, part, limits=limits)
        _check_count(path, len(source), stored_records(lines).num_samples)
        if lines.num_samples:
            found = evaluate(lines, clauses).between(0, lines.num_samples)
            numbers.update(stored_number(lines, index) for index in found)
    return numbers


def _check_count(file: Path, num_samples: int, num_prepared: int) -> None:
    if num_samples != num_prepared:
        raise DatasetError(
            f"{file}: has {num_samples:,} samples, but had {num_prepared:,} when it was prepared: prepare it again"
        )


def _forgotten(path: Path, source: RecordSource) -> Container[int]:
    """The numbers of the forgotten records."""
    if isinstance(source, TarCollection):
        lists = [_tar_lists(path, source)]
    elif isinstance(source, ColumnarTables):
        rows = functools.cache(lambda: _rows(path, source))  # they are opened only if there is a list
        found = read_lists(path, [str(file.absolute()) for file in source.files], lambda number: rows().stamp(number))
        lists = [dataclasses.replace(rows(), **found)] if found["tombstones"] else []
    elif isinstance(source, TextTable):
        files = zip(source.files, itertools.pairwise(source.firsts), strict=True)
        lists = [_line_lists(file.absolute(), source.starts[first:end], first) for file, (first, end) in files]
    else:
        return ()
    return {number for one in lists for number in one.forgotten(newest_versions(one.tombstones))}


def _line_lists(file: Path, starts: "array.array[int]", first: int) -> ListedFiles:
    """The list of the folder that a file with lines is in; these start at `starts`, and are numbered from `first`."""
    num_bytes, numbers = file.stat().st_size, range(first, first + len(starts))
    starts[:1] = array.array("Q", [0] * len(starts[:1]))  # as in the index, blank lines before belong to the first one
    digest = offsets_digest(encode_offsets(starts + array.array("Q", [num_bytes])))
    stamp = ShardStamp(num_bytes, len(starts), digest)
    return _SourceFiles([numbers], **read_lists(file, [str(file)], lambda _: stamp))


def _tar_lists(path: Path, source: TarCollection) -> ListedFiles:
    """The lists of the tars at `path`, which are those of the lists by the tars themselves: an index may be older."""
    files = [(file.absolute(), numbers) for file, numbers in source.samples_of_files()]

    def stamp(number: int) -> ShardStamp:
        file, numbers = files[number]
        return ShardStamp(file.stat().st_size, len(numbers), None)

    lists = read_lists(path, [str(file) for file, _ in files], stamp, are_tars=True)
    found = _SourceFiles([numbers for _, numbers in files], **lists)
    for own in filter(None, found.tombstones):
        for number, position, key in own.samples(own.newest):
            file, numbers = files[number]
            record = next(source.read([numbers[position]]))
            if isinstance(record, SourceRecord) and not (record.key or "").endswith(key):  # it may have a prefix
                root = own.lists[0].root
                again, renew = bridge_command("prepare", root), bridge_command("forget", root, "--renew")
                raise DatasetError(
                    f"{file}: has changed since {key!r} was forgotten: sample {position} is {record.key!r} now; "
                    f"run `{again}`, then `{renew} --reason WHY`"
                )
    return found
