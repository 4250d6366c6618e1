"""Keys shared by several rows of tables with a column `__key__`.

Enters: the checked sources. Leaves: faults, `duplicate-key` within a file, `shared-key` between files. The column of
keys is read, front to back; digests of the keys are on disk (see `KeyLog`).
"""

from collections.abc import Iterable, Iterator

from bridge_data.errors import DatasetError
from bridge_data.plan import Source
from bridge_data.shards.records import without_views
from bridge_data.shards.table_records import TableRecords
from bridge_data.tools.lint.check_dataset import KeyLog, digests
from bridge_data.tools.lint.faults import Fault


def repeated_table_keys(sources: Iterable[Source]) -> Iterator[Fault]:
    """The keys that rows of the same data set share; each data set is checked once."""
    seen = set()
    for source in sources:
        records = without_views(source.records)
        if isinstance(records, TableRecords) and records.has_keys and records.files not in seen:
            seen.add(records.files)
            yield from _repeated(records, source.path)


def _repeated(records: TableRecords, path: str) -> Iterator[Fault]:
    reader = records.reader()
    with KeyLog(records.num_samples) as log:
        try:
            for _, first, keys in records.key_runs():
                rows = digests(0, 0, keys, range(first, first + len(keys)))
                rows["shard"] = rows["offset"]  # each row alone: keys repeated in the same file count, too
                log.add(rows)
        except DatasetError:
            return  # is reported where samples are read
        for (first, _), (number, _) in log.repeated():
            (file, row), (other, other_row) = records.file_of(number), records.file_of(first)
            name, key = records.files[file].name, reader.read(number, ()).key
            if file == other:
                yield Fault("duplicate-key", f"rows {other_row} and {row} have it", path, name, key)
            else:
                yield Fault("shared-key", f"{records.files[other].name} has it too", path, name, key)
