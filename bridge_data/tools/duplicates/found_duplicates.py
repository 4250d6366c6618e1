"""Duplicates as a report, as a table of all samples, and as a list of keys.

Enters: `SampleHashes`, and how many bits the hashes of near duplicates may differ in. Leaves: `FoundDuplicates`, whose
report counts groups, copies and samples shared by split parts or data sets. The first sample of each group is the one
to keep; the others are its copies. Guarantee: files appear whole or not at all; what is left out of one is counted.
"""

import dataclasses
import importlib
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridge_data.errors import ConfigError
from bridge_data.prepare.executors import Progress, no_progress
from bridge_data.storage.atomic import replacing, writing
from bridge_data.tools.duplicates.hash_groups import (
    MAX_DISTANCE,
    Groups,
    Links,
    grouped,
    link_equal,
    link_near,
)
from bridge_data.tools.duplicates.sample_hashes import FAULTS, SampleHashes, task_starts

MAX_SHOWN = 10
"""Samples of a group that a report names."""

ROWS_AT_ONCE = 1 << 16

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
    """The groups of samples that `hashes` make: `exact` ones, and `groups`, which are the same unless pictures were
    compared."""

    def __init__(self, hashes: SampleHashes, exact: Groups, groups: Groups, distance: int | None) -> None:
        self.hashes, self.exact, self.groups, self._distance = hashes, exact, groups, distance

    def name(self, number: int) -> str:
        """`SHARD:KEY` of a sample."""
        sample = self.hashes.sample(number)
        return f"{sample.shard_name}:{sample.key}"

    def report(self, num_largest: int) -> DuplicateReport:
        """The report, with the names of the largest groups' samples."""
        hashes, faults = self.hashes, self.hashes.faults
        return DuplicateReport(
            paths=hashes.paths,
            num_samples=int(np.count_nonzero(hashes.high)),
            num_bytes=round(float(hashes.num_bytes.sum(dtype=np.float64))),
            exact=self._counts(self.exact),
            near=None if self._distance is None else self._counts(self.groups),
            distance=self._distance,
            common=list(self._common()),
            shared=dict(hashes.shared),
            largest=list(self._largest(num_largest)),
            faults={kind: faults.counts[kind] for kind in FAULTS if faults.counts[kind]},
            examples=dict(faults.examples),
        )

    def _counts(self, groups: Groups) -> DuplicateCounts:
        copies = groups.copies
        num_bytes = self.hashes.num_bytes[copies].sum(dtype=np.float64)
        return DuplicateCounts(groups.num_groups, len(copies), round(float(num_bytes)))

    def _sources(self) -> tuple[list[str], NDArray[np.int64]]:
        """The split parts of data sets, and for each member of a group the number of its split part."""
        tasks = self.hashes.tasks
        several = len(self.hashes.paths) > 1
        names = [f"{task.path} {task.split_part}" if several else task.split_part for task in tasks]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        of_task = np.array([numbers[name] for name in names])
        return list(numbers), of_task[np.searchsorted(task_starts(tasks), self.groups.members, "right") - 1]

    def _common(self) -> Iterator[CommonGroups]:
        names, source = self._sources()
        firsts, members = self.groups.firsts, self.groups.members
        of_source = [np.unique(firsts[source == number]) for number in range(len(names))]
        for one, other in itertools.combinations(range(len(names)), 2):
            both = np.intersect1d(of_source[one], of_source[other], assume_unique=True)
            if len(both):
                is_copy = (source == other) & (members != firsts) & np.isin(firsts, both)
                yield CommonGroups(names[one], names[other], len(both), int(np.count_nonzero(is_copy)))

    def _largest(self, most: int) -> Iterator[tuple[int, list[str]]]:
        names, source = self._sources()
        heads, sizes = np.unique(self.groups.firsts, return_counts=True)
        for at in np.argsort(-sizes, kind="stable")[:most]:
            rows = np.flatnonzero(self.groups.firsts == heads[at])
            shown = rows[:MAX_SHOWN]
            yield int(sizes[at]), [f"{names[source[row]]} {self.name(int(self.groups.members[row]))}" for row in shown]

    def write_keys(self, file: Path) -> dict[Path, tuple[int, int]]:
        """Write `SHARD:KEY` of all copies to `file`, one a line; for several data sets to one file each, in order:
        `file-1.txt`, `file-2.txt`. Return by file how many were written, and how many were left out because their
        names have line breaks.

        Raises:
            DatasetError: if a file cannot be written.
        """
        paths = self.hashes.paths
        several = len(paths) > 1
        files = {
            path: file.with_name(f"{file.stem}-{number}{file.suffix}") if several else file
            for number, path in enumerate(paths, 1)
        }
        return {target: self._write_keys_of(path, target) for path, target in files.items()}

    def _write_keys_of(self, path: str, file: Path) -> tuple[int, int]:
        hashes, groups = self.hashes, self.groups
        num_written = num_left_out = 0
        with writing(file.parent), replacing(file) as temporary, temporary.open("w", **_TEXT) as lines:
            for number, first in _pairs(groups):
                if number == first or hashes.tasks[hashes.task_of(number)].path != path:
                    continue
                name = self.name(number)
                if len(name.splitlines()) > 1:
                    num_left_out += 1
                else:
                    lines.write(f"{name}\n")
                    num_written += 1
        return num_written, num_left_out

    def write_table(self, file: Path) -> None:
        """Write a row for each sample that was read to `file`, which `check_table` has accepted.

        Raises:
            DatasetError: if it cannot be written.
        """
        write = {".parquet": _write_parquet, ".jsonl": _write_lines, ".csv": _write_csv}[file.suffix]
        with writing(file.parent), replacing(file) as temporary:
            write(temporary, self._rows())

    def _rows(self) -> Iterator[list[Row]]:
        hashes, members = self.hashes, self.groups.members
        group_of, copy_of = self.groups.numbered()
        for task, (start, end) in zip(hashes.tasks, itertools.pairwise(task_starts(hashes.tasks)), strict=True):
            for begin in range(start, end, ROWS_AT_ONCE):
                stop = min(begin + ROWS_AT_ONCE, end)
                own = slice(*np.searchsorted(members, (begin, stop)).tolist())
                places = zip(group_of[own].tolist(), copy_of[own].tolist(), strict=True)
                in_group = dict(zip(members[own].tolist(), places, strict=True))
                rows: list[Row] = []
                for number in filter(hashes.is_known, range(begin, stop)):
                    sample = hashes.sample(number)
                    picture = int(hashes.pictures[number]) if len(hashes.pictures) else 0
                    rows.append(
                        (
                            *(task.path, task.split_part, sample.shard_name, sample.key),
                            round(float(hashes.num_bytes[number])),
                            hashes.digest(number),
                            f"{picture:016x}" if picture else None,
                            *in_group.get(number, (None, 0)),
                        )
                    )
                yield rows


