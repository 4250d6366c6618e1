"""The order that a run would have: lanes and ranks, how its samples are mixed, how epochs overlap.

Enters: the plan and the settings of a run. Leaves: figures on the order of each source, and findings. Guarantee:
everything is arithmetic; a setting is proposed only with the figure computed for it.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError
from bridge_data.order import Geometry, Row
from bridge_data.order.chunks import MIN_CHUNKS_PER_LANE, MIN_WINDOW_SIZE, ChunkTable
from bridge_data.order.plan_order import Shuffle
from bridge_data.plan import Plan, Source
from bridge_data.plan.source import together
from bridge_data.tools.doctor.planned_run import Finding, Level, PlannedRun
from bridge_data.tools.mixing import Mixing, Overlap, mixing_of, overlap
from bridge_data.topology import busy_workers, equal_workers

HIGH_INFLATION = 1.5
"""Above this, look for better settings."""

MUCH_OVERLAP = 0.05
"""Share of an epoch that may come twice before the rest has come once."""

MANY_LANES = 128
"""Never propose more lanes per rank than this: each has a packing buffer and a share of the data."""

MAX_SOURCES = 16
"""Sources of a blend that are checked, those with the largest shares."""

_LARGER_BUFFERS = (1, 10, 100)
_SMALLER_SEQUENCES = (1, 4, 16)
MIN_GAIN = 1.2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceOrder:
    """How the samples of a source are dealt and mixed; a step takes `size` samples of it from one lane."""

    source: Source
    size: int
    chunks: ChunkTable
    geometry: Geometry
    mixing: Mixing
    overlap: Overlap


def check_ranks(run: PlannedRun) -> Iterator[Finding]:
    """Whether ranks, lanes and workers fit each other."""
    size, micro = run.step_size, run.micro_batch_size
    try:
        BatchSchedule(size, micro).check(0, run.num_ranks)
    except ConfigError as error:
        per_round = micro * run.num_ranks
        yield Finding(
            code="batch-of-ranks",
            level=Level.STOPS,
            what=str(error),
            change=f"set global_batch_size={math.ceil(size / per_round) * per_round}",
        )
    try:
        config = run.worker_config()
    except ConfigError as error:
        multiple = math.lcm(run.num_lanes or 1, run.num_ranks)
        yield Finding(code="lanes-of-ranks", level=Level.STOPS, what=str(error), change=f"set num_lanes={multiple}")
        return
    lanes = config.num_lanes
    per_rank = lanes // run.num_ranks
    if run.num_workers and (num_busy := busy_workers(per_rank, run.num_workers)) < run.num_workers:
        equal = equal_workers(per_rank, run.num_workers)
        yield Finding(
            code="idle-workers",
            level=Level.SLOWS,
            what=f"a rank has {run.num_workers} workers for {per_rank} lanes: they are as fast as {num_busy:.3g}",
            change=f"set num_workers={equal}, or num_lanes={run.num_ranks * run.num_workers} in a new run",
            gain=f"{run.num_workers} busy workers",
            factor=run.num_workers / num_busy,
        )
    if run.options.trainer.global_batch_size is not None:
        yield from _check_later_batches(run)
    unequal = [number for number in run.later_ranks if lanes % number]
    if unequal:
        multiple = math.lcm(lanes, *unequal)
        listed = " and ".join(map(str, unequal))
        change = f"set num_lanes={multiple} from the beginning"
        if multiple > MANY_LANES * run.num_ranks:
            change = f"choose numbers of ranks that divide {lanes}; only num_lanes={multiple} would do for all of these"
        yield Finding(
            code="lanes-of-later-ranks",
            level=Level.MIXES,
            what=f"{lanes} lanes cannot be shared equally by {listed} ranks: a restore there deals the rest of the "
            "epoch anew, in another order",
            change=change,
            gain="the same order on all of these numbers of ranks",
        )


def _check_later_batches(run: PlannedRun) -> Iterator[Finding]:
    for number in run.later_ranks:
        try:
            BatchSchedule(run.step_size, run.micro_batch_size).check(0, number)
        except ConfigError as error:
            yield Finding(
                code="batch-of-later-ranks",
                level=Level.NOTE,
                what=f"a resume on {number} ranks would be refused: {error}",
                change="choose another global_batch_size or micro_batch_size, or resume on another number of ranks",
            )


def samples_of_lane(run: PlannedRun, num_lanes: int, samples_per_unit: float, share: float) -> int:
    """How many samples of a source with this `share` of draws a step takes from one lane."""
    rounds = max(1.0, run.step_size / run.micro_batch_size / num_lanes)
    return max(1, round(run.micro_batch_size * rounds * samples_per_unit * share))


def order_of(source: Source, num_lanes: int, shuffle: Shuffle, size: int) -> SourceOrder:
    """The order of a source if a step takes `size` samples of it from one lane."""
    geometry = shuffle.geometry(source, num_lanes)
    chunks = ChunkTable(source.records.counts, geometry.chunk_size)
    row = Row(source.records.counts, geometry, key=0, epochs_per_shuffle=together(source.epochs_per_shuffle))
    return SourceOrder(
        source=source,
        size=size,
        chunks=chunks,
        geometry=geometry,
        mixing=mixing_of(row, chunks, min(size, source.num_samples)),
        overlap=overlap(chunks, num_lanes),
    )


def orders_of(plan: Plan, run: PlannedRun, samples_per_unit: float) -> list[SourceOrder]:
    """The order of the sources with the largest shares in the plan, at most `MAX_SOURCES`."""
    lanes = run.worker_config().num_lanes
    shares = sorted(zip(plan.weights or (), plan.sources, strict=True), key=lambda pair: pair[0], reverse=True)
    return [
        order_of(source, lanes, run.options.data.shuffle, samples_of_lane(run, lanes, samples_per_unit, share))
        for share, source in shares[:MAX_SOURCES]
        if share
    ]


def check_order(order: SourceOrder, run: PlannedRun) -> Iterator[Finding]:
    """Possible improvements to the order of a source."""
    if run.options.data.shuffle_buffer_size is None and run.options.data.max_samples_per_sequence is None:
        yield Finding(
            code="not-shuffled",
            level=Level.MIXES,
            what=f"{order.source.name}: the samples of a shard are not shuffled",
            change="set shuffle_buffer_size=10_000 and max_samples_per_sequence=100",
            gain=f"means of batches vary {_mixing(order, run, 10_000, 100).inflation:.2f} times as much as a true "
            f"permutation, not {order.mixing.inflation:.2f}",
            factor=order.mixing.inflation,
        )
        return
    yield from _check_mixing(order, run)
    yield from _check_overlap(order, run)
    source, lanes, wanted = order.source, order.geometry.num_lanes, run.options.data.max_samples_per_sequence
    if wanted is not None and order.geometry.chunk_size * MIN_CHUNKS_PER_LANE < min(wanted, max(source.records.counts)):
        yield Finding(
            code="few-samples",
            level=Level.NOTE,
            what=f"{source.name}: {source.num_samples:,} samples are few for {lanes} lanes: chunks shrink from "
            f"{wanted:,} to {order.geometry.chunk_size:,} samples, so reads are small",
            change=f"set num_lanes={run.num_ranks}, unless the run is to be resized",
        )


def _check_overlap(order: SourceOrder, run: PlannedRun) -> Iterator[Finding]:
    source = order.source
    repeats = order.overlap.mean_repeats / source.num_samples
    if source.epochs_per_shuffle == 1 and repeats > MUCH_OVERLAP:
        length = max(1, order.geometry.chunk_size // 4)
        shuffle = dataclasses.replace(run.options.data.shuffle, max_samples_per_sequence=length)
        better = (
            order_of(source, order.geometry.num_lanes, shuffle, order.size).overlap.mean_repeats / source.num_samples
        )
        if better < repeats:
            yield Finding(
                code="epochs-overlap",
                level=Level.MIXES,
                what=f"{source.name}: about {repeats:.0%} of an epoch come twice before the rest has come once, as "
                f"chunks have {order.chunks.shortest:,} to {order.chunks.longest:,} samples",
                change=f"set max_samples_per_sequence={length}",
                gain=f"{better:.1%} instead of {repeats:.1%}",
                factor=repeats / max(better, 1e-3),
            )


def _check_mixing(order: SourceOrder, run: PlannedRun) -> Iterator[Finding]:
    if order.mixing.inflation <= HIGH_INFLATION or order.source.epochs_per_shuffle is None:
        return
    chunk, window = order.geometry.chunk_size, max(MIN_WINDOW_SIZE, run.options.data.shuffle_buffer_size or 0)
    changes = sorted(itertools.product(_LARGER_BUFFERS, _SMALLER_SEQUENCES), key=math.prod)[1:]
    options = [(window * larger, max(1, chunk // smaller)) for larger, smaller in changes]
    best, (buffer, length) = order.mixing.inflation, (window, chunk)
    for option in options:
        found = _mixing(order, run, *option).inflation
        if found < best:
            best, (buffer, length) = found, option
        if best < MIN_GAIN:
            break
    if order.mixing.inflation < MIN_GAIN * best:
        return
    settings = []
    if buffer > window:
        settings.append(f"shuffle_buffer_size={buffer}")
    if length < chunk:
        settings.append(f"max_samples_per_sequence={length}")
    yield Finding(
        code="batches-of-few-chunks",
        level=Level.MIXES,
        what=f"{order.source.name}: means of batches vary {order.mixing.inflation:.1f} times as much as those of a "
        "true permutation, if the samples of a chunk are alike",
        change=f"set {' and '.join(settings)} (smaller reads)",
        gain=f"{best:.2f} times instead of {order.mixing.inflation:.2f}",
        factor=order.mixing.inflation / best,
    )


def _mixing(order: SourceOrder, run: PlannedRun, buffer: int, length: int) -> Mixing:
    shuffle = dataclasses.replace(run.options.data.shuffle, shuffle_buffer_size=buffer, max_samples_per_sequence=length)
    return order_of(order.source, order.geometry.num_lanes, shuffle, order.size).mixing
