"""Reading every sample of some data sets once: the digest and number of its bytes, and the hash of its picture.

Reads the paths of data. Returns `SampleRows`: a table on disk with a row for each sample, in a fixed order: by split
part (train last, so that a sample of val comes before its copy in train), data set, shard. A stored sample is read
once, even if several split parts have it; samples that cannot be read or decoded are counted, and the first ones named;
the result does not depend on the number of processes. Memory does not grow with the number of samples.

The digest is BLAKE2b of 96 bits: two of 10^8 different samples have the same one with a probability of 10^-13.
"""

import bisect
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bridge_data.data import Records
from bridge_data.data.blocks import BlockBudget, BlockCache, RunBlocks, bytes_of
from bridge_data.data.jsonl_file import read_ranges
from bridge_data.data.plain_data import as_node
from bridge_data.data.prepared import PreparedDataset
from bridge_data.data.records import counts_of, stored_number, stored_records
from bridge_data.data.withheld import reader_of
from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.errors import BridgeDataError, ConfigError, DatasetError, ForgottenSampleError
from bridge_data.limits import DEFAULT_LIMITS, Limits, allow_pixels
from bridge_data.options import check_at_least
from bridge_data.plan.declared import LoadCache, Reference, Scope
from bridge_data.plan.formats import WHOLE, Opening, format_of, open_source
from bridge_data.plugins.duplicates.hash_groups import MAX_DISTANCE
from bridge_data.plugins.duplicates.picture_hash import NO_HASH, picture_hash
from bridge_data.prepare.executors import LocalProcesses, Progress, no_progress, usual_workers
from bridge_data.prepare.sample_columns import arrow_package

MAX_TASK_SAMPLES = 1 << 16
"""Samples of a shard or file that are one task at most."""

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

_COLUMNS = {
    "number": "int64",
    "source": "int32",
    "shard": "binary",
    "key": "binary",
    "bytes": "int64",
    "digest": "binary",
    "picture": "int64",
}
"""The columns of the rows, with their types in Arrow: the position in the order of all samples, the number of the split
part, and the 64 bits of the picture's hash, if there is one. Names need not be UTF-8."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DuplicateConfig:
    """Which samples are read: those of `split_parts`, in this order (empty: of all, train last). Only `parts` of them
    are compared (empty: all). With `distance`, the first picture among these is compared, too: its hash may differ in
    this many bits."""

    split_parts: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    distance: int | None = None
    num_workers: int = dataclasses.field(default_factory=usual_workers)
    split_config: str | None = None
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_workers")
        if self.distance is not None and not 0 <= self.distance <= MAX_DISTANCE:
            raise ConfigError(f"distance={self.distance}: expected 0 to {MAX_DISTANCE}, the bits of 64 that may differ")


class Part(NamedTuple):
    """A split part of a data set."""

    path: str
    name: str


class HashTask(NamedTuple):
    """Samples `first` to `end` - 1 of a split part; the first is sample `number` of all, and `source` the number of the
    split part."""

    part: Part
    first: int
    end: int
    number: int
    source: int


@dataclasses.dataclass(slots=True)
class HashFaults:
    """How often each kind of `FAULTS` occurred, and messages of the first ones."""

    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def add(self, kind: str, *examples: str, count: int = 1) -> None:
        self.counts[kind] += count
        kept = self.examples.setdefault(kind, [])
        kept += examples[: MAX_EXAMPLES - len(kept)]


@dataclasses.dataclass(frozen=True, slots=True)
class SampleRows:
    """`table` has the rows, in Arrow, mapped from a file; `parts` are what the column `source` numbers. `shared` are
    counts of samples in several split parts, by these parts."""

    table: Any
    parts: Sequence[Part]
    shared: Counter[str]
    faults: HashFaults


def read_rows(
    paths: Sequence[Path], config: DuplicateConfig, folder: Path, *, on_progress: Progress = no_progress
) -> SampleRows:
    """Read the samples of the data at `paths`, and keep a file of their rows in `folder`.

    Raises:
        ConfigError: if there is nothing to read, or a split part is unknown to all.
        DatasetError: if metadata are damaged, or the file cannot be written.
        WorkerError: if a process died.
    """
    _opened.cache_clear()  # data may have been prepared again since
    arrow, file, shared, faults = arrow_package(), folder / "rows.arrow", Counter[str](), HashFaults()
    tasks = list(_tasks(paths, config, shared))
    if not tasks:
        raise ConfigError(f"{', '.join(map(str, paths))}: there are no samples")
    total = tasks[-1].number + tasks[-1].end - tasks[-1].first
    hash_one = functools.partial(_hash_task, config)
    results = LocalProcesses(min(config.num_workers, len(tasks))).map(hash_one, tasks, what="read samples")
    with contextlib.closing(results):
        with _making_room(folder):
            writer = arrow.ipc.new_file(str(file), _schema())
        try:
            for task, (rows, found) in zip(tasks, results, strict=True):
                with _making_room(folder):
                    writer.write(rows)
                for kind, count in found.counts.items():
                    faults.add(kind, *found.examples[kind], count=count)
                on_progress(task.number + task.end - task.first, total)
        finally:
            with _making_room(folder):
                writer.close()
    if faults.counts["empty"] == total:
        raise ConfigError(
            f"{', '.join(map(str, paths))}: no sample has a part {' or '.join(config.parts)} (--parts); "
            "`bridge-data info --samples 3` shows the parts"
        )
    table = arrow.ipc.open_file(arrow.memory_map(str(file))).read_all()
    return SampleRows(table, list(dict.fromkeys(task.part for task in tasks)), shared, faults)


@contextlib.contextmanager
def _making_room(folder: Path) -> Iterator[None]:
    """Turn errors of a disk into a `DatasetError`."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise DatasetError(f"{folder}: cannot be written to: {why}; set TMPDIR to a folder with more space") from error


