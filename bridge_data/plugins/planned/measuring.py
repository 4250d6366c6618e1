"""Measuring: what an encoder makes of every sample, stored as the cost index of the data (see `shards.costs`).

Reads the samples of a path, each once, up to where their length is known (`lanes.sample_costs`); our own encoders
decode no pixels for that. Returns one `Measurement` for each data set and split part. Work is done in lots of samples
by an `Executor`, or in shares by the tasks of a Slurm array; each lot leaves a file, so that a killed run resumes where
it was. Shards that have not changed since the last measurement keep their costs, of which some are measured again to
see that they still hold. Forgotten samples are not read, and measured when they are back. The files are the same
however the work was divided, and appear whole; one process at a time measures the same samples.

Raises `ConfigError` if the encoder cannot measure; `DatasetError` for damaged data, folders that cannot be written, and
if another process is measuring the same; `FatalSampleError` for too many failures in a row, and for kept costs that are
no longer those of the encoder.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridge_data import storage
from bridge_data.data.records import Records, contents_of, count_samples, counts_of, fingerprint_of, split_part_of
from bridge_data.data.withheld import withheld
from bridge_data.errors import DatasetError
from bridge_data.lanes.datasets import validation_data
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.order import SampleRef
from bridge_data.plan import Source
from bridge_data.plan.blending import EmptySplitError
from bridge_data.plan.opening import split_parts
from bridge_data.plugins.planned.costs import (
    COSTS_VARIABLE,
    SUFFIX,
    CostArrays,
    CostFacts,
    arrays_of,
    costs_path,
    known_costs,
    offsets_kind,
    open_costs,
    read_costs,
    shard_stamps,
    spans_of,
    write_costs,
)
from bridge_data.plugins.planned.sample_costs import NUM_CHECKED, CostCheck, costs_of, measuring
from bridge_data.prepare.executors import Executor
from bridge_data.prepare.scan_results import ScanTask
from bridge_data.run_options import DatasetOptions
from bridge_data.storage import Location, atomic
from bridge_data.storage.atomic import replacing
from bridge_data.task import TaskEncoder
from bridge_data.topology import WorkerConfig

_LOTS, _MIN_LOT, _MAX_LOT = 256, 64, 1 << 14
"""A data set is measured in about so many lots, of at least and at most so many samples."""

_LOCK = "lock"

_MAX_REASONS = 20
"""Reasons of skips that are kept for a shard; others are counted as one."""

_MAX_SORTED = 10_000_000
"""Percentiles of more samples are those of so many of them, evenly spaced."""

Encoder = TaskEncoder[Any, Any, Any, Any]
Skips = dict[str, tuple[int, str]]
"""By reason: how many samples were skipped, and the key of the first."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MeasureConfig:
    """How to measure: by `executor`; `task` is the share of the lots to do (None: all that are left, and the index).
    With `rescan`, earlier measurements are not used."""

    executor: Executor
    task: ScanTask | None = None
    rescan: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """The costs of a split part of a data set, in the file at `path`; `num_measured` samples were measured now."""

    name: str
    path: Location
    facts: CostFacts
    num_measured: int

    @property
    def num_samples(self) -> int:
        return sum(count for _, count, _, _ in self.facts.shards)

    @property
    def skips(self) -> Skips:
        """The skipped samples of all shards."""
        return _merged(skips for _, _, _, skips in self.facts.shards)

    def columns(self) -> dict[str, dict[str, float]]:
        """For each column its total, and mean, median, 99th percentile and maximum of the parts."""
        _, (_, columns) = _opened(self.path)
        return {
            name: _figures(column, total)
            for name, column, total in zip(self.facts.names, columns, self.facts.totals, strict=True)
        }


