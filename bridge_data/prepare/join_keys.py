"""Making the index of a join: which samples of several data sets have the same key.

Enters: the members; the samples of the first are those of the join. Leaves: a `JoinIndex` on disk, written atomically.
Samples are matched by 128-bit hashes of their keys, which are sorted into partitions on disk first: memory is bounded
by a few partitions, for any number of samples, and partitions are matched in parallel.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.later import numpy as np
from bridge_data.prepare.commit import preparing_alone, scratch_folder
from bridge_data.prepare.executors import Progress, in_parallel, no_progress
from bridge_data.shards import Records
from bridge_data.shards.joins import MAGIC, PAGE_ROWS, JoinIndex, JoinMember, entry_of, join_path
from bridge_data.shards.paged_file import PageWriter, begin_index, finish_index
from bridge_data.shards.records import shard_at
from bridge_data.storage.atomic import replacing, writing

if TYPE_CHECKING:
    from numpy.typing import NDArray

TASK_SAMPLES = 1 << 20
"""Samples per hashing task."""

PARTITION_SAMPLES = 1 << 21
"""Samples, of all members together, per matching task."""

_SHOWN = 5

_HASHED = [("high", "u8"), ("low", "u8"), ("number", "i8")]
"""A sample: the hash of its key, and its number in its member."""


def make_join(
    folder: Path, members: Sequence[JoinMember], *, num_workers: int = 1, on_progress: Progress = no_progress
) -> JoinIndex:
    """The index of the join of `members` in `folder`, made by `num_workers` processes unless it exists. If another
    process is making it, wait for that one. `on_progress` is called with steps done and steps in all.

    Raises:
        ConfigError: if a member has no keys to join by. DatasetError: if a key occurs twice in a member, a member whose
            nonmatch is `error` lacks one, or the keys of a member cannot be read.
    """
    path = join_path(folder, members)
    index = JoinIndex.open(path)
    if index is not None:
        return index
    for problem in (member.records.join_problem for member in members):
        if problem is not None:
            raise ConfigError(problem)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with preparing_alone(folder, patience_s=math.inf) as remove_temporary:
            remove_temporary([folder])
            if JoinIndex.open(path) is None:  # else another process made it meanwhile
                with scratch_folder(folder, "joining") as scratch:
                    job = _Job(tuple(member.records for member in members), scratch)
                    _write(path, members, _match(job, num_workers, on_progress))
    index = JoinIndex.open(path)
    assert index is not None
    return index


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    """The input of the processes, with a folder for intermediate files."""

    members: tuple[Records, ...]
    scratch: Path

    @property
    def num_partitions(self) -> int:
        """Number of partitions of the hashes."""
        return max(1, math.ceil(sum(member.num_samples for member in self.members) / PARTITION_SAMPLES))

    @property
    def shape(self) -> tuple[int, int]:
        """Samples of the first member, and the members joined to it."""
        return self.members[0].num_samples, len(self.members) - 1

    def matches(self, mode: Literal["r", "r+", "w+"]) -> NDArray[np.int64]:
        """For each sample of the first member, 1 + the number of the sample of each other, 0 for none."""
        if not math.prod(self.shape):
            return np.zeros(self.shape, np.int64)
        return np.asarray(np.memmap(self.scratch / "matches", np.int64, mode, shape=self.shape))


@dataclasses.dataclass(frozen=True, slots=True)
class _Task:
    """Samples of a member whose keys are hashed together."""

    member: int
    samples: range

    def path(self, scratch: Path) -> Path:
        return scratch / f"{self.member}-{self.samples.start}.keys"


def _match(job: _Job, num_workers: int, on_progress: Progress) -> NDArray[np.int64]:
    """Hash, sort and match the keys of all members."""
    tasks = [
        _Task(at, range(first, min(first + TASK_SAMPLES, member.num_samples)))
        for at, member in enumerate(job.members)
        for first in range(0, max(member.num_samples, 1), TASK_SAMPLES)
    ]
    total = len(tasks) + job.num_partitions
    job.matches("w+")
    bounds: list[NDArray[np.int64]] = []
    for row in in_parallel(functools.partial(_hash_keys, job), tasks, num_workers=num_workers, what="read keys"):
        bounds.append(row)
        on_progress(len(bounds), total)
    slices = (
        [(task, *row[number : number + 2].tolist()) for task, row in zip(tasks, bounds, strict=True)]
        for number in range(job.num_partitions)
    )
    twice: list[_Twice] = []
    found = in_parallel(functools.partial(_match_partition, job), slices, num_workers=num_workers, what="matched keys")
    for done, duplicates in enumerate(found, len(tasks) + 1):
        twice += duplicates
        on_progress(done, total)
    _check_unique(job.members, twice)
    return job.matches("r")


def _hash_keys(job: _Job, task: _Task) -> NDArray[np.int64]:
    """Write the sorted hashes of a task's keys; return where each partition starts in them, and the end."""
    encoded = (key.encode("utf-8", "surrogateescape") for key in job.members[task.member].keys(task.samples))
    digests = b"".join(hashlib.blake2b(key, digest_size=16).digest() for key in encoded)
    halves = np.frombuffer(digests, np.uint64).reshape(-1, 2)
    hashed = np.empty(len(halves), _HASHED)
    hashed["high"], hashed["low"] = halves[:, 0], halves[:, 1]
    hashed["number"] = np.arange(len(halves)) + task.samples.start
    hashed = hashed[np.argsort(hashed["high"])]
    hashed.tofile(task.path(job.scratch))
    partitions = (hashed["high"] >> np.uint64(32)) * np.uint64(job.num_partitions) >> np.uint64(32)
    return np.searchsorted(partitions, np.arange(job.num_partitions + 1, dtype=np.uint64))


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class _Twice:
    """Samples of a member with the same key as the one before: an example, and their count."""

    member: int
    first: int
    second: int
    num_samples: int


