"""Checking a planned run before it starts: this machine, the data, the order, the speed; and what to change.

Reads the data at a path, a `PlannedRun`, and what the kernel says of this machine (the nodes of a job may have other
limits). Returns a `Checkup`: facts, and findings in order of gain; one fault does not hide others.

Without a measurement no shard is read (see `shard_checks`). Shares of sources are those of the plan, with its schedules
of weights; the order matches them to within a few draws a lane. A setting of the order is proposed only with the figure
computed for it. Rates for more workers are estimates, as only the given number was measured.
"""

import contextlib
import copy
import dataclasses
import importlib.metadata
import itertools
import math
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from bridge_data.data.records import counts_of
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.decode.av import AV_EXTENSIONS
from bridge_data.errors import BridgeDataError, ConfigError, counted
from bridge_data.lanes.datasets import training_data, training_plan
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.order import Geometry, Row, SampleRef
from bridge_data.order.plan_order import ShuffleSettings
from bridge_data.order.row import MIN_WINDOW_SIZE, ChunkTable
from bridge_data.plan import Plan, Source
from bridge_data.plan.blending import RepeatedData
from bridge_data.plan.source import num_together
from bridge_data.plugins.doctor.bench import BenchConfig, Figures, measure, num_cores
from bridge_data.plugins.doctor.findings import Finding, Level, in_order_of_gain
from bridge_data.plugins.doctor.mixing import Mixing, mixing_of
from bridge_data.plugins.doctor.planned_run import PlannedRun
from bridge_data.plugins.doctor.shard_checks import ShardsSeen, check_data
from bridge_data.plugins.doctor.source_draws import SourceDraws, draws_of_sources
from bridge_data.runs.training_run import OrderTaskEncoder
from bridge_data.samples.differences import first_difference
from bridge_data.task import TaskEncoder
from bridge_data.topology import busy_workers, equal_workers

_LIBRARIES = ("simplejpeg", "pillow", "av", "torchcodec")
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_SHM = Path("/dev/shm")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimits:
    """What a process may use here. `shm_bytes` is the size of /dev/shm, None if there is none. `libraries` are decoding
    libraries, with their versions."""

    num_cores: float
    memory_bytes: int
    shm_bytes: int | None
    libraries: dict[str, str]

    @classmethod
    def read(cls) -> Self:
        """What this process may use of this machine."""
        return cls(
            num_cores=num_cores(),
            memory_bytes=_memory_bytes(),
            shm_bytes=shutil.disk_usage(_SHM).total if _SHM.is_dir() else None,
            libraries=dict(_versions()),
        )


def check_environment(environment: MachineLimits, run: PlannedRun) -> Iterator[Finding]:
    """What this machine lacks for a run with any data."""
    num_workers = run.ranks_per_node * run.num_workers
    if num_workers > environment.num_cores:
        fitting = max(1, int(environment.num_cores / run.ranks_per_node))
        yield Finding(
            code="few-cores",
            level=Level.SLOWS,
            what=f"{environment.num_cores:g} cores for {num_workers} workers: {counted(run.ranks_per_node, 'rank')} "
            f"× num_workers={run.num_workers}",
            change=f"set num_workers={fitting}" if fitting < run.num_workers else "give the job more cores",
            factor=num_workers / environment.num_cores,
        )
    open_bytes = run.ranks_per_node * max(1, run.num_workers) * run.options.worker.max_open_bytes
    if open_bytes > environment.memory_bytes / 2:
        share = environment.memory_bytes // (4 * run.ranks_per_node * max(1, run.num_workers)) >> 20
        yield Finding(
            code="little-memory",
            level=Level.NOTE,
            what=f"workers may hold {open_bytes / 1e9:.1f} GB of samples that were read ahead, of "
            f"{environment.memory_bytes / 1e9:.1f} GB of memory",
            change=f"set WorkerConfig(max_open_bytes={max(1, share)} << 20)",
        )


def check_codecs(environment: MachineLimits, sources: Collection[Source]) -> Iterator[Finding]:
    """Libraries that the data need and that are not installed."""
    if "av" in environment.libraries:
        return
    for source in sources:
        wanted = [name for name in _part_names(source) if name.rpartition(".")[2].lower() in AV_EXTENSIONS]
        if wanted:
            yield Finding(
                code="no-av",
                level=Level.STOPS,
                what=f"{source.name} has {', '.join(wanted)}, and PyAV is not installed",
                change="run `pip install av`, or leave these parts out of the field map",
            )
            return