def _tasks(paths: Sequence[Path], config: DuplicateConfig, shared: Counter[str]) -> Iterator[HashTask]:
    """The tasks in the order of their samples; samples of earlier split parts are not read again, but counted."""
    known = {str(path): _split_parts(path, config) for path in paths}
    if len({os.path.realpath(path) for path in known}) < len(paths):
        raise ConfigError(f"{', '.join(map(str, paths))}: a data set is named twice")
    there = list(dict.fromkeys(itertools.chain(*known.values())))
    absent = [part for part in config.split_parts if part not in there]
    if absent:
        raise ConfigError(f"{', '.join(known)}: there is no split part {absent[0]!r}; there is {', '.join(there)}")
    owners: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    sources: dict[Part, int] = {}
    number = 0
    for name in config.split_parts or sorted(there, key=LAST_PART.__eq__):
        for part in (Part(path, name) for path, parts in known.items() if name in parts):
            pieces = list(_pieces(_opened(part, config)))
            for shard, first, end, offset in pieces:
                taken = owners.get((part.path, shard), [])
                for begin, stop, owner in _cut(first + offset, end + offset, taken):
                    if owner is not None:
                        shared[f"{part.path}: {owner} and {name}"] += stop - begin
                        continue
                    for start in range(begin, stop, MAX_TASK_SAMPLES):
                        last = min(start + MAX_TASK_SAMPLES, stop)
                        source = sources.setdefault(part, len(sources))
                        yield HashTask(part, start - offset, last - offset, number, source)
                        number += last - start
            for shard, first, end, offset in pieces:  # now, as row groups of a table have the name of their file
                owners.setdefault((part.path, shard), []).append((first + offset, end + offset, name))


def _split_parts(path: Path, config: DuplicateConfig) -> list[str]:
    if path.suffix in (".yaml", ".yml") and path.is_file():
        raise ConfigError(f"{path}: is a metadataset or settings: name the data sets themselves")
    found = format_of(str(path))
    if found.name == "folder":
        return PreparedDataset.open(path, config.limits).split_parts(config.split_config)
    if found.name == "jsonl":
        return list(read_ranges(path, config.split_config, config.limits) or [WHOLE])
    return found.splits(path, config.limits)


def _pieces(records: Records) -> Iterator[tuple[str, int, int, int]]:
    """(name, first, end, offset) of each shard; sample i of the records is number i + offset of that shard or file, and
    may be in several split parts."""
    starts, end = [*itertools.accumulate(counts_of(stored_records(records)), initial=0)], 0
    for name, count in records.shards:
        first, end = end, end + count
        if count:
            stored = stored_number(records, first)
            yield name, first, end, stored - starts[bisect.bisect_right(starts, stored) - 1] - first