def _match_partition(job: _Job, slices: Sequence[tuple[_Task, int, int]]) -> list[_Twice]:
    """Match the samples of a partition, and return its duplicate keys."""
    hashed_bytes = np.dtype(_HASHED).itemsize
    pieces = [
        np.fromfile(task.path(job.scratch), _HASHED, stop - start, offset=start * hashed_bytes)
        for task, start, stop in slices
    ]
    hashed = np.concatenate(pieces)
    member = np.repeat([task.member for task, _, _ in slices], [len(piece) for piece in pieces])
    order = np.lexsort((hashed["number"], member, hashed["low"], hashed["high"]))
    hashed, member = hashed[order], member[order]
    if not len(hashed):
        return []
    same = (hashed["high"][1:] == hashed["high"][:-1]) & (hashed["low"][1:] == hashed["low"][:-1])
    is_first = np.concatenate(([True], ~same))
    first = np.flatnonzero(is_first)[np.cumsum(is_first) - 1]  # the first sample with this key
    joined = np.flatnonzero((member > 0) & (member[first] == 0))
    number = hashed["number"]
    matches = job.matches("r+")
    matches[number[first[joined]], member[joined] - 1] = number[joined] + 1
    twice = np.flatnonzero(same & (member[1:] == member[:-1]))
    members, firsts, counts = np.unique(member[twice], return_index=True, return_counts=True)
    first_of = twice[firsts]
    columns = members, number[first_of], number[first_of + 1], counts
    return list(map(_Twice, *(column.tolist() for column in columns)))


def _check_unique(members: Sequence[Records], twice: Sequence[_Twice]) -> None:
    if not twice:
        return
    found = min(twice)
    records = members[found.member]
    others = sum(other.num_samples for other in twice if other.member == found.member) - 1
    raise DatasetError(
        f"{records.root} [{records.split_part}]: duplicate key: {_told(records, found.first)} and "
        f"{_told(records, found.second)}"
        + (f", and {others:,} more" if others else "")
        + f": a join needs keys that are unique in each of its data sets. {records.repeated_keys_fix}"
    )


def _write(path: Path, members: Sequence[JoinMember], matches: NDArray[np.int64]) -> None:
    """Write the rows of the join to the file at `path`."""
    missing = [0] * len(members)
    lacking: dict[int, list[int]] = {number: [] for number in range(1, len(members))}
    skipping = [number for number, member in enumerate(members[1:]) if member.nonmatch == "skip"]
    counts: list[int] = []
    with replacing(path) as temporary, open(temporary, "wb") as file:
        begin_index(file)
        pages = PageWriter(file, PAGE_ROWS * 8 * len(members))
        for shard_start, shard_end in itertools.pairwise(itertools.accumulate(members[0].records.counts, initial=0)):
            counts.append(0)
            for start in range(shard_start, shard_end, TASK_SAMPLES):
                end = min(start + TASK_SAMPLES, shard_end)
                numbers = matches[start:end] - 1
                none = numbers < 0
                for member in lacking:
                    missing[member] += int(none[:, member - 1].sum())
                    if members[member].nonmatch == "error" and len(lacking[member]) < _SHOWN:
                        lacking[member] += (start + np.flatnonzero(none[:, member - 1])[:_SHOWN]).tolist()
                rows = np.concatenate((np.arange(start, end)[:, None], numbers), axis=1)
                rows = rows[~none[:, skipping].any(axis=1)]
                pages.write(np.ascontiguousarray(rows, np.int64).data)
                counts[-1] += len(rows)
        for member, absent in lacking.items():
            if absent:
                raise DatasetError(_nonmatch(members[0].records, members[member], absent[:_SHOWN], missing[member]))
        entries = [entry_of(path.parent, member, number) for member, number in zip(members, missing, strict=True)]
        table = {
            "members": [dataclasses.astuple(entry) for entry in entries],
            "counts": counts,
            "checksums": pages.finish(),
        }
        finish_index(file, MAGIC, table)


def _nonmatch(primary: Records, member: JoinMember, absent: Sequence[int], count: int) -> str:
    own, first = (f"{records.root} [{records.split_part}]" for records in (member.records, primary))
    shown = ", ".join(_told(primary, number) for number in absent) + (", ..." if count > len(absent) else "")
    return (
        f"{own}: has no sample for {count:,} of the {primary.num_samples:,} samples of {first}: {shown}; say "
        "`nonmatch: skip` in this member of the join to leave such samples out, or `nonmatch: none` to have None "
        "instead"
    )


def _told(records: Records, index: int) -> str:
    """The shard and key of a sample, and its row in the file if that is not its key."""
    (key,) = records.keys(range(index, index + 1))
    shard, place = records.names[shard_at(records, index)], records.describe(index)
    return f"{shard}/{key}" + (
        "" if place in (shard, f"{shard}/{key}") else f" (row {place.removeprefix(f'{shard}/')})"
    )