def _part_names(source: Source) -> list[str]:
    """The parts read from samples of the first shard, if an index lists them."""
    names = [
        name
        for member in source.members
        if member.records.shards
        for name in member.records.reader().part_names(0) or ()
        if member.parts is None or name in member.parts
    ]
    return sorted(set(names))


def _memory_bytes() -> int:
    """The memory of the machine, or of its share for this control group."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _MEMORY_LIMIT.read_text().strip()
    except OSError:
        return total
    return total if limit == "max" else min(total, int(limit))


def _versions() -> Iterator[tuple[str, str]]:
    for name in _LIBRARIES:
        try:
            yield name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue


RESERVE = 1.1
"""How much faster than needed the data should be."""


def needed_batches_per_s(run: PlannedRun) -> float | None:
    """Micro-batches that a rank needs per second; None if the time of a step is not known."""
    return None if run.batch_s is None else 1 / run.batch_s


def samples_per_unit(figures: Figures | None, run: PlannedRun) -> float:
    """Samples drawn for each sample of a batch (with packing, for each pack), with those that filters skip."""
    if figures is None or not figures.num_samples:
        return 1.0
    return figures.num_samples / (figures.num_batches * run.micro_batch_size)


def check_rate(figures: Figures, run: PlannedRun, environment: MachineLimits) -> Iterator[Finding]:
    """Whether one rank, and all ranks of a machine together, make as many batches as the trainer needs."""
    needed = needed_batches_per_s(run)
    if needed is None or run.step_s is None:
        return
    cores = needed * figures.cpu_s / figures.num_batches * run.ranks_per_node
    of_samples = figures.num_samples / figures.num_batches
    if cores > environment.num_cores:
        yield Finding(
            code="slow-cores",
            level=Level.SLOWS,
            what=f"steps of {run.step_s:g} s need {cores:.1f} cores for the data of "
            f"{counted(run.ranks_per_node, 'rank')}; there are {environment.num_cores:g}",
            change="make the data cheaper (`bridge-data plan --measure 5 --profile` shows what costs most), use more "
            f"cores, or workers on Ray (`workers: ray`) with {math.ceil(cores * RESERVE)} CPUs for each machine of the "
            "job",
            gain=f"steps of {run.step_s:.3g} s instead of at least {run.step_s * cores / environment.num_cores:.3g} s",
            factor=cores / environment.num_cores,
        )
    elif figures.batches_per_s < needed:
        factor = needed / figures.batches_per_s
        lanes = run.worker_config().num_lanes // run.num_ranks
        busy = busy_workers(lanes, max(1, run.num_workers)) * factor * RESERVE
        workers = next((n for n in range(1, lanes + 1) if busy_workers(lanes, n) >= busy), math.ceil(busy))
        yield Finding(
            code="slow-data",
            level=Level.SLOWS,
            what=f"a rank makes {figures.batches_per_s * of_samples:,.0f} samples/s with num_workers={run.num_workers}"
            f", and needs {needed * of_samples:,.0f}",
            change=f"set num_workers={workers}, and measure again",
            gain=f"steps of {run.step_s:.3g} s instead of {run.step_s * factor:.3g} s, if the rate grows with them",
            factor=factor,
        )


HOOKS_S = 10.0
"""For how long hooks are checked, at least: until then the first batch has been made twice, or they are not."""

HOOKS_LANES = 4
"""Of how many lanes the first batch is made twice, at most."""


class _OutOfTime(Exception):
    pass


def check_hooks(dataset: LaneDataset, limit_s: float = HOOKS_S) -> Iterator[Finding]:
    """Whether the first batches of `HOOKS_LANES` lanes are the same when they are made again: what the hooks make of a
    sample must not depend on what they have made before, or a resumed run, and one with other workers, has other
    batches, without an error. No sample is begun after `limit_s`; lanes for which there is no time are left out, but
    for the first."""
    deadline, num_samples = time.monotonic() + limit_s, 0

    def watch(_: SampleRef) -> None:
        nonlocal num_samples
        if time.monotonic() > deadline:
            raise _OutOfTime
        num_samples += 1

    state = dataset.new_state()
    is_checked = False
    for lane in dataset.worker_config.lanes[:HOOKS_LANES]:
        try:  # copied, as an encoder may fill one batch again and again
            first, again = [copy.deepcopy(dataset.lane(lane, state, watch).next().batch) for _ in range(2)]
        except StopIteration:  # hooks have left out all samples of this lane
            continue
        except _OutOfTime:
            if not is_checked:
                yield Finding(
                    code="hooks-not-checked",
                    level=Level.NOTE,
                    what=f"whether hooks make the same again was not checked: the first batch was to be made twice, "
                    f"and in {limit_s:g} s {counted(num_samples, 'sample')} were made for it",
                    change=f"give --measure more than {limit_s:g} seconds, or a smaller packing_buffer_size for this "
                    "check",
                )
            return
        is_checked = True
        found = first_difference(first, again, "batch")
        if found is not None:
            yield Finding(
                code="hooks-differ",
                level=Level.NOTE,
                what=f"the first batch of lane {lane} was made twice, and differs: {found}. So batches depend on what "
                f"the hooks of {type(dataset.task_encoder).__name__} have done before, and a resumed run has others",
                change="draw from the generators of `random`, `np.random` and `torch`, which are seeded for each "
                "sample, not from one of your own or the clock; no @stateless where a hook draws; keep no counts of "
                "samples",
            )
            return


MANY_EPOCHS = 4
"""Repeating text data up to this often is nearly as good as new data. Source: Muennighoff et al., "Scaling
Data-Constrained Language Models" (2023)."""


