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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bridge_data.errors import DatasetError, bridge_command
from bridge_data.later import numpy as np
from bridge_data.prepare.commit import preparing_alone, scratch_folder
from bridge_data.prepare.executors import Progress, in_parallel, no_progress
from bridge_data.shards import ShardSet
from bridge_data.shards.index_file import PageWriter, begin_index, finish_index
from bridge_data.shards.joins import MAGIC, PAGE_ROWS, JoinIndex, JoinMember, entry_of, join_path
from bridge_data.shards.key_index import KeyIndex
from bridge_data.shards.segment import DamagedIndexError
from bridge_data.storage import on_disk
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
        DatasetError: if a key occurs twice in a member, a member whose nonmatch is `error` lacks one, or a data set has
        no index of its keys.
    """
    path = join_path(folder, members)
    index = JoinIndex.open(path)
    if index is not None:
        return index
    keys = [ShardKeys.of(member.shards) for member in members]
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with preparing_alone(folder, patience_s=math.inf) as remove_temporary:
            remove_temporary([folder])
            if JoinIndex.open(path) is None:  # else another process made it meanwhile
                with scratch_folder(folder, "joining") as scratch:
                    matches = _match(_Job(tuple(keys), scratch), num_workers, on_progress)
                    _write(path, members, keys, matches)
    index = JoinIndex.open(path)
    assert index is not None
    return index


@dataclasses.dataclass(frozen=True, slots=True)
class ShardKeys:
    """The keys of the samples of `shards`, without excluded ones: from our index, or from Energon's `index`, in which
    the shards have these `numbers`. No shard is read."""

    shards: ShardSet
    index: KeyIndex | None
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, shards: ShardSet) -> ShardKeys:
        """The keys of `shards`."""
        if shards.index is not None:
            return cls(shards, None, ())
        index = KeyIndex.find(on_disk(shards.root))  # in a store, keys are looked up by our index only
        if index is None:
            raise DatasetError(
                f"{shards.root}: has no index of its keys; run "
                f"`{bridge_command('prepare', shards.root, '--tar-index-only')}`"
            )
        numbers = {name: number for number, name in enumerate(index.shard_names)}
        return cls(shards, index, tuple(numbers[name] for name in shards.names))

    def of_shard(self, shard: int) -> list[str]:
        """The keys of the samples of shard number `shard`."""
        shards = self.shards
        if self.index is not None:
            keys = self.index.keys(self.numbers[shard])
        else:
            assert shards.index is not None
            name = shards.names[shard]
            try:
                keys = shards.index.segment(name).keys()
            except DamagedIndexError as error:
                raise DatasetError(
                    f"{error}. Run `bridge-data prepare {shards.root} --tar-index-only` before the metadataset."
                ) from error
        if len(keys) != shards.stored_counts[shard]:
            raise DatasetError(
                f"{shards.root}: the index knows {len(keys)} samples in {shards.names[shard]}, but the metadata "
                f"{shards.stored_counts[shard]}; run `{bridge_command('prepare', shards.root, '--tar-index-only')}`"
            )
        excluded = shards.excluded_positions.get(shard, ())
        if excluded:
            left_out = set(excluded)
            keys = [key for position, key in enumerate(keys) if position not in left_out]
        return keys

    def key(self, index: int) -> str:
        """The key of sample `index`, with its shard: for messages."""
        shard, _ = self.shards.locate(index)
        return f"{self.shards.names[shard]}/{self.of_shard(shard)[index - self.shards.starts[shard]]}"


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    """The input of the processes, with a folder for intermediate files."""

    keys: tuple[ShardKeys, ...]
    scratch: Path

    @property
    def num_partitions(self) -> int:
        """Number of partitions of the hashes."""
        return max(1, math.ceil(sum(keys.shards.num_samples for keys in self.keys) / PARTITION_SAMPLES))

    @property
    def shape(self) -> tuple[int, int]:
        """Samples of the first member, and the members joined to it."""
        return self.keys[0].shards.num_samples, len(self.keys) - 1

    def matches(self, mode: Literal["r", "r+", "w+"]) -> NDArray[np.int64]:
        """For each sample of the first member, 1 + the number of the sample of each other, 0 for none."""
        if not math.prod(self.shape):
            return np.zeros(self.shape, np.int64)
        return np.asarray(np.memmap(self.scratch / "matches", np.int64, mode, shape=self.shape))


@dataclasses.dataclass(frozen=True, slots=True)
class _Task:
    """Shards `first` to `last` - 1 of a member, whose keys are hashed together."""

    member: int
    first: int
    last: int

    def path(self, scratch: Path) -> Path:
        return scratch / f"{self.member}-{self.first}.keys"


def _match(job: _Job, num_workers: int, on_progress: Progress) -> NDArray[np.int64]:
    """Hash, sort and match the keys of all members."""
    tasks = list(_tasks(job.keys))
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
    _check_unique(job.keys, twice)
    return job.matches("r")


def _tasks(members: Sequence[ShardKeys]) -> Iterator[_Task]:
    for number, keys in enumerate(members):
        first, size = 0, 0
        for shard, count in enumerate(keys.shards.counts):
            if size and size + count > TASK_SAMPLES:
                yield _Task(number, first, shard)
                first, size = shard, 0
            size += count
        yield _Task(number, first, len(keys.shards.counts))


def _hash_keys(job: _Job, task: _Task) -> NDArray[np.int64]:
    """Write the sorted hashes of a task's keys; return where each partition starts in them, and the end."""
    keys = job.keys[task.member]
    names = (key for shard in range(task.first, task.last) for key in keys.of_shard(shard))
    encoded = (key.encode("utf-8", "surrogateescape") for key in names)
    digests = b"".join(hashlib.blake2b(key, digest_size=16).digest() for key in encoded)
    halves = np.frombuffer(digests, np.uint64).reshape(-1, 2)
    hashed = np.empty(len(halves), _HASHED)
    hashed["high"], hashed["low"] = halves[:, 0], halves[:, 1]
    hashed["number"] = np.arange(len(halves)) + keys.shards.starts[task.first]
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


