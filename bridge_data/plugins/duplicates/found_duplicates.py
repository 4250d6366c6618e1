"""Duplicates as a report, as a table of all samples, and as a list of keys.

Reads the paths of data. Returns a `DuplicateReport`, which counts groups, copies and samples shared by split parts or
data sets; writes files. The first sample of each group is the one to keep; the others are its copies. Files appear
whole or not at all; what is left out of one is counted. Samples are grouped on disk, in bounded memory.
"""

import contextlib
import dataclasses
import importlib
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.extensions import Feature
from bridge_data.plugins.duplicates.hash_groups import NUM_BITS, ROWS_AT_ONCE, Numbers, close_pairs, connected, pairs_of
from bridge_data.plugins.duplicates.sample_rows import FAULTS, DuplicateConfig, SampleRows, read_rows
from bridge_data.prepare.executors import Progress, no_progress
from bridge_data.prepare.sample_columns import arrow_package, arrow_texts
from bridge_data.storage.atomic import replacing, writing

MAX_SHOWN = 10
"""Samples of a group that a report names."""

MAX_THREADS = 4
"""Threads that compare, with 1 GiB of memory each."""

COLUMNS = {
    "dataset": "string",
    "split_part": "string",
    "shard": "string",
    "key": "string",
    "bytes": "int64",
    "digest": "string",
    "picture_hash": "string",
    "group": "int64",
    "copy": "int64",
}
"""The columns of a table of samples, with their types in Parquet."""

Row = tuple[str, str, str, str, int, str, str | None, int | None, int]

_EQUAL = """
CREATE TABLE heads AS SELECT digest, min(number) AS head FROM samples GROUP BY digest HAVING count(*) > 1;
CREATE VIEW placed AS
    SELECT samples.*, head, coalesce(head, number) AS equal FROM samples LEFT JOIN heads USING (digest)
"""
"""`heads` are the first samples of those with the same digest; `equal` is that of a sample, or the sample itself."""

_PICTURES = """
CREATE TABLE pictures AS SELECT picture, min(number) AS number FROM samples WHERE picture IS NOT NULL GROUP BY picture
"""

_SAME_PICTURE = """
SELECT pictures.number, equal FROM placed JOIN pictures USING (picture) WHERE pictures.number <> equal
"""

_MEMBERS = """
CREATE TABLE members AS SELECT
    *,
    row_number() OVER (PARTITION BY first ORDER BY number) - 1 AS copy,
    dense_rank() OVER (ORDER BY first) - 1 AS group_number
FROM (
    SELECT placed.*, coalesce(first, equal) AS first FROM placed LEFT JOIN firsts ON firsts.number = equal
    WHERE head IS NOT NULL OR first IS NOT NULL
)
"""
"""All samples of groups; `first` is the first of the group, `firsts` those of groups of near ones."""

_COUNTS = """
SELECT count(DISTINCT {0}), count(*), coalesce(sum(bytes), 0) FROM members WHERE number <> {0}
"""

_COMMON = """
WITH parts AS (SELECT first, source, count(*) AS size FROM members GROUP BY ALL)
SELECT one.source, other.source, count(*), sum(other.size)
FROM parts AS one JOIN parts AS other ON one.first = other.first AND one.source < other.source
GROUP BY ALL ORDER BY ALL
"""

_LARGEST = """
SELECT first, size, source, shard, key
FROM members JOIN (
    SELECT first, count(*) AS size FROM members GROUP BY first ORDER BY size DESC, first LIMIT ?
) USING (first)
WHERE copy < ? ORDER BY size DESC, first, number
"""

_COPIES = "SELECT shard, key FROM members WHERE copy > 0 AND list_contains(?, source) ORDER BY number"

_ALL = """
SELECT source, shard, key, bytes, digest, picture, group_number, coalesce(copy, 0)
FROM samples LEFT JOIN (SELECT number, group_number, copy FROM members) USING (number) ORDER BY number
"""