def check_epochs_of(sources: Sequence[SourceDraws]) -> Iterator[Finding]:
    """Sources that are drawn very often, or never."""
    total = sum(source.draws or 0 for source in sources)
    enough = total <= MANY_EPOCHS * sum(source.num_samples for source in sources)
    for source in sources:
        if source.draws is None or source.epochs is None:
            continue
        if source.draws < 1:
            yield Finding(
                code="never-drawn",
                level=Level.NOTE,
                what=f"{source.name}: no sample of it is drawn in this run",
                change="raise its weight, or leave it out of the blend",
            )
        elif source.epochs > MANY_EPOCHS:
            share = MANY_EPOCHS * source.num_samples / total
            fix = f"lower its weight to {share:.2%} of the draws or less" if enough else "train fewer steps"
            yield Finding(
                code="many-epochs",
                level=Level.NOTE,
                what=f"{source.name}: each sample comes {source.epochs:,.1f} times in this run",
                change=f"{fix}, or add data",
                gain=f"at most {MANY_EPOCHS} epochs",
                factor=source.epochs / MANY_EPOCHS,
            )


HIGH_INFLATION = 1.5
"""Above this, look for better settings."""

MANY_LANES = 128
"""Never propose more lanes per rank than this: each has a packing buffer and a share of the data."""

MAX_SOURCES = 16
"""Sources of a blend that are checked, those with the largest shares."""

_LARGER_BUFFERS = (1, 10, 100)
_SMALLER_SEQUENCES = (1, 4, 16)
MIN_GAIN = 1.2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceOrder:
    """How the samples of a source are assigned and mixed; a step takes `size` samples of it from one lane."""

    source: Source
    size: int
    chunks: ChunkTable
    geometry: Geometry
    mixing: Mixing


def check_ranks(run: PlannedRun, num_lanes: int | None = None) -> Iterator[Finding]:
    """Whether ranks, lanes and workers fit each other; `num_lanes` are those of the data, of which few samples have
    fewer."""
    size, per_round = run.step_size, run.micro_batch_size * run.num_ranks
    try:
        run.schedule.check(0, run.num_ranks)
    except ConfigError as error:
        yield Finding(
            code="batch-of-ranks",
            level=Level.STOPS,
            what=str(error),
            change=f"set global_batch_size={math.ceil(size / per_round) * per_round}"
            if size % per_round
            else "set sizes, and a rampup_batch_size, that the ranks can share",
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
            what=f"a rank has {run.num_workers} workers for {counted(per_rank, 'lane')}: they are as fast as "
            f"{num_busy:.3g}",
            change=f"set num_workers={equal}, or num_lanes={run.num_ranks * run.num_workers} in a new run",
            gain=f"{run.num_workers} busy workers",
            factor=run.num_workers / num_busy,
        )
    if run.options.trainer.global_batch_size is not None:
        yield from _check_later_batches(run)
    lanes = num_lanes or lanes
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
            what=f"{counted(lanes, 'lane')} cannot be shared equally by {listed} ranks: a restore there reshards the "
            "rest of the epoch, in another order",
            change=change,
            gain="the same order on all of these numbers of ranks",
        )


def check_buffers(run: PlannedRun, dataset: LaneDataset) -> Iterator[Finding]:
    """Whether the packing buffers of all lanes hold more than an epoch."""
    options, num_lanes, num_samples = run.options.data, dataset.worker_config.num_lanes, sum(dataset.order.sizes)
    size = options.packing_buffer_size
    if size is None or options.packing == "planned" or size * num_lanes <= num_samples:
        return
    yield Finding(
        code="buffers-beyond-data",
        level=Level.MIXES,
        what=f"the packing buffers of {counted(num_lanes, 'lane')} hold {size * num_lanes} samples, and the data have "
        f"{num_samples}: some come again before others came once",
        change=f"set packing_buffer_size={max(1, num_samples // num_lanes)}, or fewer num_lanes in a new run",
    )


