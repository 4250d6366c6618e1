"""One piece of the work: a shard, or a range of samples that are checked by loading them.

Enters: a task, which any process can do. Leaves: what was found.
"""

import dataclasses
import functools
import itertools
from pathlib import Path

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from bridge_data.decode import SampleDecoder, open_loader
from bridge_data.errors import BridgeDataError, DatasetError, SkipSample
from bridge_data.plan import Source
from bridge_data.tools.lint.check_indexes import ShardContents, check_indexes
from bridge_data.tools.lint.check_keys import digests
from bridge_data.tools.lint.check_samples import Recipe, SampleCheck, code_of
from bridge_data.tools.lint.check_shards import ShardWalk
from bridge_data.tools.lint.faults import Fault
from bridge_data.tools.lint.report import FaultTally


@dataclasses.dataclass(frozen=True, slots=True)
class ShardTask:
    """What a process is to know of a shard."""

    folder: int
    root: Path
    name: str
    number: int
    """Among all shards that are checked."""
    place: int
    """Among those of its data set."""
    count: int
    limit: int | None
    recipes: bytes
    excluded: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class RangeTask:
    """Samples of a source that are checked by loading them."""

    source: bytes
    start: int
    end: int


@dataclasses.dataclass(slots=True)
class Found:
    """What a task found: faults, samples looked at, and the keys of a shard."""

    tally: FaultTally
    num_samples: int = 0
    keys: NDArray[np.void] | None = None


def run_task(decode: bool, max_kept: int, task: ShardTask | RangeTask) -> Found:
    """Do a task; `max_kept` faults of a kind are kept with their places."""
    found = Found(FaultTally(max_kept))
    if isinstance(task, ShardTask):
        _check_shard(task, decode, found)
    else:
        _check_range(task, decode, found)
    return found


def _check_shard(task: ShardTask, decode: bool, found: Found) -> None:
    """How the samples of a shard stand, what is in each, and whether its indexes know them."""
    report, dataset = found.tally.add, str(task.root)
    walk = ShardWalk(task.root, task.name, report)
    check = SampleCheck(tuple(_recipes(task.recipes)), decode=decode)
    contents = ShardContents()
    for sample in itertools.islice(walk.samples(), task.limit):
        contents.add(sample)
        if sample.key in task.excluded:
            continue
        try:
            parts = {part: walk.read(*place) if decode else b"" for part, place in sample.parts.items()}
        except DatasetError as error:
            report(Fault("unreadable", str(error), dataset, task.name, sample.key))
            continue
        for fault in check.check(sample.key, parts):
            report(dataclasses.replace(fault, dataset=dataset, shard=task.name))
    found.num_samples = len(contents.keys)
    found.keys = digests(task.folder, task.number, contents.keys, contents.offsets)
    if not walk.is_whole:
        return
    if found.num_samples != task.count:
        report(Fault("wrong-count", f"it has {found.num_samples}, the metadata say {task.count}", dataset, task.name))
    for key in sorted(task.excluded.difference(contents.keys)):
        report(
            Fault("exclude-unknown", f"`exclude` names {task.name}/{key}, which it does not have", dataset, task.name)
        )
    contents.finish(walk.end)
    found.tally.add_all(check_indexes(task.root, task.name, task.place, contents))


def _check_range(task: RangeTask, decode: bool, found: Found) -> None:
    """Whether samples can be read and, with `decode`, made."""
    source = _source(task.source)
    loader = open_loader(source, SampleDecoder())
    for index in range(task.start, task.end):
        found.num_samples += 1
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
def _recipes(pickled: bytes) -> list[Recipe]:
    recipes: list[Recipe] = cloudpickle.loads(pickled)
    return recipes


@functools.lru_cache(maxsize=16)
def _source(pickled: bytes) -> Source:
    source: Source = cloudpickle.loads(pickled)
    return source
