"""Preparing a metadataset: making the indexes of its joins, which say what samples of several data sets share a key.

Reads a metadataset, and the keys of the members of each join in it and in the metadatasets it refers to; the samples of
the first member are those of the join. Writes a `JoinIndex` of each next to the file that has the join, atomically. No
class is imported and no sample is read.

Samples are matched by 128-bit hashes of their keys, which are sorted and stored first, and then matched in partitions
of the hashes: memory is bounded by a few partitions, for any number of samples, and both are done in parallel.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple

from bridge_data.data import Records
from bridge_data.data.paged_file import begin_index, finish_index
from bridge_data.data.prepared import tars_of
from bridge_data.data.records import count_samples, counts_of, names_of, place_of, shard_at, split_part_of
from bridge_data.data.sample_keys import fix_repeated_keys, join_problem, keys_of
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.later import numpy as np
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.plan.declared import (
    Declared,
    DeclaredBlend,
    LoadCache,
    Reference,
    Scope,
    declare,
    read_splits,
)
from bridge_data.plan.formats import format_of
from bridge_data.plugins.joins.declared_join import DeclaredJoin
from bridge_data.plugins.joins.joins import (
    FILE_SUFFIX,
    MAGIC,
    PAGE_ROWS,
    JoinIndex,
    JoinMember,
    entry_of,
    join_folder,
    join_path,
)
from bridge_data.prepare.commit import preparing_alone, scratch_folder
from bridge_data.prepare.executors import LocalProcesses, Progress, no_progress, usual_workers
from bridge_data.storage import absolute, location, on_disk
from bridge_data.storage.atomic import replacing, writing

if TYPE_CHECKING:
    from numpy.typing import NDArray

TASK_SAMPLES = 1 << 20
"""Samples per hashing task."""

PARTITION_SAMPLES = 1 << 21
"""Samples, of all members together, per matching task."""

_SHOWN = 5


def prepare_metadataset(
    path: str | os.PathLike[str],
    *,
    num_workers: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    on_progress: Progress = no_progress,
) -> list[JoinIndex]:
    """Make the indexes of all joins of the metadataset at `path`, by `num_workers` processes (None: one a core, at most
    16). Indexes that are up to date stay; those of this file that no join uses any more are removed.
    `limits` apply to the metadatasets and to the metadata of their data sets. `on_progress` is called with the steps
    done and all steps of each join in turn.

    Raises:
        ConfigError: naming file and line, if a join is malformed or its data sets are not prepared.
        DatasetError: if a key occurs twice in a data set, or has no match where it must have one.
    """
    file = absolute(path)
    cache = LoadCache(limits)
    is_yaml = os.path.isfile(file) and file.endswith((".yaml", ".yml"))
    document = cache.document(file) if is_yaml else None
    if document is None:
        raise ConfigError(
            f"{file}: expected a metadataset .yaml{'' if os.path.exists(file) else ', found no such file'}"
        )
    num_workers = usual_workers() if num_workers is None else num_workers
    made: dict[Path, JoinIndex] = {}
    for part in read_splits(document)[1]:
        for join in _joins(declare(Reference(path=file, scope=Scope(split_part=part, cache=cache)))):
            members = list(map(JoinMember, map(_records, join.members), join.join.nonmatches))
            index = make_join(_folder(join.file), members, num_workers=num_workers, on_progress=on_progress)
            made[index.path] = index
    for stale in _folder(file).glob(f"*{FILE_SUFFIX}"):
        if stale not in made:
            stale.unlink(missing_ok=True)
    return list(made.values())


def _folder(file: str) -> Path:
    return join_folder(on_disk(location(file)))


def _joins(declared: Declared) -> Iterator[DeclaredJoin]:
    if isinstance(declared, DeclaredJoin):
        yield declared
    elif isinstance(declared, DeclaredBlend):
        for child in declared.children:
            yield from _joins(child)


def _records(member: Reference) -> Records:
    """The samples of a member, of which only the keys are needed."""
    with member.placed():
        records = format_of(member.path).with_keys(member)
    if (problem := join_problem(records)) is not None:
        raise member.error(problem)
    return records


def make_join(
    folder: Path, members: Sequence[JoinMember], *, num_workers: int = 1, on_progress: Progress = no_progress
) -> JoinIndex:
    """The index of the join of `members` in `folder`, made by `num_workers` processes unless it exists. If another
    process is making it, wait for that one. `on_progress` is called with steps done and steps in all.

    Raises:
        ConfigError: if a member has no keys to join by.
        DatasetError: if a key occurs twice in a member, a member whose nonmatch is `error` lacks one, or the keys of a
            member cannot be read.
    """
    path = join_path(folder, members)
    index = JoinIndex.open(path)
    if index is not None:
        return index
    for problem in (join_problem(member.records) for member in members):
        if problem is not None:
            raise ConfigError(problem)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with preparing_alone(folder, patience_s=math.inf) as remove_temporary:
            remove_temporary([folder])
            if JoinIndex.open(path) is None:  # else another process made it meanwhile
                with scratch_folder(folder, "joining") as scratch:
                    job = _Job([member.records for member in members], scratch)
                    _write(path, members, _match(job, num_workers, on_progress))
    index = JoinIndex.open(path)
    assert index is not None
    return index


class _Job(NamedTuple):
    """What processes match: the members, with a folder for what they leave."""

    members: Sequence[Records]
    scratch: Path


class _Task(NamedTuple):
    """Samples of a member whose keys are hashed together; their hashes are stored in the file of this name."""

    member: int
    samples: range

    @property
    def name(self) -> str:
        return f"{self.member}-{self.samples.start}"


class _Twice(NamedTuple):
    """Samples of a member with the same key as the one before: an example, and their count."""

    member: int
    first: int
    second: int
    num_samples: int


def _matches(job: _Job, mode: Literal["r", "r+", "w+"]) -> NDArray[np.int64]:
    """For each sample of the first member, 1 + the number of the sample of each other, 0 for none. A row and a column
    may be there that are not used: an empty file cannot be mapped."""
    shape = count_samples(job.members[0]) + 1, max(1, len(job.members) - 1)
    return np.memmap(job.scratch / "matches", np.int64, mode, shape=shape)


def _match(job: _Job, num_workers: int, on_progress: Progress) -> NDArray[np.int64]:
    """Hash and match the keys of all members. Returns the numbers of samples that have the same key; see `_matches`."""
    tasks = [
        _Task(at, range(first, min(first + TASK_SAMPLES, count_samples(member))))
        for at, member in enumerate(job.members)
        for first in range(0, max(count_samples(member), 1), TASK_SAMPLES)
    ]
    num_partitions = max(1, math.ceil(sum(count_samples(member) for member in job.members) / PARTITION_SAMPLES))
    total = len(tasks) + num_partitions
    _matches(job, "w+")
    executor = LocalProcesses(num_workers)
    for done, _ in enumerate(executor.map(functools.partial(_hash_keys, job), tasks, what="read keys"), 1):
        on_progress(done, total)
    ends = [2**64 * number // num_partitions for number in range(num_partitions + 1)]
    match = functools.partial(_match_partition, job, tasks)
    matching = executor.map(match, itertools.pairwise(ends), what="matched keys")
    twice: list[_Twice] = []
    for done, duplicates in enumerate(matching, len(tasks) + 1):
        twice += duplicates
        on_progress(done, total)
    if twice:
        raise _duplicate_keys(job.members, twice)
    return _matches(job, "r")


def _hash_keys(job: _Job, task: _Task) -> None:
    """Store the hashes of a task's keys, as two halves, and the numbers of their samples, by hash."""
    encoded = (key.encode("utf-8", "surrogateescape") for key in keys_of(job.members[task.member], task.samples))
    digests = b"".join(hashlib.blake2b(key, digest_size=16).digest() for key in encoded)
    high, low = np.frombuffer(digests, np.uint64).reshape(-1, 2).T
    number = np.arange(task.samples.start, task.samples.stop, dtype=np.uint64)
    order = np.argsort(high)
    np.array([high[order], low[order], number[order]]).tofile(job.scratch / task.name)


