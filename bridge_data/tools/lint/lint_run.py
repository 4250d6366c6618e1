"""Checking a whole data set or metadataset, shard by shard, in parallel.

Enters: a path and settings. Leaves: a `LintReport`. Guarantee: every fault is counted; memory is bounded by a few
shards and by the kept faults.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from bridge_data.decode import SampleDecoder, open_loader
from bridge_data.errors import BridgeDataError, DatasetError, SkipSample
from bridge_data.limits import Limits, allow_pixels
from bridge_data.plan import Source
from bridge_data.plan.document import absolute
from bridge_data.prepare.executors import LocalProcesses, Progress, no_progress
from bridge_data.shards.index_file import split_name
from bridge_data.shards.metadata import META_FOLDER
from bridge_data.shards.tar_files import open_tar, read_member
from bridge_data.tools.lint.check_dataset import KeyLog, check_metadata, digests
from bridge_data.tools.lint.check_samples import Recipe, SampleCheck, code_of
from bridge_data.tools.lint.check_shards import ShardContents, ShardWalk, check_indexes
from bridge_data.tools.lint.faults import Fault, FaultTally, LintReport
from bridge_data.tools.lint.table_keys import repeated_table_keys
from bridge_data.tools.lint.targets import Folder, LintConfig, Loaded, Targets, find_targets

SAMPLES_AT_ONCE = 512
"""Samples of a JSONL file or a join per task; more if there would be over `MAX_TASKS` tasks."""

MAX_TASKS = 256


def lint(path: Path, config: LintConfig | None = None, *, on_progress: Progress = no_progress) -> LintReport:
    """Check the data set (a folder of tars or a tar, prepared or not), the JSONL file or the metadataset at `path`.

    Raises:
        ConfigError: if there is nothing at `path`. WorkerError: if a process died.
    """
    config = config or LintConfig()
    tally = FaultTally(config.max_kept)
    opened: list[Fault] = []
    targets = find_targets(path, config, opened.append)
    folders = list(targets.folders.values())
    metadata = [fault for folder in folders if folder.is_prepared for fault in check_metadata(folder.root)]
    tally.add_all(_once(opened, metadata))
    tally.add_all(metadata)
    shards = [_Shard(number, *shard) for number, folder in enumerate(folders) for shard in _present(folder)]
    total = _num_samples(targets, config.limit)
    done = num_walked = 0
    tasks = itertools.chain(_shard_tasks(folders, shards, config), _range_tasks(targets.loaded, config.limit))
    executor = config.executor or LocalProcesses(config.num_workers)
    found_all = executor.map(functools.partial(run_task, config.decode, config.max_kept), tasks, what=f"checked {path}")
    with KeyLog(total) as keys, contextlib.closing(found_all):
        for found in found_all:
            tally.merge(found.tally)
            done += found.num_samples
            num_walked += found.num_walked
            if found.keys is not None:
                keys.add(found.keys)
            on_progress(num_walked, max(total, num_walked))
        tally.add_all(_repeated_keys(keys, shards, folders))
    if config.limit is None:
        tally.add_all(repeated_table_keys(loaded.source for loaded in targets.loaded))
    return LintReport(
        path=str(path),
        num_datasets=len(folders) + len({loaded.source.path for loaded in targets.loaded} - targets.folders.keys()),
        num_shards=len(shards),
        num_samples=done,
        is_complete=config.limit is None and config.where is None and config.decode,
        counts=dict(tally.counts),
        kept=dict(tally.kept),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ShardTask:
    """The checks of one shard."""

    folder: int
    root: Path
    name: str
    number: int
    """Among all checked shards."""
    position: int
    """Among the shards of its data set."""
    count: int | None
    """Its number of samples by the metadata; None if it is not prepared."""
    limit: int | None
    uses: bytes
    """The recipes, each with the positions of its samples; None: of all."""
    excluded: frozenset[str]
    limits: Limits


@dataclasses.dataclass(frozen=True, slots=True)
class RangeTask:
    """Samples of a source that are checked by loading them. Those made from shards are counted with the shards."""

    source: bytes
    start: int
    end: int
    is_counted: bool


@dataclasses.dataclass(slots=True)
class Found:
    """The result of a task: faults, number of checked samples, of those gone through, and the keys of a shard."""

    tally: FaultTally
    num_samples: int = 0
    num_walked: int = 0
    keys: NDArray[np.void] | None = None


def run_task(decode: bool, max_kept: int, task: ShardTask | RangeTask) -> Found:
    """Run a task; keep `max_kept` faults of a kind with shard and key."""
    found = Found(FaultTally(max_kept))
    if isinstance(task, ShardTask):
        _check_shard(task, decode, found)
    else:
        _check_range(task, decode, found)
    return found


class _Shard(NamedTuple):
    """A shard: the number of its folder, its number there, and its name."""

    folder: int
    position: int
    name: str


def _present(folder: Folder) -> Iterator[tuple[int, str]]:
    """(position, name) of the shards to check; missing ones were reported."""
    for position, name in enumerate(folder.counts):
        if name in folder.uses and (folder.root / name).is_file():
            yield position, name


def _num_samples(targets: Targets, limit: int | None) -> int:
    sizes = [sum(folder.counts[name] for _, name in _present(folder)) for folder in targets.folders.values()]
    sizes += [end - start for loaded in targets.loaded if loaded.is_counted for start, end in loaded.ranges]
    return sum(size if limit is None else min(size, limit) for size in sizes)


def _shard_tasks(folders: Sequence[Folder], shards: Sequence[_Shard], config: LintConfig) -> Iterator[ShardTask]:
    left: dict[int, int] = {}
    for number, (folder_number, position, name) in enumerate(shards):
        folder = folders[folder_number]
        limit = None if config.limit is None else left.setdefault(folder_number, config.limit)
        if limit is not None and limit <= 0:
            continue
        uses = [(use.recipe, use.positions()) for use in folder.uses[name]]
        if limit is not None and folder.is_prepared:
            left[folder_number] -= _num_used(folder.counts[name], [positions for _, positions in uses])
        yield ShardTask(
            folder=folder_number,
            root=folder.root,
            name=name,
            number=number,
            position=position,
            count=folder.counts[name] if folder.is_prepared else None,
            limit=limit,
            uses=cloudpickle.dumps(uses),
            excluded=frozenset(folder.excluded.get(name, ())),
            limits=config.limits,
        )


def _num_used(count: int, several: Sequence[frozenset[int] | None]) -> int:
    """The samples at any of these positions of a shard with `count` samples."""
    found: set[int] = set()
    for positions in several:
        if positions is None:
            return count
        found |= positions
    return len(found)


def _range_tasks(sources: Sequence[Loaded], limit: int | None) -> Iterator[RangeTask]:
    for loaded in sources:
        pickled = cloudpickle.dumps(loaded.source)
        for first, last in loaded.ranges:
            end = last if limit is None else min(last, first + limit)
            step = max(SAMPLES_AT_ONCE, -(-(end - first) // MAX_TASKS))
            for start in range(first, end, step):
                yield RangeTask(pickled, start, min(end, start + step), loaded.is_counted)


_NOT_OPENED = frozenset({"metadata-damaged", "split-unknown-shard", "split-repeated-shard"})
"""Faults of metadata for which a split part cannot be opened either."""


def _once(opened: Sequence[Fault], metadata: Sequence[Fault]) -> Iterator[Fault]:
    """Faults found on opening, each cause once, except those that metadata faults describe more precisely."""
    damaged = [absolute(str(Path(fault.dataset, META_FOLDER))) for fault in metadata if fault.code in _NOT_OPENED]
    told: set[str] = set()
    for fault in opened:
        cause = fault.cause.removeprefix(f"{fault.dataset}: ")
        if fault.code == "config" and any(folder in fault.cause for folder in damaged):
            continue
        if cause not in told:
            told.add(cause)
            yield fault


def _repeated_keys(keys: KeyLog, shards: Sequence[_Shard], folders: Sequence[Folder]) -> Iterator[Fault]:
    for (first, _), (number, offset) in keys.repeated():
        root, name = folders[shards[number].folder].root, shards[number].name
        cause = f"shard {shards[first].name} has it too"
        yield Fault("shared-key", cause, str(root), name, _key_at(root / name, offset))


def _key_at(path: Path, offset: int) -> str:
    """The key of the sample that begins at `offset`."""
    member = read_member(open_tar(str(path)), offset, file=str(path))
    name = split_name(member.name) if member is not None else None
    return name[0] if name is not None else ""


def _check_shard(task: ShardTask, decode: bool, found: Found) -> None:
    """Check the members of a shard, the content of each sample, and the indexes of the shard."""
    report, dataset = found.tally.add, str(task.root)
    walk = ShardWalk(task.root, task.name, report)
    uses = _uses(task.uses)
    check = SampleCheck(decode=decode, limits=task.limits)
    contents = ShardContents()
    for position, sample in enumerate(walk.samples()):
        if found.num_samples == task.limit:
            break
        contents.add(sample)
        recipes = [recipe for recipe, positions in uses if positions is None or position in positions]
        found.num_samples += bool(recipes)
        if not recipes or sample.key in task.excluded:
            continue
        try:
            parts = {part: walk.read(*span) if decode else b"" for part, span in sample.parts.items()}
        except DatasetError as error:
            report(Fault("unreadable", str(error), dataset, task.name, sample.key))
            continue
        if decode:
            for part, content in parts.items():
                contents.add_content(part, content)
        for fault in check.check(sample.key, parts, filter(None, recipes)):
            report(dataclasses.replace(fault, dataset=dataset, shard=task.name))
    found.num_walked = len(contents.keys)
    found.keys = digests(task.folder, task.number, contents.keys, contents.offsets)
    if not walk.is_whole or task.count is None:
        return
    if found.num_walked != task.count:
        cause = f"it has {found.num_walked:,} samples, the metadata say {task.count:,}"
        report(Fault("wrong-count", cause, dataset, task.name))
    for key in sorted(task.excluded.difference(contents.keys)):
        report(
            Fault("exclude-unknown", f"`exclude` names {task.name}/{key}, which it does not have", dataset, task.name)
        )
    contents.finish(walk.end)
    found.tally.add_all(check_indexes(task.root, task.name, task.position, contents))


def _check_range(task: RangeTask, decode: bool, found: Found) -> None:
    """Whether samples can be read and, with `decode`, made."""
    source = _source(task.source)
    allow_pixels(source.limits)
    loader = open_loader(source, SampleDecoder())
    for index in range(task.start, task.end):
        found.num_samples += task.is_counted
        found.num_walked += task.is_counted
        try:
            raw = loader.read(index)
            if decode:
                loader.build(raw, index)
        except SkipSample:
            continue
        except DatasetError as error:
            _report(found, "unreadable", source, index, error)
        except BridgeDataError as error:
            _report(found, code_of(error), source, index, error)
        except Exception as error:
            _report(found, "unbuildable", source, index, error)


def _report(found: Found, code: str, source: Source, index: int, error: Exception) -> None:
    cause = str(error) if isinstance(error, BridgeDataError) else f"{type(error).__name__}: {error}"
    found.tally.add(Fault(code, cause, source.path, key=source.records.describe(index)))


@functools.lru_cache(maxsize=16)
def _uses(pickled: bytes) -> list[tuple[Recipe | None, frozenset[int] | None]]:
    uses: list[tuple[Recipe | None, frozenset[int] | None]] = cloudpickle.loads(pickled)
    return uses


@functools.lru_cache(maxsize=16)
def _source(pickled: bytes) -> Source:
    source: Source = cloudpickle.loads(pickled)
    return source