def check_names(run: PlannedRun) -> Iterator[Finding]:
    """Whether there are the folders that are named for tokenizer and image processor; ids of the hub are not asked."""
    for name in ("tokenizer", "image_processor"):
        value = getattr(run.data, name)
        if not isinstance(value, str | os.PathLike):
            continue
        path = Path(value)
        if (path.is_absolute() or str(value).startswith(".")) and not path.exists():
            yield Finding(
                code="missing-folder",
                level=Level.STOPS,
                what=f"{name}: there is no folder {value}",
                change="give the folder to which it was saved (save_pretrained), or its id of the hub",
            )


def _check_later_batches(run: PlannedRun) -> Iterator[Finding]:
    for number in run.later_ranks:
        try:
            BatchSchedule(run.step_size, run.micro_batch_size).check(0, number)
        except ConfigError as error:
            yield Finding(
                code="batch-of-later-ranks",
                level=Level.NOTE,
                what=f"a resume on {counted(number, 'rank')} would be refused: {error}",
                change="choose another global_batch_size or micro_batch_size, or resume on another number of ranks",
            )


def samples_of_lane(run: PlannedRun, num_lanes: int, samples_per_unit: float, share: float) -> int:
    """How many samples of a source with this `share` of draws a step takes from one lane."""
    rounds = max(1.0, run.step_size / run.micro_batch_size / num_lanes)
    return max(1, round(run.micro_batch_size * rounds * samples_per_unit * share))


def order_of(source: Source, num_lanes: int, shuffle: ShuffleSettings, size: int) -> SourceOrder:
    """The order of a source if a step takes `size` samples of it from one lane."""
    geometry = shuffle.geometry(source, num_lanes)
    chunks = ChunkTable(counts_of(source.records), geometry.chunk_size)
    row = Row(counts_of(source.records), geometry, key=0, epochs_per_shuffle=num_together(source.epochs_per_shuffle))
    return SourceOrder(
        source=source,
        size=size,
        chunks=chunks,
        geometry=geometry,
        mixing=mixing_of(row, chunks, min(size, source.num_samples)),
    )


