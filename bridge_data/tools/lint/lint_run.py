"""Checking everything behind a path, shard by shard, in parallel.

Enters: a path and settings. Leaves: a `LintReport`. Guarantee: every fault is counted; memory is bounded by a few
shards and by the faults that are kept, whatever the size of the data.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import cloudpickle

from bridge_data.errors import ConfigError
from bridge_data.plan import Source
from bridge_data.plan.references import Opening
from bridge_data.prepare.processes import in_parallel
from bridge_data.shards.metadata import split_name
from bridge_data.shards.tar_bytes import open_tar
from bridge_data.shards.tar_headers import read_member
from bridge_data.tools.lint.check_keys import KeyLog
from bridge_data.tools.lint.check_metadata import check_metadata
from bridge_data.tools.lint.faults import Fault
from bridge_data.tools.lint.report import FaultTally, LintReport
from bridge_data.tools.lint.targets import Folder, Targets, find_targets
from bridge_data.tools.lint.tasks import RangeTask, ShardTask, run_task

SAMPLES_AT_ONCE = 512
MAX_TASKS = 256
"""Samples of a JSONL file or a join that a process checks in one go, more of them if that were too many tasks."""

Progress = Callable[[int, int | None], None]
"""Called with samples done and samples in all."""


def no_progress(done: int, total: int | None) -> None:
    """Report nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LintConfig:
    """What to check: `split_part` alone, or all shards (None); at most `limit` samples of each data set; without
    `decode`, only how samples stand and whether their parts are there. `max_kept` faults of a kind are kept with their
    places. `opening` says what code may be run.
    """

    split_part: str | None = None
    num_workers: int = dataclasses.field(default_factory=lambda: min(16, len(os.sched_getaffinity(0))))
    limit: int | None = None
    decode: bool = True
    max_kept: int = 1000
    opening: Opening = dataclasses.field(default_factory=lambda: Opening(training=False))

    def __post_init__(self) -> None:
        for name, value in (("num_workers", self.num_workers), ("limit", self.limit), ("max_kept", self.max_kept)):
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}: expected at least 1")


class _Shard(NamedTuple):
    """A shard by the number of its folder, its place in that, and its name."""

    folder: int
    place: int
    name: str


def lint(path: Path, config: LintConfig | None = None, *, on_progress: Progress = no_progress) -> LintReport:
    """Check the data set, the JSONL file or the metadataset at `path`.

    Raises:
        ConfigError: if there is nothing at `path`. WorkerError: if a process died.
    """
    config = config or LintConfig()
    tally = FaultTally(config.max_kept)
    targets = find_targets(path, config.split_part, tally.add, config.opening)
    folders = list(targets.folders.values())
    for folder in folders:
        tally.add_all(check_metadata(folder.root))
    shards = [_Shard(number, *shard) for number, folder in enumerate(folders) for shard in _present(folder)]
    total = _num_samples(targets, config.limit)
    done = 0
    tasks = itertools.chain(_shard_tasks(folders, shards, config), _range_tasks(targets.loaded, config.limit))
    found_all = in_parallel(
        functools.partial(run_task, config.decode, config.max_kept),
        tasks,
        num_workers=config.num_workers,
        what=f"checked {path}",
    )
    with KeyLog(total) as keys, contextlib.closing(found_all):
        for found in found_all:
            tally.merge(found.tally)
            done += found.num_samples
            if found.keys is not None:
                keys.add(found.keys)
            on_progress(done, max(total, done))
        tally.add_all(_repeated_keys(keys, shards, folders))
    return LintReport(
        path=str(path),
        num_datasets=len(folders) + len({source.path for source in targets.loaded} - targets.folders.keys()),
        num_shards=len(shards),
        num_samples=done,
        is_complete=config.limit is None and config.decode,
        counts=dict(tally.counts),
        kept=dict(tally.kept),
    )


def _present(folder: Folder) -> Iterator[tuple[int, str]]:
    """(place, name) of the shards to look at; those that are gone were reported."""
    for place, name in enumerate(folder.counts):
        if name in folder.recipes and (folder.root / name).is_file():
            yield place, name


def _num_samples(targets: Targets, limit: int | None) -> int:
    sizes = [sum(folder.counts[name] for _, name in _present(folder)) for folder in targets.folders.values()]
    sizes += [source.num_samples for source in targets.loaded]
    return sum(size if limit is None else min(size, limit) for size in sizes)


def _shard_tasks(folders: Sequence[Folder], shards: Sequence[_Shard], config: LintConfig) -> Iterator[ShardTask]:
    left: dict[int, int] = {}
    for number, (folder_number, place, name) in enumerate(shards):
        folder = folders[folder_number]
        limit = None if config.limit is None else left.setdefault(folder_number, config.limit)
        if limit is not None:
            if limit <= 0:
                continue
            left[folder_number] -= folder.counts[name]
        yield ShardTask(
            folder=folder_number,
            root=folder.root,
            name=name,
            number=number,
            place=place,
            count=folder.counts[name],
            limit=limit,
            recipes=cloudpickle.dumps(folder.recipes[name]),
            excluded=frozenset(folder.excluded.get(name, ())),
        )


def _range_tasks(sources: Sequence[Source], limit: int | None) -> Iterator[RangeTask]:
    for source in sources:
        pickled = cloudpickle.dumps(source)
        size = source.num_samples if limit is None else min(source.num_samples, limit)
        step = max(SAMPLES_AT_ONCE, -(-size // MAX_TASKS))
        for start in range(0, size, step):
            yield RangeTask(pickled, start, min(size, start + step))


def _repeated_keys(keys: KeyLog, shards: Sequence[_Shard], folders: Sequence[Folder]) -> Iterator[Fault]:
    for (first, _), (number, offset) in keys.repeated():
        root, name = folders[shards[number].folder].root, shards[number].name
        cause = f"shard {shards[first].name} has it too"
        yield Fault("duplicate-key", cause, str(root), name, _key_at(root / name, offset))


def _key_at(path: Path, offset: int) -> str:
    """The key of the sample that begins at `offset`."""
    member = read_member(open_tar(str(path)), offset, file=str(path))
    name = split_name(member.name) if member is not None else None
    return name[0] if name is not None else ""
