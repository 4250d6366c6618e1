"""Which records of a source a conversion takes: not those that are forgotten, nor those that a condition (`where`) does
not choose.

Reads a source and clauses. Returns a source of the records that are left, numbered anew.
"""

import array
import bisect
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bridge_data.errors import ConfigError
from bridge_data.plan.declared import WHERE, Clause
from bridge_data.prepare.record_source import BrokenRecord, RecordSource, SourceRecord


class TakenRecords(NamedTuple):
    """The records that a conversion takes, how many clauses chose (None: there are no clauses), and how many of these
    are forgotten."""

    source: RecordSource
    num_chosen: int | None
    num_forgotten: int


def take_records(path: Path, source: RecordSource, clauses: Sequence[Clause]) -> TakenRecords:
    """The records of `source`, which was opened at `path`, that are not forgotten, and for which all clauses hold.

    Raises:
        ConfigError: if there are no columns to choose by, a clause is wrong, or no record is left.
        DatasetError: if files have other samples than when they were prepared, or samples in them were forgotten.
    """
    chosen = source.chosen_numbers(clauses) if clauses else range(len(source))
    if chosen is None:
        raise ConfigError(
            f"{path}: where: is for prepared folders of tars, prepared JSONL files and tables: convert it whole, and "
            "choose from the result"
        )
    if not chosen:
        raise clauses[-1].error(
            f"where: {WHERE.get('--where').shown(clauses)} chooses none of the {len(source):,} records of {path}"
        )
    forgotten = source.forgotten_numbers()
    taken = [number for number in chosen if number not in forgotten] if forgotten else chosen
    if not taken:
        raise ConfigError(f"{path}: all of its records are forgotten, so there is nothing to convert")
    return TakenRecords(
        source=_TakenSource(source, taken) if len(taken) < len(source) else source,
        num_chosen=len(chosen) if clauses else None,
        num_forgotten=len(chosen) - len(taken),
    )


class _TakenSource(RecordSource):
    """The records of `source` with these numbers, in their order, numbered from 0."""

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