def find_duplicates(
    hashes: SampleHashes, distance: int | None = None, *, on_progress: Progress = no_progress
) -> FoundDuplicates:
    """The groups of samples with the same digest; with `distance`, also of those whose pictures' hashes differ in at
    most this many bits. Groups with a sample in common are merged.

    Raises:
        ConfigError: if `distance` is out of range, or pictures were not hashed.
    """
    links = Links()
    link_equal(links, hashes.high, hashes.low)
    exact = grouped(links)
    if distance is None:
        return FoundDuplicates(hashes, exact, exact, None)
    if not 0 <= distance <= MAX_DISTANCE:
        raise ConfigError(f"distance={distance}: expected 0 to {MAX_DISTANCE}, the bits of 64 that may differ")
    if not hashes.config.pictures:
        raise ConfigError("distance: pictures were not hashed; give HashConfig(pictures=True)")
    link_near(links, hashes.pictures, distance, on_progress)
    return FoundDuplicates(hashes, exact, grouped(links), distance)


def _pairs(groups: Groups) -> Iterator[tuple[int, int]]:
    """(member, first of its group) of all groups, ascending."""
    for begin in range(0, len(groups.members), ROWS_AT_ONCE):
        own = slice(begin, begin + ROWS_AT_ONCE)
        yield from zip(groups.members[own].tolist(), groups.firsts[own].tolist(), strict=True)


def check_table(file: Path) -> None:
    """Check that a table can be written to `file`, before hours are spent on it.

    Raises:
        ConfigError: for another file name, a missing folder, or Parquet without pyarrow.
    """
    if file.suffix not in (".parquet", ".jsonl", ".csv"):
        raise ConfigError(f"{file}: expected a file named .parquet, .jsonl or .csv")
    check_folder(file)
    if file.suffix == ".parquet":
        try:
            importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            way_out = 'pip install "bridge-data[parquet]", or write .jsonl or .csv'
            raise ConfigError(f"{file}: Parquet needs pyarrow: {way_out}") from error


def check_folder(file: Path) -> None:
    """Check that the folder of `file` exists.

    Raises:
        ConfigError: if it does not.
    """
    if not file.parent.is_dir():
        raise ConfigError(f"{file}: there is no folder {file.parent}")


_TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
"""Names of members need not be UTF-8: their bytes are written unchanged."""


def _write_lines(file: Path, batches: Iterator[Sequence[Row]]) -> None:
    with file.open("w", **_TEXT) as lines:
        for rows in batches:
            lines.writelines(
                json.dumps(dict(zip(COLUMNS, row, strict=True)), ensure_ascii=False) + "\n" for row in rows
            )


def _write_csv(file: Path, batches: Iterator[Sequence[Row]]) -> None:
    import csv  # imported here: only this needs it

    with file.open("w", **_TEXT) as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(COLUMNS)
        for rows in batches:
            writer.writerows(rows)


def _write_parquet(file: Path, batches: Iterator[Sequence[Row]]) -> None:
    pyarrow = importlib.import_module("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in COLUMNS.items()])
    with parquet.ParquetWriter(file, schema) as writer:
        for rows in batches:
            columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows else {}
            for name in ("shard", "key") if rows else ():
                columns[name] = tuple(text.encode(errors="backslashreplace").decode() for text in columns[name])
            if rows:
                writer.write_table(pyarrow.table(columns, schema))