def orders_of(
    dataset: LaneDataset, run: PlannedRun, samples_per_unit: float, shares: Sequence[float]
) -> list[SourceOrder]:
    """The order of the sources with the largest `shares` of the draws, at most `MAX_SOURCES`."""
    lanes = dataset.worker_config.num_lanes
    largest = sorted(zip(shares, dataset.plan.sources, strict=True), key=lambda pair: pair[0], reverse=True)
    return [
        order_of(source, lanes, run.options.data.shuffle, samples_of_lane(run, lanes, samples_per_unit, share))
        for share, source in largest[:MAX_SOURCES]
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
    if order.mixing.inflation <= HIGH_INFLATION or order.source.epochs_per_shuffle is None:
        return
    chunk, window = order.geometry.chunk_size, max(MIN_WINDOW_SIZE, run.options.data.shuffle_buffer_size or 0)
    best, (buffer, length) = order.mixing.inflation, (window, chunk)
    for larger, smaller in sorted(itertools.product(_LARGER_BUFFERS, _SMALLER_SEQUENCES), key=math.prod)[1:]:
        option = window * larger, max(1, chunk // smaller)
        if (found := _mixing(order, run, *option).inflation) < best:
            best, (buffer, length) = found, option
        if best < MIN_GAIN:
            break
    if order.mixing.inflation >= MIN_GAIN * best:
        settings = [f"shuffle_buffer_size={buffer}"] if buffer > window else []
        settings += [f"max_samples_per_sequence={length}"] if length < chunk else []
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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Checkup:
    """The results. `plan` is None if the data cannot be opened, `figures` if nothing was measured. `samples_per_unit`
    is how many samples are drawn for a sample of a batch (with packing, for a pack)."""

    path: str
    run: PlannedRun
    environment: MachineLimits
    findings: list[Finding]
    seen: ShardsSeen
    plan: Plan | None = None
    sources: list[SourceDraws] = dataclasses.field(default_factory=list)
    orders: list[SourceOrder] = dataclasses.field(default_factory=list)
    figures: Figures | None = None
    samples_per_unit: float = 1.0

    @property
    def stops(self) -> bool:
        """Whether something would stop the run."""
        return any(finding.level is Level.STOPS for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {
            "version": 1,
            "path": self.path,
            "run": self.run.to_dict(),
            "environment": dataclasses.asdict(self.environment),
            "shards": dataclasses.asdict(self.seen),
            "sources": [dataclasses.asdict(source) for source in self.sources],
            "orders": [_order_dict(order) for order in self.orders],
            "samples_per_unit": self.samples_per_unit,
            "needed_batches_per_s": needed_batches_per_s(self.run),
            "figures": None if self.figures is None else self.figures.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
            "stops": self.stops,
        }


def examine(
    run: PlannedRun, *, measure_s: float = 0.0, task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None
) -> Checkup:
    """Check this machine, the data of the run and their order, and measure the speed of `task_encoder` (None: the
    plainest) for `measure_s` seconds; 0: not at all."""
    environment, seen = MachineLimits.read(), ShardsSeen()
    findings = [*check_environment(environment, run), *check_names(run)]
    sources, orders, figures, per_unit = [], [], None, 1.0
    of_data: list[Finding] = []
    dataset, plan = _opened(run, task_encoder, of_data)
    if plan is not None:
        with _stopping("data", of_data):
            of_data += [*check_data(plan.sources, seen), *check_codecs(environment, plan.sources)]
            of_data += map(_repeated, plan.repeated)
    findings += [*check_ranks(run, None if dataset is None else dataset.worker_config.num_lanes), *of_data]
    can_run = dataset is not None and not any(finding.level is Level.STOPS for finding in findings)
    if can_run and measure_s:
        with _stopping("loader", findings):
            config = BenchConfig.of(run, task_encoder, measure_s)
            figures = measure(config)
            per_unit = samples_per_unit(figures, run)
            findings += check_rate(figures, run, environment)
            findings += check_hooks(config.dataset(), max(HOOKS_S, measure_s))
    if dataset is not None:
        findings += check_buffers(run, dataset)
        sources = draws_of_sources(dataset, None if run.steps is None else round(run.units(run.steps) * per_unit))
        findings += check_epochs_of(sources)
    if dataset is not None and can_run:
        orders = orders_of(dataset, run, per_unit, [source.share for source in sources])
        findings += [finding for order in orders for finding in check_order(order, run)]
    return Checkup(
        path=str(run.data.path),
        run=run,
        environment=environment,
        findings=in_order_of_gain(findings),
        seen=seen,
        plan=plan,
        sources=sources,
        orders=orders,
        figures=figures,
        samples_per_unit=per_unit,
    )


def samples_of(run: PlannedRun, task_encoder: TaskEncoder[Any, Any, Any, Any] | None = None) -> LaneDataset:
    """What rank 0 draws, as if nothing were packed; of ranks that cannot share the lanes, what one would.

    Raises:
        BridgeDataError: if the data cannot be opened.
    """
    options = run.options.data.without_packing()
    try:
        config = run.worker_config()
    except ConfigError:
        config = run.options.worker
    return training_data(run.data.path, options, config, task_encoder or OrderTaskEncoder())


def _repeated(found: RepeatedData) -> Finding:
    what, _, change = str(found).rpartition(". ")
    return Finding(code="data-repeated", level=Level.NOTE, what=what, change=change)


def _opened(
    run: PlannedRun, task_encoder: TaskEncoder[Any, Any, Any, Any] | None, findings: list[Finding]
) -> tuple[LaneDataset | None, Plan | None]:
    """What rank 0 draws, and the plan, which may be sound though the data set is not; None for what cannot be opened,
    with why in the findings."""
    try:
        dataset = samples_of(run, task_encoder)
        return dataset, dataset.plan
    except BridgeDataError as error:
        findings.append(_failed("data", error))
    with contextlib.suppress(BridgeDataError):
        return None, training_plan(run.data.path, run.options.data)
    return None, None


@contextlib.contextmanager
def _stopping(code: str, findings: list[Finding]) -> Iterator[None]:
    """Add what fails in the block to the findings."""
    try:
        yield
    except BridgeDataError as error:
        findings.append(_failed(code, error))


def _failed(code: str, error: BridgeDataError) -> Finding:
    return Finding(code=code, level=Level.STOPS, what=str(error), change="do what the message says, then check again")


def _order_dict(order: SourceOrder) -> dict[str, Any]:
    return {
        "name": order.source.name,
        "samples_of_a_lane_in_a_step": order.size,
        "geometry": dataclasses.asdict(order.geometry),
        "num_chunks": order.chunks.num_chunks,
        "mixing": dataclasses.asdict(order.mixing),
    }
