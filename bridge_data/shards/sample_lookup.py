"""Finding one sample by the key that a user typed.

Enters: records, and a name: the `__key__` that batches and errors show (`a.tar/0001`; of a JSONL file the number of the
line), `SHARD:KEY`, or the key alone, `0001`. If needed, a shard may be preceded by the folder of its data set
(`photos/a.tar:0001`). Leaves: where the sample is among the records. Guarantee: the one matching sample, or a
`ConfigError` that lists the candidates.

Keys come from `index.sqlite`, by one search. A data set without it, and samples in memory, are searched one by one.
"""

import bisect
import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence

from bridge_data.errors import ConfigError, listed
from bridge_data.shards.joined_records import JoinRecords
from bridge_data.shards.jsonl_file import JsonlLines
from bridge_data.shards.key_index import KeyIndex
from bridge_data.shards.prepared import ShardSet
from bridge_data.shards.records import Records, RecordsView
from bridge_data.shards.table_records import TableRecords
from bridge_data.storage import Location

MAX_CANDIDATES = 10
"""Maximum samples listed in an error about an ambiguous key."""


@dataclasses.dataclass(frozen=True, slots=True)
class FoundSample:
    """A sample that a name stands for: sample `index` of records number `records`, stored as `key` in the shard
    `shard` of the data set at `root`."""

    records: int
    index: int
    root: Location
    shard: str
    key: str

    @property
    def name(self) -> str:
        """`SHARD:KEY`, which is unique in its data set."""
        return f"{self.shard}:{self.key}"


def find_sample(several: Sequence[Records], name: str) -> list[FoundSample]:
    """Where the sample `name` is in `several`, such as the records of the sources of a plan.

    It is one stored sample; several results if several records have it, as a blend may name a data set twice.

    Raises:
        ConfigError: if no sample has this key, or several have it.
        DatasetError: if an index is damaged.
    """
    found = [
        FoundSample(number, index, records.root, shard, key)
        for number, records in enumerate(several)
        for index, shard, key in _found(records, name)
    ]
    samples = {(str(one.root), one.name): one for one in found}
    if len(samples) > 1:
        roots = {str(one.root) for one in found}
        names = [one.name if len(roots) == 1 else f"{one.root}/{one.name}" for one in samples.values()]
        raise ConfigError(f"{name!r} is the key of {len(names)} samples; say which is meant: {listed(names)}")
    if not found:
        raise ConfigError(_complaint(several, name))
    same = [one for one in found if one.records == found[0].records]
    if len({one.index for one in same}) > 1:
        numbers = ", ".join(f"{one.index:,}" for one in same[:MAX_CANDIDATES])
        raise ConfigError(
            f"{name!r} is the key of {len(same)} samples of {found[0].root}/{found[0].shard}; say which is meant by "
            f"its number ({numbers}): `when --index`, `preview --start`"
        )
    return found


def _complaint(several: Sequence[Records], name: str) -> str:
    where = sorted({f"{records.root} [{records.split_part}]" for records in several})
    told = f"no sample has the key {name!r} in {', '.join(where[:MAX_CANDIDATES])}"
    filled = next((records for records in several if records.num_samples), None)
    if filled is None:
        return f"{told}: there are no samples"
    first = filled.reader().read(0, ())
    return f"{told}. The first sample there is {first.shard_name}:{first.key}; keys are given in this form or alone."


def _found(records: Records, name: str) -> Iterator[tuple[int, str, str]]:
    """(index, shard, key) of the samples that `name` may stand for. A key may have slashes and colons itself."""
    for index, shard in _in_shards(records, None, name):
        yield index, shard, name
    for at, character in enumerate(name):
        if character in ":/" and at:
            shard_given, key = name[:at], name[at + 1 :]
            for index, shard in _in_shards(records, shard_given, key):
                yield index, shard, key


def _in_shards(records: Records, given: str | None, key: str) -> Iterator[tuple[int, str]]:
    """(index, shard) of the samples with exactly this key, in the shards that are called `given` (None: in all)."""
    if isinstance(records, RecordsView):
        for index, shard in _in_shards(records.records, given, key):
            number = records.number(index)
            if number is not None:
                yield number, shard
    elif isinstance(records, JoinRecords):
        for index, shard in _in_shards(records.members[0], given, key):
            row = row_of(records, index)
            if row is not None:
                yield row, shard
    elif isinstance(records, JsonlLines):
        is_number = key.isascii() and key.isdigit() and key == str(int(key[:20]))
        if is_number and int(key) < records.num_samples and (given is None or _called(records.root, given)):
            yield int(key), records.root.name
    elif isinstance(records, TableRecords):
        root = records.root
        yield from records.find(key, lambda file: given in (None, file) or _called(root / file, str(given)))
    elif isinstance(records, ShardSet):
        shards = range(len(records.names)) if given is None else _shards_called(records, given)
        if shards:
            yield from _in_tars(records, shards, key)
    else:
        yield from _one_by_one(records, given, key)


def _one_by_one(records: Records, given: str | None, key: str) -> Iterator[tuple[int, str]]:
    """In records that no index helps to search, such as samples in memory."""
    reader, numbers = records.reader(), itertools.count()
    for shard, count in zip(records.names, records.counts, strict=True):
        for at in itertools.islice(numbers, count):
            if given in (None, shard) and reader.read(at, ()).key == key:
                yield at, shard


def _in_tars(records: ShardSet, shards: Sequence[int], key: str) -> Iterator[tuple[int, str]]:
    wanted = {records.names[shard]: shard for shard in shards}
    index = KeyIndex.find(records.root)
    if index is not None:
        for number, position in index.positions(key).items():
            shard = wanted.get(index.shard_names[number])
            at = None if shard is None or position >= records.stored_counts[shard] else records.number(shard, position)
            if shard is not None and at is not None:
                yield at, records.names[shard]
        return
    reader = records.reader()
    for shard in shards:
        for at in range(records.starts[shard], records.starts[shard + 1]):
            if reader.read(at, ()).key == key:
                yield at, records.names[shard]


def _shards_called(records: ShardSet, given: str) -> Sequence[int]:
    if given in records.names:
        return [records.names.index(given)]
    return [shard for shard in range(len(records.names)) if _called(records.path(shard), given)]


def _called(path: Location, given: str) -> bool:
    """Whether `given` is the path: absolute, relative to the current folder, or its last pieces."""
    return f"/{path}".endswith(f"/{given.removeprefix('./')}") or os.path.abspath(given) == os.path.abspath(str(path))


def row_of(records: JoinRecords, first: int) -> int | None:
    """The row of a join with sample `first` of the first member; None if there is none. Rows are in the order of that
    member, except within a shard of an index that Energon made."""
    shard = bisect.bisect_right([*itertools.accumulate(records.members[0].counts)], first)
    start = sum(records.counts[:shard])
    rows = range(start, start + records.counts[shard])
    if records.index.is_energon:
        return next((row for row in rows if records.index.row(row)[0] == first), None)
    at = bisect.bisect_left(rows, first, key=lambda row: records.index.row(row)[0])
    return rows[at] if at < len(rows) and records.index.row(rows[at])[0] == first else None