def _check_unique(members: Sequence[ShardKeys], twice: Sequence[_Twice]) -> None:
    if not twice:
        return
    found = min(twice)
    keys, shards = members[found.member], members[found.member].shards
    others = sum(other.num_samples for other in twice if other.member == found.member) - 1
    raise DatasetError(
        f"{shards.root} [{shards.split_part}]: duplicate key: {keys.key(found.first)} and {keys.key(found.second)}"
        + (f", and {others:,} more" if others else "")
        + ": a join needs keys that are unique in each of its data sets. Write the shards again with other keys: "
        f"`{bridge_command('prepare', shards.root, '--force-overwrite', '--fix-duplicates')}` puts the shard's name in "
        "front of each."
    )


def _write(path: Path, members: Sequence[JoinMember], keys: Sequence[ShardKeys], matches: NDArray[np.int64]) -> None:
    """Write the rows of the join to the file at `path`."""
    primary = members[0].shards
    missing = [0] * len(members)
    lacking: dict[int, list[int]] = {number: [] for number in range(1, len(members))}
    skipping = [number for number, member in enumerate(members[1:]) if member.nonmatch == "skip"]
    counts = []
    with replacing(path) as temporary, open(temporary, "wb") as file:
        begin_index(file)
        pages = PageWriter(file, PAGE_ROWS * 8 * len(members))
        for start, end in itertools.pairwise(primary.starts):
            numbers = matches[start:end] - 1
            none = numbers < 0
            for member in lacking:
                missing[member] += int(none[:, member - 1].sum())
                if members[member].nonmatch == "error" and len(lacking[member]) < _SHOWN:
                    lacking[member] += (start + np.flatnonzero(none[:, member - 1])[:_SHOWN]).tolist()
            rows = np.concatenate((np.arange(start, end)[:, None], numbers), axis=1)
            rows = rows[~none[:, skipping].any(axis=1)]
            pages.write(np.ascontiguousarray(rows, np.int64).data)
            counts.append(len(rows))
        for member, absent in lacking.items():
            if absent:
                raise DatasetError(_nonmatch(keys[0], members[member], absent[:_SHOWN], missing[member]))
        entries = [entry_of(path.parent, member, number) for member, number in zip(members, missing, strict=True)]
        table = {
            "members": [dataclasses.astuple(entry) for entry in entries],
            "counts": counts,
            "checksums": pages.finish(),
        }
        finish_index(file, MAGIC, table)


def _nonmatch(primary: ShardKeys, member: JoinMember, absent: Sequence[int], count: int) -> str:
    own, first = (f"{shards.root} [{shards.split_part}]" for shards in (member.shards, primary.shards))
    shown = ", ".join(primary.key(number) for number in absent) + (", ..." if count > len(absent) else "")
    return (
        f"{own}: has no sample for {count:,} of the {primary.shards.num_samples:,} samples of {first}: {shown}; say "
        "`nonmatch: skip` in this member of the join to leave such samples out, or `nonmatch: none` to have None "
        "instead"
    )