def _cut(first: int, end: int, taken: Sequence[tuple[int, int, str]]) -> Iterator[tuple[int, int, str | None]]:
    """The range, cut at the taken ranges: (first, end, the split part that took it, or None)."""
    bounds = {first, end}.union(bound for start, stop, _ in taken for bound in (start, stop) if first < bound < end)
    for begin, stop in itertools.pairwise(sorted(bounds)):
        yield begin, stop, next((part for start, last, part in taken if start <= begin < last), None)


@functools.lru_cache(maxsize=256)
def _opened(part: Part, config: DuplicateConfig) -> Records:
    """Open the records once in a process for all its tasks."""
    if format_of(part.path).name == "folder":  # its dataset.yaml, which may be missing, is of no use here
        dataset = PreparedDataset.open(part.path, config.limits)
        return dataset.split(part.name, split_config=config.split_config)
    scope = Scope(split_part=part.name, cache=LoadCache(config.limits))
    named = {} if config.split_config is None else {"split_config": as_node(config.split_config, "--split-config")}
    return open_source(Reference(path=part.path, scope=scope, entries=named), Opening()).records


def _schema() -> Any:
    arrow = arrow_package()
    return arrow.schema([(name, getattr(arrow, kind)()) for name, kind in _COLUMNS.items()])


def _hash_task(config: DuplicateConfig, task: HashTask) -> tuple[Any, HashFaults]:
    allow_pixels(config.limits)
    wanted = frozenset(config.parts) or None
    records = _opened(task.part, config)
    samples = BlockCache(
        records.shards, reader_of(records), RunBlocks(BLOCK_SAMPLES, 0), wanted, BlockBudget(HELD_BYTES)
    )
    rows, faults = [], HashFaults()
    for number, index in enumerate(range(task.first, task.end), task.number):
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
        name = f"{task.part.path}: {sample.shard_name}:{sample.key}"
        parts = {part: _bytes(value) for part, value in sample.parts.items() if wanted is None or part in wanted}
        if not parts:
            faults.add("empty", name)
            continue
        rows.append(
            {
                "number": number,
                "source": task.source,
                "shard": _name_bytes(sample.shard_name),
                "key": _name_bytes(sample.key),
                "bytes": sum(map(len, parts.values())),
                "digest": content_digest(parts),
                "picture": None if config.distance is None else _hash_picture(parts, name, config, faults),
            }
        )
    return arrow_package().RecordBatch.from_pylist(rows, _schema()), faults


def _bytes(value: Any) -> bytes:
    """A part as bytes: tables have values, too."""
    if not hasattr(value, "__array__"):
        return bytes_of(value if isinstance(value, (bytes, str)) else json.dumps(value, default=_text))
    array = np.asarray(value)
    return repr((array.dtype.str, array.shape)).encode() + array.tobytes()


def _text(value: Any) -> str:
    return _bytes(value).hex() if isinstance(value, bytes) or hasattr(value, "__array__") else repr(value)


def _name_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def content_digest(parts: dict[str, bytes]) -> bytes:
    """A digest of 96 bits of the names and bytes of `parts`, independent of their stored order."""
    digest = hashlib.blake2b(digest_size=12)
    for name in sorted(parts):
        encoded = _name_bytes(name)
        digest.update(b"%d:%d:%b" % (len(encoded), len(parts[name]), encoded))
        digest.update(parts[name])
    return digest.digest()


def _hash_picture(parts: dict[str, bytes], name: str, config: DuplicateConfig, faults: HashFaults) -> int | None:
    """The hash of the first picture, as a signed number."""
    pictures = [part for part in parts if part.lower().rpartition(".")[2] in IMAGE_EXTENSIONS]
    if not pictures:
        return None
    if len(pictures) > 1:
        faults.add("several", f"{name}: {', '.join(pictures)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = picture_hash(parts[pictures[0]], config.limits.max_image_pixels)
    except MemoryError:
        raise
    except Exception as error:  # decoders raise various errors for damaged pictures
        faults.add("broken", f"{name}.{pictures[0]}: {type(error).__name__}: {error}")
        return None
    if found == NO_HASH:
        faults.add("blank", f"{name}.{pictures[0]}")
        return None
    return found - (found >> 63 << 64)
