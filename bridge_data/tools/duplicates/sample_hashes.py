"""Reading every sample of some data sets once: the digest and number of its bytes, and the hash of its picture.

Enters: paths of prepared folders and JSONL files. Leaves: `SampleHashes`, arrays of 16 bytes a sample, of 24 with
pictures, in a fixed order: by split part (train last, so that a sample of val comes before its copy in train), data
set, shard. Guarantees: a stored sample is read once, even if several split parts have it; samples that cannot be read
or decoded are counted, and the first ones named; the result does not depend on the number of processes.

The digest is BLAKE2b of 96 bits: two of 10^8 different samples have the same one with a probability of 10^-13.
"""

import bisect
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.errors import BridgeDataError, ConfigError, ForgottenSampleError
from bridge_data.limits import DEFAULT_LIMITS, Limits, allow_pixels
from bridge_data.options import check_at_least
from bridge_data.plan.document import is_jsonl
from bridge_data.plan.formats import WHOLE
from bridge_data.prepare.executors import LocalProcesses, Progress, no_progress, usual_workers
from bridge_data.shards import Records
from bridge_data.shards.blocks import BlockBudget, BlockCache, RunCut
from bridge_data.shards.jsonl_file import open_jsonl, read_ranges
from bridge_data.shards.prepared import PreparedDataset
from bridge_data.shards.records import RawSample, RecordReader, reader_of, stored_number, stored_records
from bridge_data.tools.duplicates.picture_hash import NO_HASH, picture_hash

LINES_AT_ONCE = 1 << 16
"""Lines of a JSONL file per task; of tars, a task is a shard."""

BLOCK_SAMPLES, HELD_BYTES = 64, 16 << 20
"""Small samples are read at once up to this number, and up to this many bytes."""

MAX_EXAMPLES = 10
"""Messages kept of each kind of fault."""

LAST_PART = "train"

FAULTS = {
    "forgotten": "samples that are forgotten, and are left out",
    "unreadable": "samples that cannot be read, and are left out",
    "empty": "samples without any of the parts, which are left out",
    "broken": "pictures that cannot be decoded, which are not compared",
    "blank": "pictures without detail, which are not compared",
    "several": "samples with several pictures; only the first is compared",
}
"""Possible faults of a sample."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HashConfig:
    """Which samples are read: those of `split_parts`, in this order (empty: of all, train last). Only `parts` of them
    are compared (empty: all). With `pictures`, the first picture among these is hashed, too."""

    split_parts: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    pictures: bool = False
    num_workers: int = dataclasses.field(default_factory=usual_workers)
    split_config: str | None = None
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_workers")


class HashTask(NamedTuple):
    """Samples `first` to `end` - 1 of a split part of a data set."""

    path: str
    split_part: str
    first: int
    end: int


@dataclasses.dataclass(slots=True)
class HashFaults:
    """How often each kind of `FAULTS` occurred, and messages of the first ones."""

    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def add(self, kind: str, example: str) -> None:
        self.counts[kind] += 1
        kept = self.examples.setdefault(kind, [])
        if len(kept) < MAX_EXAMPLES:
            kept.append(example)

    def merge(self, others: "HashFaults") -> None:
        self.counts += others.counts
        for kind, examples in others.examples.items():
            kept = self.examples.setdefault(kind, [])
            kept += examples[: MAX_EXAMPLES - len(kept)]


@dataclasses.dataclass(slots=True)
class SampleHashes:
    """Data of each sample, by its number: digest (two arrays; `high` is 0 if it was left out), bytes (float32, so above
    16 MB rounded to 7 digits), and hash of its picture (0: none). `tasks` say which sample has which number; `shared`
    are counts of samples in several split parts, by these parts."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint32]
    num_bytes: NDArray[np.float32]
    pictures: NDArray[np.uint64]
    paths: list[str]
    tasks: Sequence[HashTask]
    shared: Counter[str]
    faults: HashFaults
    config: HashConfig
    _starts: list[int] = dataclasses.field(init=False)
    _readers: dict[tuple[str, str], RecordReader] = dataclasses.field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._starts = task_starts(self.tasks)

    def is_known(self, number: int) -> bool:
        """Whether the sample was read."""
        return bool(self.high[number])

    def digest(self, number: int) -> str:
        """The digest of a sample, as hexadecimal digits."""
        return f"{self.high[number]:016x}{self.low[number]:08x}"

    def task_of(self, number: int) -> int:
        """The number of the task of a sample."""
        return bisect.bisect_right(self._starts, number) - 1

    def sample(self, number: int) -> RawSample:
        """Shard and key of a sample, from the index: no part is read."""
        task_number = self.task_of(number)
        task = self.tasks[task_number]
        reader = self._readers.get(task[:2])
        if reader is None:
            reader = self._readers[task[:2]] = _opened(task.path, task.split_part, self.config).reader()
        return reader.read(task.first + number - self._starts[task_number], ())