@dataclasses.dataclass(frozen=True, slots=True)
class DuplicateCounts:
    """Groups, their copies (all samples but the first of each group), and the bytes of the copies."""

    num_groups: int
    num_copies: int
    copied_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class CommonGroups:
    """The groups with samples in two split parts, of the same or different data sets; `num_copies` is the number of
    copies in the second."""

    first: str
    second: str
    num_groups: int
    num_copies: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DuplicateReport:
    """All results; `near` has the exact groups, too, merged with samples that look alike."""

    paths: list[str]
    num_samples: int
    num_bytes: int
    exact: DuplicateCounts
    near: DuplicateCounts | None
    distance: int | None
    common: list[CommonGroups]
    shared: dict[str, int]
    largest: list[tuple[int, list[str]]]
    faults: dict[str, int]
    examples: dict[str, list[str]]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON."""
        return {"version": 1, **dataclasses.asdict(self)}


class FoundDuplicates:
    """The samples that were read from `paths`, and their groups: those with the same digest; with `config.distance`,
    also those whose pictures' hashes differ in at most this many bits. Groups with a sample in common are merged."""

    def __init__(self, engine: Any, rows: SampleRows, paths: Sequence[Path], config: DuplicateConfig) -> None:
        self._engine, self._rows, self._config = engine, rows, config
        self._paths = list(map(str, paths))
        several = len(paths) > 1
        self._names = [f"{part.path} {part.name}" if several else part.name for part in rows.parts]

    def group(self, on_progress: Progress = no_progress) -> None:
        """Find the groups."""
        engine, distance = self._engine, self._config.distance
        engine.register("samples", self._rows.table)
        engine.execute(_EQUAL)
        numbers, firsts = connected(()) if distance is None else self._near(distance, on_progress)
        engine.register("firsts", arrow_package().table({"number": numbers, "first": firsts}))
        engine.execute(_MEMBERS)

    def report(self, num_largest: int) -> DuplicateReport:
        """The report, with the names of the largest groups' samples."""
        faults, names = self._rows.faults, self._names
        num_samples, num_bytes = self._all("SELECT count(*), coalesce(sum(bytes), 0) FROM samples")[0]
        return DuplicateReport(
            paths=self._paths,
            num_samples=num_samples,
            num_bytes=num_bytes,
            exact=self._counts("equal"),
            near=None if self._config.distance is None else self._counts("first"),
            distance=self._config.distance,
            common=[CommonGroups(names[one], names[other], *counts) for one, other, *counts in self._all(_COMMON)],
            shared=dict(self._rows.shared),
            largest=self._largest(num_largest),
            faults={kind: faults.counts[kind] for kind in FAULTS if faults.counts[kind]},
            examples=dict(faults.examples),
        )

    def write_keys(self, file: Path) -> dict[Path, tuple[int, int]]:
        """Write `SHARD:KEY` of all copies to `file`, one a line; for several data sets to one file each, in order:
        `file-1.txt`, `file-2.txt`. Return by file how many were written, and how many were left out because their
        names have line breaks.

        Raises:
            DatasetError: if a file cannot be written.
        """
        written = {}
        for number, path in enumerate(self._paths, 1):
            target = file.with_name(f"{file.stem}-{number}{file.suffix}") if len(self._paths) > 1 else file
            sources = [source for source, part in enumerate(self._rows.parts) if part.path == path]
            num_written = num_left_out = 0
            with writing(target.parent), replacing(target) as temporary, temporary.open("w", **_TEXT) as lines:
                for shard, key in itertools.chain.from_iterable(self._batches(_COPIES, sources)):
                    name = f"{_text(shard)}:{_text(key)}"
                    if len(name.splitlines()) > 1:
                        num_left_out += 1
                    else:
                        lines.write(f"{name}\n")
                        num_written += 1
            written[target] = num_written, num_left_out
        return written

    def write_table(self, file: Path) -> None:
        """Write a row for each sample that was read to `file`, which `check_table` has accepted.

        Raises:
            DatasetError: if it cannot be written.
        """
        write = {".parquet": _write_parquet, ".jsonl": _write_lines, ".csv": _write_csv}[file.suffix]
        with writing(file.parent), replacing(file) as temporary:
            write(temporary, ([self._row(*row) for row in rows] for rows in self._batches(_ALL)))

    def _near(self, distance: int, on_progress: Progress) -> tuple[Numbers, Numbers]:
        self._engine.execute(_PICTURES)
        close = close_pairs(self._engine, distance, on_progress)
        return connected(itertools.chain(pairs_of(self._engine, _SAME_PICTURE), close))

    def _counts(self, first: str) -> DuplicateCounts:
        return DuplicateCounts(*self._all(_COUNTS.format(first))[0])

    def _largest(self, num_largest: int) -> list[tuple[int, list[str]]]:
        found: dict[int, tuple[int, list[str]]] = {}
        for first, size, source, shard, key in self._all(_LARGEST, num_largest, MAX_SHOWN):
            found.setdefault(first, (size, []))[1].append(f"{self._names[source]} {_text(shard)}:{_text(key)}")
        return list(found.values())

    def _row(
        self, source: int, shard: bytes, key: bytes, num_bytes: int, digest: bytes, picture: int | None, *group: Any
    ) -> Row:
        shown = None if picture is None else f"{picture % (1 << NUM_BITS):016x}"
        return (*self._rows.parts[source], _text(shard), _text(key), num_bytes, digest.hex(), shown, *group)

    def _all(self, query: str, *values: Any) -> list[Any]:
        return list(itertools.chain.from_iterable(self._batches(query, *values)))

    def _batches(self, query: str, *values: Any) -> Iterator[list[Any]]:
        """The rows of a query, some at once."""
        result = self._engine.execute(query, values)
        return iter(lambda: result.fetchmany(ROWS_AT_ONCE), [])


