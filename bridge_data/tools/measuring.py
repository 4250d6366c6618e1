"""Measuring: what an encoder makes of every sample, stored as the cost index of the data (see `shards.costs`).

Reads the samples of a path, each once, up to where their length is known: cooked and pre-encoded, or encoded where
there is no `preencode_sample`; our own encoders decode no pixels for that. Returns one `Measurement` for each data set
and split part. Work is done in lots of samples by an `Executor`, or in shares by the tasks of a Slurm array; each lot
leaves a file, so that a killed run resumes where it was. Shards that have not changed since the last measurement keep
their costs. The files are the same however the work was divided. Raises `ConfigError` if the encoder cannot measure,
`DatasetError` for damaged data or folders that cannot be written, `FatalSampleError` for too many failures in a row.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.lanes.datasets import validation_data
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.units import Batching
from bridge_data.order import SampleRef
from bridge_data.plan import Plan, Source
from bridge_data.plan.blending import EmptySplitError
from bridge_data.plan.opening import split_parts
from bridge_data.prepare.executors import Executor
from bridge_data.prepare.scan_results import ScanTask
from bridge_data.run_options import DatasetOptions
from bridge_data.shards.costs import (
    COSTS_VARIABLE,
    CostArrays,
    CostFacts,
    arrays_of,
    costs_folder,
    costs_path,
    known_costs,
    offsets_kind,
    read_costs,
    shard_stamps,
    write_costs,
)
from bridge_data.shards.records import Records, fingerprint_of, newest_forgotten, stored_records
from bridge_data.storage import Location
from bridge_data.storage.atomic import replacing
from bridge_data.storage.locations import delete_below
from bridge_data.storage.remote import delete
from bridge_data.storage.remote import write as write_object
from bridge_data.task import TaskEncoder, is_overridden
from bridge_data.topology import WorkerConfig

_LOTS, _MIN_LOT, _MAX_LOT = 256, 64, 1 << 14
"""A data set is measured in about so many lots, of at least and at most so many samples."""

_BLOCK = 64
"""Samples read together, if they are small."""

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

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "name": self.name,
            "path": str(self.path),
            "key": self.facts.key,
            "num_samples": self.num_samples,
            "num_measured": self.num_measured,
            "columns": self.columns(),
            "skipped": [{"reason": why, "samples": n, "first": key} for why, (n, key) in self.skips.items()],
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
    taken = {field.name: getattr(options, field.name) for field in dataclasses.fields(DatasetOptions)}
    options = DatasetOptions(
        **{**taken, "where": None, "columns": None, "packing_buffer_size": None, "packing": "online", **given}
    )
    found: dict[tuple[str, str], LaneDataset] = {}
    workers = WorkerConfig.default_worker_config(num_workers=0)
    for part in parts or split_parts(path):
        try:
            dataset = validation_data(str(path), options, workers, encoder, split_part=part)
        except EmptySplitError:
            if parts:
                raise
            continue
        hooks = "select_samples_to_pack", "pack_selected_samples"
        packs = all(is_overridden(dataset.task_encoder, hook) for hook in hooks)
        for source in dataset.plan.sources:
            base = dataclasses.replace(source, records=stored_records(source.records))
            name = fingerprint_of(base.records), dataset.task_encoder.costs_key(base)
            if name not in found:
                found[name] = LaneDataset(
                    Plan(base, (base,), None),
                    shuffle=None,
                    batching=Batching(batch_size=_BLOCK, packing_buffer_size=1 if packs else None),
                    task_encoder=dataset.task_encoder,
                    worker_config=workers,
                )
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
    path, stamps = costs_path(base, key), shard_stamps(base)
    earlier = [] if config.rescan else [*known_costs(base)]
    known = _Known({file: facts for file, facts in earlier if facts.key == key})
    new = [shard for shard, stamp in enumerate(stamps) if stamp not in known.shards]
    maker = _LotMaker(dataset=dataset, folder=costs_folder(base) / f".measuring-{key}", key=key, stamps=tuple(stamps))
    total = sum(base.counts[shard] for shard in new)
    kept = dict(earlier).get(path)
    if kept is not None and not new:
        return Measurement(name=source.name, path=path, facts=kept, num_measured=0)
    with _writing(path.parent):
        if config.rescan and config.task is None:
            delete_below(maker.folder)
        for folder in (path.parent, maker.folder):
            _make_folder(folder)
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
        delete_below(maker.folder)
        for file, other in earlier:
            if file != path and other.key == key and {stamp for stamp, *_ in other.shards} <= {*stamps}:
                delete(str(file)) if storage.is_remote(file) else Path(file).unlink()
    return Measurement(name=source.name, path=path, facts=facts, num_measured=total)


@contextlib.contextmanager
def _writing(folder: Location) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DatasetError(
            f"{folder}: costs cannot be written there: {error}. Name another folder as --out, and in {COSTS_VARIABLE} "
            "for the runs that read them"
        ) from error


def _make_folder(folder: Location) -> None:
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)


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
        size = min(_MAX_LOT, max(_MIN_LOT, 1 << (base.num_samples // _LOTS).bit_length()))
        starts = [0, *itertools.accumulate(base.counts)]
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
        """The file of a lot."""
        told = json.dumps([[self.stamps[shard], begin, count] for shard, begin, count in lot])
        return self.folder / f"{hashlib.blake2b(told.encode(), digest_size=16).hexdigest()}.costs"

    def do(self, lot: Sequence[Piece]) -> int:
        """Measure a lot, if it has no file. Returns its number of samples."""
        path = self.path(lot)
        if not storage.is_file(path):
            (source,) = self.dataset.plan.sources
            gone, work = newest_forgotten(source.records), _work_of_thread(self.dataset)
            found = [_measure(work, source, range(begin, begin + count), gone) for _, begin, count in lot]
            costs = [parts for piece, _ in found for parts in piece]
            names = _in_order({name for parts in costs for part in parts for name in part})
            shards = [
                (self.stamps[shard], len(piece), sum(map(len, piece)), skips)
                for (shard, _, _), (piece, skips) in zip(lot, found, strict=True)
            ]
            facts = CostFacts(
                key=self.key, encoder="", data="", split_part="", names=names, totals=(), shards=tuple(shards)
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
        _of_thread.dataset, _of_thread.work = dataset, dataset.changed().preencoding()
    return _of_thread.work


def _measure(work: Any, source: Source, samples: range, gone: Any) -> tuple[list[list[Mapping[str, int]]], Skips]:
    """The costs of each part of some samples, and why some have none."""
    costs: list[list[Mapping[str, int]]] = []
    skips: Skips = {}
    encoder = work.hooks.encoder
    with work.hooks:
        for index in samples:
            parts = [] if index in gone else work.load(SampleRef(0, 0, index))
            costs.append([encoder.costs(part) for _, part in parts])
            if not parts:
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
    temporary = None if storage.is_remote(path) else str(path.parent)
    with tempfile.TemporaryDirectory(dir=temporary, prefix=".assembling-") as scratch:
        offsets = _mapped(scratch, "offsets", base.num_samples + 1, offsets_kind(num_parts))
        columns = [_mapped(scratch, str(number), num_parts, np.uint32) for number in range(len(names))]
        offsets[0] = sample = part = 0
        totals = [0] * len(names)
        for kept, (bounds, values) in itertools.chain.from_iterable(map(known.pieces, stamps)):
            count, end = len(bounds) - 1, part + int(bounds[-1])
            offsets[sample + 1 : sample + count + 1] = bounds[1:] + part
            for number, name in enumerate(names):
                if name in kept:
                    columns[number][part:end] = values[kept.index(name)]
                    totals[number] += int(values[kept.index(name)].sum(dtype=np.int64))
            sample, part = sample + count, end
        facts = CostFacts(
            key=encoder.costs_key(source),
            encoder=described(encoder),
            data=fingerprint_of(base),
            split_part=base.split_part,
            names=names,
            totals=tuple(totals),
            shards=tuple(shards),
        )
        if isinstance(path, Path):
            with replacing(path) as file, open(file, "wb") as output:
                write_costs(output, CostArrays(offsets, columns), facts)
        else:
            made = Path(scratch, "made")
            with open(made, "wb") as output:
                write_costs(output, CostArrays(offsets, columns), facts)
            write_object(str(path), made)
    return _opened(path)[0]


def _mapped(folder: str, name: str, size: int, kind: Any) -> NDArray[Any]:
    made: NDArray[Any] = np.memmap(Path(folder, name), kind, "w+", shape=(max(1, size),))[:size]
    return made


def described(encoder: Encoder) -> str:
    """An encoder in words, for the message that says which ones have measured."""
    tokenizer = getattr(encoder, "tokenizer", None)
    told = f"{type(encoder).__module__}.{type(encoder).__qualname__}"
    return told if tokenizer is None else f"{told} with {type(tokenizer).__name__} of {len(tokenizer):,} tokens"