def task_starts(tasks: Sequence[HashTask]) -> list[int]:
    """The number of the first sample of each task, and the number of all samples."""
    return [0, *itertools.accumulate(task.end - task.first for task in tasks)]


def hash_samples(
    paths: Sequence[Path], config: HashConfig | None = None, *, on_progress: Progress = no_progress
) -> SampleHashes:
    """Read the samples of the prepared folders and JSONL files at `paths`.

    Raises:
        ConfigError: if there is nothing to read, or a split part is unknown to all. DatasetError: if metadata are
        damaged. WorkerError: if a process died.
    """
    config = config or HashConfig()
    _opened.cache_clear()  # data may have been prepared again since
    shared: Counter[str] = Counter()
    tasks = list(_tasks(paths, config, shared))
    starts = task_starts(tasks)
    total = starts[-1]
    if not total:
        raise ConfigError(f"{', '.join(map(str, paths))}: there are no samples")
    found = SampleHashes(
        high=np.zeros(total, np.uint64),
        low=np.zeros(total, np.uint32),
        num_bytes=np.zeros(total, np.float32),
        pictures=np.zeros(total if config.pictures else 0, np.uint64),
        paths=list(map(str, paths)),
        tasks=tasks,
        shared=shared,
        faults=HashFaults(),
        config=config,
    )
    hash_one = functools.partial(_hash_task, config)
    num_workers = max(1, min(config.num_workers, len(tasks)))
    results = LocalProcesses(num_workers).map(hash_one, tasks, what="read samples")
    with contextlib.closing(results):
        for (start, end), result in zip(itertools.pairwise(starts), results, strict=True):
            found.high[start:end], found.low[start:end], found.num_bytes[start:end] = result[:3]
            if config.pictures:
                found.pictures[start:end] = result.pictures
            found.faults.merge(result.faults)
            on_progress(end, total)
    return found


def _tasks(paths: Sequence[Path], config: HashConfig, shared: Counter[str]) -> Iterator[HashTask]:
    """The tasks in the order of their samples; samples of earlier split parts are not read again, but counted."""
    known = {str(path): _split_parts(path, config) for path in paths}
    if len({os.path.realpath(path) for path in known}) < len(paths):
        raise ConfigError(f"{', '.join(map(str, paths))}: a data set is named twice")
    there = list(dict.fromkeys(itertools.chain(*known.values())))
    absent = [part for part in config.split_parts if part not in there]
    if absent:
        raise ConfigError(f"{', '.join(known)}: there is no split part {absent[0]!r}; there is {', '.join(there)}")
    owners: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    for part in config.split_parts or sorted(there, key=LAST_PART.__eq__):
        for path in (path for path, parts in known.items() if part in parts):
            for shard, first, end, offset in _pieces(_opened(path, part, config)):
                taken = owners.setdefault((path, shard), [])
                for begin, stop, owner in _cut(first + offset, end + offset, taken):
                    if owner is not None:
                        shared[f"{path}: {owner} and {part}"] += stop - begin
                        continue
                    step = LINES_AT_ONCE if is_jsonl(path) else stop - begin
                    for start in range(begin, stop, step):
                        yield HashTask(path, part, start - offset, min(start + step, stop) - offset)
                taken.append((first + offset, end + offset, part))


def _split_parts(path: Path, config: HashConfig) -> list[str]:
    if not path.exists():
        raise ConfigError(f"{path}: no such folder or file")
    if not path.is_file():
        return PreparedDataset.open(path, config.limits).split_parts(config.split_config)
    if not is_jsonl(str(path)):
        raise ConfigError(f"{path}: expected a prepared folder or a .jsonl file; name the data sets themselves")
    return list(read_ranges(path, config.split_config, config.limits) or [WHOLE])