_SQL_ENGINE = Feature[Callable[..., contextlib.AbstractContextManager[Any]]]("sql_engine")
"""A connection to an engine that evaluates queries; it may put files into a folder, and use so many threads."""


@contextlib.contextmanager
def find_duplicates(
    paths: Sequence[Path],
    config: DuplicateConfig | None = None,
    *,
    on_read: Progress = no_progress,
    on_compare: Progress = no_progress,
) -> Iterator[FoundDuplicates]:
    """The duplicates among the samples of the data at `paths`, for a `with` block. Temporary files are in `$TMPDIR`.

    Raises:
        ConfigError: if there is nothing to read, a split part is unknown to all, or a package is missing.
        DatasetError: if metadata are damaged, or the temporary files cannot be written.
        WorkerError: if a process died.
    """
    config = config or DuplicateConfig()
    open_engine = _SQL_ENGINE.get(needed_by="finding duplicates")
    with tempfile.TemporaryDirectory(prefix="duplicates-") as name:
        folder = Path(name)
        with open_engine(folder):  # a missing package is an error now; the processes that read fork without its threads
            pass
        rows = read_rows(paths, config, folder, on_progress=on_read)
        with open_engine(folder, min(config.num_workers, MAX_THREADS)) as engine, _reporting(folder):
            found = FoundDuplicates(engine, rows, paths, config)
            found.group(on_compare)
            yield found


@contextlib.contextmanager
def _reporting(folder: Path) -> Iterator[None]:
    """Turn errors of the engine into a `DatasetError`."""
    try:
        yield
    except importlib.import_module("duckdb").Error as error:
        fix = "set TMPDIR to a folder with more space"
        raise DatasetError(f"{folder}: samples cannot be compared: {error}; {fix}") from error


def check_table(file: Path) -> None:
    """Check that a table can be written to `file`, before hours are spent on it.

    Raises:
        ConfigError: for another file name, or a missing folder.
    """
    if file.suffix not in (".parquet", ".jsonl", ".csv"):
        raise ConfigError(f"{file}: expected a file named .parquet, .jsonl or .csv")
    check_folder(file)


def check_folder(file: Path) -> None:
    """Check that the folder of `file` exists.

    Raises:
        ConfigError: if it does not.
    """
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}")


_TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
"""Names of members need not be UTF-8: their bytes are written unchanged."""


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _write_lines(file: Path, batches: Iterator[Sequence[Row]]) -> None:
    with file.open("w", **_TEXT) as lines:
        for row in itertools.chain.from_iterable(batches):
            lines.write(json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False) + "\n")


def _write_csv(file: Path, batches: Iterator[Sequence[Row]]) -> None:
    import csv  # imported here: only this needs it

    with file.open("w", **_TEXT) as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(itertools.chain.from_iterable(batches))


def _write_parquet(file: Path, batches: Iterator[Sequence[Row]]) -> None:
    arrow = arrow_package()
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in COLUMNS.items()])
    with importlib.import_module("pyarrow.parquet").ParquetWriter(file, schema) as writer:
        for rows in batches:
            *names, num_bytes, digests, pictures, groups, copies = zip(*rows, strict=True)
            columns = [*map(arrow_texts, names), num_bytes, digests, pictures, groups, copies]
            writer.write_table(arrow.table(columns, schema=schema))