def _match_partition(job: _Job, tasks: Sequence[_Task], ends: tuple[int, int]) -> list[_Twice]:
    """Match the samples whose hashes begin with a number from `ends[0]` to below `ends[1]`; return duplicate keys."""
    pieces, owners = [np.empty((3, 0), np.uint64)], [np.empty(0, np.uint16)]
    for task in tasks:
        if not task.samples:
            continue  # an empty file cannot be mapped
        stored = np.memmap(job.scratch / task.name, np.uint64, "r", shape=(3, len(task.samples)))
        start = np.searchsorted(stored[0], np.uint64(ends[0]))
        stop = np.searchsorted(stored[0], np.uint64(ends[1] - 1), "right")
        pieces.append(stored[:, start:stop])
        owners.append(np.full(stop - start, task.member, np.uint16))
    hashed, member = np.concatenate(pieces, axis=1), np.concatenate(owners)
    pieces.clear()  # they are mapped
    order = np.lexsort((hashed[2], member, hashed[1], hashed[0]))
    hashed, member = hashed[:, order], member[order]
    high, low, number = hashed[0], hashed[1], hashed[2].astype(np.int64)
    same = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    is_first = np.ones(len(high), bool)
    is_first[1:] = ~same
    first = np.flatnonzero(is_first)[np.cumsum(is_first) - 1]  # the first sample with this key
    joined = np.flatnonzero((member > 0) & (member[first] == 0))
    _matches(job, "r+")[number[first[joined]], member[joined] - 1] = number[joined] + 1
    twice = np.flatnonzero(same & (member[1:] == member[:-1]))
    members, firsts, counts = np.unique(member[twice], return_index=True, return_counts=True)
    columns = members, number[twice[firsts]], number[twice[firsts] + 1], counts
    return list(map(_Twice, *(column.tolist() for column in columns)))