def _pieces(records: Records) -> Iterator[tuple[str, int, int, int]]:
    """(name, first, end, offset) of each shard; sample i of the records is number i + offset of that shard or file, and
    may be in several split parts."""
    reader, end = stored_records(records).reader(), 0
    for name, count in zip(records.names, records.counts, strict=True):
        first, end = end, end + count
        if count:
            stored = stored_number(records, first)
            yield name, first, end, stored - reader.shard_of(stored)[0] - first


def _cut(first: int, end: int, taken: Sequence[tuple[int, int, str]]) -> Iterator[tuple[int, int, str | None]]:
    """The range, cut at the taken ranges: (first, end, the split part that took it, or None)."""
    bounds = {first, end}.union(bound for start, stop, _ in taken for bound in (start, stop) if first < bound < end)
    for begin, stop in itertools.pairwise(sorted(bounds)):
        yield begin, stop, next((part for start, last, part in taken if start <= begin < last), None)


@functools.lru_cache(maxsize=256)
def _opened(path: str, split_part: str, config: HashConfig) -> Records:
    """Open the records once in a process for all its tasks."""
    if is_jsonl(path):
        return open_jsonl(path, split_part, split_config=config.split_config, limits=config.limits)
    return PreparedDataset.open(path, config.limits).split(split_part, split_config=config.split_config)


class _Result(NamedTuple):
    high: NDArray[np.uint64]
    low: NDArray[np.uint32]
    num_bytes: NDArray[np.float32]
    pictures: NDArray[np.uint64]
    faults: HashFaults


def _hash_task(config: HashConfig, task: HashTask) -> _Result:
    allow_pixels(config.limits)
    records = _opened(task.path, task.split_part, config)
    wanted = frozenset(config.parts) or None
    samples = BlockCache(reader_of(records), RunCut(BLOCK_SAMPLES, 0), wanted, BlockBudget(HELD_BYTES))
    count = task.end - task.first
    faults = HashFaults()
    high, pictures = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    result = _Result(high, np.zeros(count, np.uint32), np.zeros(count, np.float32), pictures, faults)
    for row, index in enumerate(range(task.first, task.end)):
        try:
            sample = samples.read(index)
        except ConfigError:  # such as a missing package: all samples would fail
            raise
        except ForgottenSampleError as error:
            faults.add("forgotten", str(error))
            continue
        except BridgeDataError as error:
            faults.add("unreadable", str(error))
            continue
        name = f"{task.path}: {sample.shard_name}:{sample.key}"
        if not sample.parts:
            faults.add("empty", name)
            continue
        digest = content_digest(sample.parts)
        result.high[row] = int.from_bytes(digest[:8], "big") or 1  # 0: it was left out
        result.low[row] = int.from_bytes(digest[8:], "big")
        result.num_bytes[row] = sum(map(len, sample.parts.values()))
        if config.pictures:
            result.pictures[row] = _hash_picture(sample.parts, name, config.limits.max_image_pixels, faults)
    return result


def content_digest(parts: dict[str, bytes]) -> bytes:
    """A digest of 96 bits of the names and bytes of `parts`, independent of their stored order."""
    digest = hashlib.blake2b(digest_size=12)
    for name in sorted(parts):
        encoded = name.encode("utf-8", "surrogateescape")
        digest.update(b"%d:%d:%b" % (len(encoded), len(parts[name]), encoded))
        digest.update(parts[name])
    return digest.digest()


def _hash_picture(parts: dict[str, bytes], name: str, max_pixels: int, faults: HashFaults) -> int:
    pictures = [part for part in parts if part.lower().rpartition(".")[2] in IMAGE_EXTENSIONS]
    if not pictures:
        return NO_HASH
    if len(pictures) > 1:
        faults.add("several", f"{name}: {', '.join(pictures)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = picture_hash(parts[pictures[0]], max_pixels)
    except MemoryError:
        raise
    except Exception as error:  # decoders raise various errors for damaged pictures
        faults.add("broken", f"{name}.{pictures[0]}: {type(error).__name__}: {error}")
        return NO_HASH
    if found == NO_HASH:
        faults.add("blank", f"{name}.{pictures[0]}")
    return found
