"""Keys shared by several rows of tables with a column `__key__`.

Enters: the checked sources. Leaves: faults, `duplicate-key` within a file, `shared-key` between files. The column of
keys is read, front to back; digests of the keys are on disk (see `KeyLog`).
"""

import bisect
import itertools
from collections.abc import Iterable, Iterator

from bridge_data.errors import DatasetError
from bridge_data.plan import Source
from bridge_data.shards import Records
from bridge_data.shards.prepared import tars_of
from bridge_data.shards.records import stored_records
from bridge_data.tools.lint.check_dataset import KeyLog, digests
from bridge_data.tools.lint.faults import Fault

KEYS_AT_ONCE = 1 << 14


def repeated_table_keys(sources: Iterable[Source]) -> Iterator[Fault]:
    """The keys that rows of the same data set share; each data set is checked once."""
    seen = set()
    for source in sources:
        records = stored_records(source.records)
        if records.repeated_keys_fix and tars_of(records) is None:
            data = f"{records.root} {records.identity()}"
            if data not in seen:
                seen.add(data)
                yield from _repeated(records, source.path)


def _repeated(records: Records, path: str) -> Iterator[Fault]:
    reader, ends = records.reader(), [*itertools.accumulate(records.counts)]
    with KeyLog(records.num_samples) as log:
        try:
            numbered = enumerate(records.keys(range(records.num_samples)))
            while run := list(itertools.islice(numbered, KEYS_AT_ONCE)):
                numbers, keys = zip(*run, strict=True)
                found = digests(0, 0, keys, numbers)
                found["shard"] = found["offset"]  # each row alone: keys repeated in the same file count, too
                log.add(found)
        except DatasetError:
            return  # is reported where samples are read
        for (first, _), (number, _) in log.repeated():
            one, other = reader.read(number, ()), records.names[bisect.bisect_right(ends, first)]
            if one.shard_name == other:
                rows = [records.describe(at).removeprefix(f"{other}/") for at in (first, number)]
                yield Fault("duplicate-key", f"rows {rows[0]} and {rows[1]} have it", path, other, one.key)
            else:
                yield Fault("shared-key", f"{other} has it too", path, one.shard_name, one.key)