def _duplicate_keys(members: Sequence[Records], twice: Sequence[_Twice]) -> DatasetError:
    found = min(twice)
    records = members[found.member]
    others = sum(other.num_samples for other in twice if other.member == found.member) - 1
    return DatasetError(
        f"{records.root} [{split_part_of(records)}]: duplicate key: {_told(records, found.first)} and "
        f"{_told(records, found.second)}"
        + (f", and {others:,} more" if others else "")
        + f": a join needs keys that are unique in each of its data sets. {fix_repeated_keys(records)}"
    )


def _write(path: Path, members: Sequence[JoinMember], matches: NDArray[np.int64]) -> None:
    """Write the rows of the join to the file at `path`."""
    missing = np.zeros(len(members), np.int64)
    lacking: list[list[int]] = [[] for _ in members]
    skipping = [number for number, member in enumerate(members) if number and member.nonmatch == "skip"]
    counts: list[int] = []
    with replacing(path) as temporary, open(temporary, "wb") as file:
        begin_index(file)
        pages = PageWriter(file, PAGE_ROWS * 8 * len(members))
        ends = itertools.accumulate(counts_of(members[0].records), initial=0)
        for shard_start, shard_end in itertools.pairwise(ends):
            counts.append(0)
            for start in range(shard_start, shard_end, TASK_SAMPLES):
                own = np.arange(start, min(start + TASK_SAMPLES, shard_end))
                numbers = np.column_stack((own, matches[own[0] : own[-1] + 1, : len(members) - 1] - 1))
                none = numbers < 0
                missing += none.sum(axis=0)
                for absent, column in zip(lacking, none.T, strict=True):
                    if len(absent) < _SHOWN:
                        absent += (start + np.flatnonzero(column)[:_SHOWN]).tolist()
                rows = np.ascontiguousarray(numbers[~none[:, skipping].any(axis=1)])
                pages.write(rows.data)
                counts[-1] += len(rows)
        for member, absent, count in zip(members, lacking, missing.tolist(), strict=True):
            if absent and member.nonmatch == "error":
                raise _no_match(members[0].records, member.records, absent[:_SHOWN], count)
        entries = [
            entry_of(path.parent, member, count) for member, count in zip(members, missing.tolist(), strict=True)
        ]
        table = {
            "members": [dataclasses.astuple(entry) for entry in entries],
            "counts": counts,
            "checksums": pages.finish(),
        }
        finish_index(file, MAGIC, table)


def _no_match(primary: Records, member: Records, absent: Sequence[int], count: int) -> DatasetError:
    own, first = (f"{records.root} [{split_part_of(records)}]" for records in (member, primary))
    shown = ", ".join(_told(primary, number) for number in absent) + (", ..." if count > len(absent) else "")
    return DatasetError(
        f"{own}: has no sample for {count:,} of the {count_samples(primary):,} samples of {first}: {shown}; say "
        "`nonmatch: skip` in this member of the join to leave such samples out, or `nonmatch: none` to have None "
        "instead"
    )


def _told(records: Records, index: int) -> str:
    """The shard and key of a sample, and its row in the file if that is not its key."""
    (key,) = keys_of(records, range(index, index + 1))
    shard, place = names_of(records)[shard_at(records, index)], place_of(records, index)
    is_found = tars_of(records) is not None or place == f"{shard}/{key}"
    return f"{shard}/{key}" + ("" if is_found else f" (row {place.removeprefix(f'{shard}/')})")


class PageWriter:
    """Appends data to an index file in pages of `page_bytes`, and keeps their checksums."""

    def __init__(self, file: BinaryIO, page_bytes: int) -> None:
        self._file, self._page_bytes = file, page_bytes
        self._checksum = self._filled = 0
        self._checksums: list[int] = []

    def write(self, data: memoryview) -> None:
        """Append bytes."""
        self._file.write(data)
        rest = data.cast("B") if data.nbytes else memoryview(b"")
        while rest:
            piece = rest[: self._page_bytes - self._filled]
            rest = rest[len(piece) :]
            self._checksum = zlib.crc32(piece, self._checksum)
            self._filled += len(piece)
            if self._filled == self._page_bytes:
                self._end_page()

    def finish(self) -> list[int]:
        """The CRC-32 of each page; the last one may be shorter."""
        if self._filled:
            self._end_page()
        return self._checksums

    def _end_page(self) -> None:
        self._checksums.append(self._checksum)
        self._checksum = self._filled = 0