def _figures(column: NDArray[np.uint32], total: int) -> dict[str, float]:
    if not len(column):
        return {"total": 0, "mean": 0.0, "p50": 0, "p99": 0, "max": 0}
    some = column[:: -(-len(column) // _MAX_SORTED)]
    p50, p99 = np.percentile(some, (50, 99), method="inverted_cdf").tolist()
    return {"total": total, "mean": total / len(column), "p50": p50, "p99": p99, "max": int(column.max())}


def measured_sources(
    path: Location, parts: Sequence[str], options: DatasetOptions, given: Mapping[str, Any], encoder: Encoder | None
) -> list[LaneDataset]:
    """A data set for each stored source of the split parts (empty: all) of the data or metadataset at `path`: all its
    samples, without `where` and `subset`. `options` are those of the run, which `given` ones replace."""
    taken = {field.name: getattr(options.without_packing(), field.name) for field in dataclasses.fields(DatasetOptions)}
    options = DatasetOptions(**{**taken, "where": None, "columns": None, **given})
    found: dict[tuple[str, str, str], LaneDataset] = {}
    workers = WorkerConfig.default_worker_config(num_workers=0)
    for part in parts or split_parts(path):
        try:
            dataset = validation_data(str(path), options, workers, encoder, split_part=part)
        except EmptySplitError:
            if parts:
                raise
            continue
        for number in range(len(dataset.plan.sources)):
            made = measuring(dataset.plan.sources[number], dataset.task_encoder, dataset.cache_pool)
            (base,) = made.plan.sources
            name = str(base.records.root), fingerprint_of(base.records), dataset.task_encoder.costs_key(base)
            found.setdefault(name, made)
    return list(found.values())


def measure_source(
    dataset: LaneDataset, config: MeasureConfig, on_progress: Callable[[int, int | None], None]
) -> Measurement | None:
    """Measure the only source of `dataset`, and write its costs; None if `config` is of a share of the work.

    Raises:
        ConfigError, DatasetError, FatalSampleError: see the module.
    """
    (source,), encoder = dataset.plan.sources, dataset.task_encoder
    base, key = source.records, encoder.costs_key(source)
    path = costs_path(base, key)
    with _alone(path.parent / f".measuring-{path.name.removesuffix(SUFFIX)}", shared=config.task is not None) as folder:
        found = _measured(dataset, config, key, folder, on_progress)
    if found is not None and not config.rescan:
        check, gone = CostCheck(dataset.plan.sources, encoder, [open_costs(base, key)]), withheld(base)
        for index in range(0, count_samples(base), max(1, count_samples(base) // NUM_CHECKED)):
            if index not in gone:
                check(SampleRef(0, 0, index), dataset.cache_pool)
    return found


def _measured(
    dataset: LaneDataset,
    config: MeasureConfig,
    key: str,
    folder: Location,
    on_progress: Callable[[int, int | None], None],
) -> Measurement | None:
    """See `measure_source`; `folder` is for lots."""
    (source,), encoder = dataset.plan.sources, dataset.task_encoder
    base = source.records
    path, stamps, gone = costs_path(base, key), shard_stamps(base), withheld(base)
    earlier = [] if config.rescan else [*known_costs(base)]
    known = _Known({file: facts for file, facts in earlier if facts.key == key})
    maker = _LotMaker(dataset=dataset, folder=folder, key=key, stamps=tuple(stamps))
    new = [shard for shard, first in enumerate(_starts(base)[:-1]) if not known.has(stamps[shard], first, gone)]
    total = sum(counts_of(base)[shard] for shard in new)
    kept = dict(earlier).get(path)
    if kept is not None and not new:
        storage.delete_below(maker.folder)
        return Measurement(name=source.name, path=path, facts=kept, num_measured=0)
    if config.rescan and config.task is None:
        with _writing(path.parent):
            maker.delete_lots()
    lots, done = maker.lots(base, new), 0
    own = lots if config.task is None else lots[config.task.index :: config.task.num_tasks]
    with contextlib.closing(config.executor.map(maker.do, own, what=f"measured samples of {base.root}")) as results:
        for count in results:
            done += count
            on_progress(done, total)
    if config.task is not None:
        return None
    known.add_lots(maker, lots, new)
    with _writing(path.parent):
        facts = _assembled(path, source, encoder, stamps, known)
        storage.delete_below(maker.folder)
        for file, other in earlier:
            is_replaced = (other.key, other.split_part) == (key, split_part_of(base))
            if file != path and is_replaced and {stamp for stamp, *_ in other.shards} <= {*stamps}:
                storage.delete(file)
    return Measurement(name=source.name, path=path, facts=facts, num_measured=total)


def _starts(base: Records) -> list[int]:
    """The number of the first sample of each shard, and of all samples."""
    return [0, *itertools.accumulate(counts_of(base))]


@contextlib.contextmanager
def _alone(folder: Location, *, shared: bool) -> Iterator[Location]:
    """The folder, while no other process measures in it, but for those that share the work. A store, and a file system
    without locks, has none."""
    held = None
    if isinstance(folder, Path):
        while held is None:
            with _writing(folder.parent):
                folder.mkdir(parents=True, exist_ok=True)
            try:
                held = atomic.lock(str(folder / _LOCK), atomic.SHARED if shared else atomic.EXCLUSIVE, wait=False)
            except FileNotFoundError:
                continue  # another has just removed the folder
            except OSError:
                break
            if held is None:
                raise DatasetError(
                    f"{folder.parent}: another process is measuring the same samples with the same encoder: wait until "
                    "that has finished, or end it"
                )
    try:
        yield folder
    finally:
        if held is not None:
            os.close(held)


@contextlib.contextmanager
def _writing(folder: Location) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DatasetError(
            f"{folder}: costs cannot be written there: {error}. Name another folder in {COSTS_VARIABLE}, here and "
            "for the runs that read them"
        ) from error


Piece = tuple[int, int, int]
"""Number of a shard, number of a first sample in the data set, number of samples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LotMaker:
    """Measures lots of samples of the only source of `dataset`, each into a file in `folder`."""

    dataset: LaneDataset
    folder: Location
    key: str
    stamps: tuple[str, ...]

    def lots(self, base: Records, shards: Sequence[int]) -> list[tuple[Piece, ...]]:
        """The samples of these shards, in lots whose size depends on the data alone."""
        size = min(_MAX_LOT, max(_MIN_LOT, 1 << (count_samples(base) // _LOTS).bit_length()))
        starts = _starts(base)
        lots: list[tuple[Piece, ...]] = []
        lot: list[Piece] = []
        held = 0
        for shard in shards:
            begin, end = starts[shard], starts[shard + 1]
            while begin < end:
                count = min(end - begin, size - held)
                lot.append((shard, begin, count))
                begin, held = begin + count, held + count
                if held == size:
                    lots.append(tuple(lot))
                    lot, held = [], 0
        return [*lots, tuple(lot)] if lot else lots

    def path(self, lot: Sequence[Piece]) -> Location:
        """The file of a lot, of the samples of it that are not forgotten."""
        gone = self._forgotten
        told = [
            [
                self.stamps[shard],
                begin,
                count,
                [one for one in range(begin, begin + count) if one in gone] if gone else [],
            ]
            for shard, begin, count in lot
        ]
        return self.folder / f"{hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()}{SUFFIX}"

    @functools.cached_property
    def _forgotten(self) -> Any:
        return withheld(self.dataset.plan.sources[0].records)

    def delete_lots(self) -> None:
        """Delete the lots that an earlier run left."""
        if isinstance(self.folder, Path):  # others wait for the lock that is there, too
            for path in self.folder.glob(f"*{SUFFIX}"):
                path.unlink()
        else:
            storage.delete_below(self.folder)

    def do(self, lot: Sequence[Piece]) -> int:
        """Measure a lot, if it has no file. Returns its number of samples."""
        path = self.path(lot)
        if not storage.is_file(path):
            (source,) = self.dataset.plan.sources
            gone, work = self._forgotten, _work_of_thread(self.dataset)
            found = [_measure(work, source, range(begin, begin + count), gone) for _, begin, count in lot]
            costs = [parts for piece, _ in found for parts in piece]
            names = _in_order({name for parts in costs for part in parts for name in part})
            numbers = itertools.chain.from_iterable(range(begin, begin + count) for _, begin, count in lot)
            shards = [
                (self.stamps[shard], len(piece), sum(map(len, piece)), skips)
                for (shard, _, _), (piece, skips) in zip(lot, found, strict=True)
            ]
            facts = CostFacts(
                key=self.key,
                encoder="",
                data="",
                split_part="",
                names=names,
                totals=(),
                shards=tuple(shards),
                forgotten=spans_of(place for place, number in enumerate(numbers) if number in gone),
            )
            output = io.BytesIO()
            write_costs(output, arrays_of(costs, names), facts)
            with _writing(self.folder):
                storage.write(path, output.getvalue(), durable=False)
        return sum(count for _, _, count in lot)


_of_thread = threading.local()


def _work_of_thread(dataset: LaneDataset) -> Any:
    """The work of this thread: where processes cannot be forked, threads measure, and none may use another's."""
    if getattr(_of_thread, "dataset", None) is not dataset:
        _of_thread.dataset, _of_thread.work = dataset, dataset.changed().preencoding_maker()
    return _of_thread.work


def _measure(work: Any, source: Source, samples: range, gone: Any) -> tuple[list[list[Mapping[str, int]]], Skips]:
    """The costs of each part of some samples, and why some have none."""
    costs: list[list[Mapping[str, int]]] = []
    skips: Skips = {}
    with work.hooks:
        for index in samples:
            costs.append([] if index in gone else costs_of(work, index))
            if not costs[-1]:
                stage, why = ("forgotten", "") if index in gone else work.hooks.last_skip
                reason = _reason(stage, why)
                reason = reason if reason in skips or len(skips) < _MAX_REASONS else "other reasons"
                number, first = skips.get(reason) or (0, source.key_or_place(index))
                skips[reason] = number + 1, first
    return costs, skips


def _reason(stage: str, why: str) -> str:
    """The reason without what is of one sample: its key and numbers."""
    return f"{stage}: {re.sub(r'[0-9][0-9.,]*', '#', re.sub(_QUOTED, '…', why))}" if why else stage


_QUOTED = r"'[^']*'|\"[^\"]*\""


def _in_order(names: set[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=lambda name: (name != "tokens", name)))


def _merged(found: Any) -> Skips:
    merged: Skips = {}
    for skips in found:
        for reason, (number, first) in skips.items():
            before, known = merged.get(reason, (0, first))
            merged[reason] = before + number, known
    return merged


class _Known:
    """Costs by shard, in the `files` of earlier measurements and of lots; few of them are open at a time."""

    def __init__(self, files: Mapping[Location, CostFacts]) -> None:
        self.names: set[str] = set()
        self._files: list[tuple[Location, CostFacts]] = []
        self.shards: dict[str, list[tuple[int, int, int, int]]] = {}
        """By stamp, the pieces of the shard: number of the file, number of the shard in it, first sample, samples."""
        for path, facts in files.items():
            self._add(path, facts, {stamp for stamp, *_ in facts.shards} - self.shards.keys())

    def add_lots(self, maker: _LotMaker, lots: Sequence[Sequence[Piece]], shards: Sequence[int]) -> None:
        """Add the results of lots, which are those of all new `shards`."""
        self.shards |= {maker.stamps[shard]: [] for shard in shards}
        for lot in lots:
            maker.do(lot)  # where nothing is locked, another may have finished first, and removed it
            path = maker.path(lot)
            self._add(path, _opened(path)[0], self.shards.keys())

    def _add(self, path: Location, facts: CostFacts, wanted: Set[str]) -> None:
        begin = 0
        for number, (stamp, count, _, _) in enumerate(facts.shards):
            if stamp in wanted:
                self.shards.setdefault(stamp, []).append((len(self._files), number, begin, count))
            begin += count
        self._files.append((path, facts))
        self.names |= {*facts.names}

    def has(self, stamp: str, first: int, gone: Any) -> bool:
        """Whether the costs are known of the shard whose first sample has that number, of all but those in `gone`, the
        samples that are forgotten now."""
        return stamp in self.shards and all(first + place in gone for place in self.forgotten(stamp))

    def forgotten(self, stamp: str) -> Iterator[int]:
        """The samples of a shard that were forgotten when it was measured, numbered from its first."""
        offset = 0
        for file, _, begin, count in self.shards[stamp]:
            for place in self._files[file][1].unmeasured():
                if begin <= place < begin + count:
                    yield place - begin + offset
            offset += count

    def facts_of(self, stamp: str) -> tuple[int, int, Skips]:
        """Samples, parts and skips of a shard."""
        found = [self._files[file][1].shards[number] for file, number, _, _ in self.shards[stamp]]
        return sum(one[1] for one in found), sum(one[2] for one in found), _merged(one[3] for one in found)

    def pieces(self, stamp: str) -> Iterator[tuple[tuple[str, ...], CostArrays]]:
        """The columns of a shard, and its pieces."""
        for file, _, begin, count in self.shards[stamp]:
            facts, (offsets, columns) = self._open(file)
            bounds = offsets[begin : begin + count + 1].astype(np.int64)
            parts = slice(bounds[0], bounds[-1])
            yield facts.names, CostArrays(bounds - bounds[0], [column[parts] for column in columns])

    @functools.lru_cache(maxsize=4)  # noqa: B019  one is made for each data set
    def _open(self, file: int) -> tuple[CostFacts, CostArrays]:
        return _opened(self._files[file][0])


def _opened(path: Location) -> tuple[CostFacts, CostArrays]:
    opened = read_costs(path)
    if opened is None:
        raise DatasetError(f"{path}: is not there, though it was written: do all workers see it under this path?")
    return opened


def _assembled(path: Location, source: Source, encoder: Encoder, stamps: Sequence[str], known: _Known) -> CostFacts:
    """Write the file of all shards, in their order. It is made of files on disk: no step holds all samples."""
    base = source.records
    shards = [(stamp, *known.facts_of(stamp)) for stamp in stamps]
    num_parts = sum(parts for _, _, parts, _ in shards)
    names = _in_order(known.names)
    forgotten = spans_of(
        first + place for first, stamp in zip(_starts(base), stamps, strict=False) for place in known.forgotten(stamp)
    )
    temporary = None if storage.is_remote(path) else str(path.parent)
    with tempfile.TemporaryDirectory(dir=temporary, prefix=".assembling-") as scratch:
        arrays, totals = _arrays_on_disk(Path(scratch), stamps, known, names, offsets_kind(num_parts))
        facts = CostFacts(
            key=encoder.costs_key(source),
            encoder=described(encoder),
            data=fingerprint_of(base),
            split_part=split_part_of(base),
            contents=contents_of(base).more,
            names=names,
            totals=totals,
            shards=tuple(shards),
            forgotten=forgotten,
        )
        if isinstance(path, Path):
            with replacing(path) as file, open(file, "wb") as output:
                write_costs(output, arrays, facts)
        else:
            made = Path(scratch, "made")
            with open(made, "wb") as output:
                write_costs(output, arrays, facts)
            storage.upload(path, made)
    return _opened(path)[0]


def _arrays_on_disk(
    folder: Path, stamps: Sequence[str], known: _Known, names: Sequence[str], kind: type[np.signedinteger[Any]]
) -> tuple[CostArrays, tuple[int, ...]]:
    """The columns of all shards, and their totals. They are written, not filled in a mapped file: of that, a full disk
    would kill the process."""
    kinds: list[Any] = [kind, *(np.uint32 for _ in names)]
    paths = [folder / str(number) for number in range(len(kinds))]
    totals, end = [0] * len(names), 0
    with contextlib.ExitStack() as stack:
        offsets, *columns = (stack.enter_context(open(path, "wb")) for path in paths)
        offsets.write(np.zeros(1, kind).data)
        for kept, (bounds, values) in itertools.chain.from_iterable(map(known.pieces, stamps)):
            offsets.write((bounds[1:] + end).astype(kind).data)
            for number, (name, file) in enumerate(zip(names, columns, strict=True)):
                costs = values[kept.index(name)] if name in kept else np.zeros(int(bounds[-1]), np.uint32)
                file.write(np.ascontiguousarray(costs).data)
                totals[number] += int(costs.sum(dtype=np.int64))
            end += int(bounds[-1])
    filled, *others = (
        np.memmap(path, kind, "r") if path.stat().st_size else np.empty(0, kind)
        for path, kind in zip(paths, kinds, strict=True)
    )
    return CostArrays(filled, others), tuple(totals)


def described(encoder: Encoder) -> str:
    """An encoder in words, for the message that says which ones have measured."""
    tokenizer = getattr(encoder, "tokenizer", None)
    told = f"{type(encoder).__module__}.{type(encoder).__qualname__}"
    return told if tokenizer is None else f"{told} with {type(tokenizer).__name__} of {len(tokenizer):,} tokens"
