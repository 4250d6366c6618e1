"""The loader: the batches of a rank in the order of the job, and a state that can be saved at any time.

Reads a data set of lanes. Returns the same batches for any number of workers of the same lanes; `save_state_rank` is
the position after the last batch handed out, without what was prefetched, and asks no worker.

Micro-batch m of the job is made by lane `m mod num_lanes`, and rank r of D gets those with `m mod D == r`, but for
those that are skipped. A `SavableDataLoader` takes results of lanes from its pool, in the order of a `Position`; an
`Iteration` is one pass; a `Meter` counts what is handed out, and the time that the trainer waits.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import functools
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from bridge_data.counts import NO_COUNTS, NONE_SLOWEST, BatchCounts, CountValues, summed
from bridge_data.errors import DatasetError, WorkerError, no_iterator, no_random_access
from bridge_data.extensions import Feature
from bridge_data.lanes.lane import Produced
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.later import profiler, torch
from bridge_data.loader import pinning
from bridge_data.loader.even_ends import EvenEnds
from bridge_data.loader.lane_pool import Ended, InProcessPool, LanePool, LaneSchedule, Pin
from bridge_data.loader.metrics import LoaderMetrics, SlowestSample, epochs_of, of_all_ranks, resident_bytes
from bridge_data.loader.rank_states import broadcast_state, gather_rank_states
from bridge_data.order import SampleRef
from bridge_data.order.extras import Recorder
from bridge_data.order.state import LaneState, LoaderState, as_one_value
from bridge_data.order.step_skips import StepSkips
from bridge_data.run_options import LoaderConfig, PoolOptions
from bridge_data.samples.collation import with_tensors
from bridge_data.task import FAILED, TRUNCATED
from bridge_data.topology import WorkerConfig

logger = logging.getLogger("bridge_data")

T = TypeVar("T")

SKIPPED = "skip_steps"
"""The stage under which samples of discarded micro-batches are counted."""

LATE_STATES = Feature[Callable[[], None]]("late_states")
"""Warns if what asks for the state of a loader without a length has fetched batches ahead of those that were used."""

_NONE_LEFT = object()

_MAX_COUNTED = 1 << 8
"""Maximum number of batches whose counts wait to be summed up."""


def open_pool(dataset: LaneDataset, config: LoaderConfig, pin: Pin | None = None) -> LanePool:
    """What runs the lanes of a loader with these options: this process if there are no workers, worker processes, or
    the pool that the option `workers` names; with `pin`, batches come pinned.

    Raises:
        WorkerError: if workers cannot be started as asked.
    """
    ranks, workers = dataset.worker_config, config.workers
    pool: LanePool | None = workers.open_pool(dataset, config) if isinstance(workers, PoolOptions) else None
    if pool is None:
        if not ranks.num_workers:
            if ranks.rank == 0 and (unused := config.set_for_workers()):
                _tell_of_no_workers(", ".join(unused))
            return InProcessPool(dataset, pin)
        from bridge_data.loader.workers.worker_pool import WorkerPool  # here: not needed without workers

        pool = WorkerPool(dataset, min(ranks.num_workers, len(ranks.lanes)), config)
    return pool if pin is None else pinning.PinningPool(pool, pin)


@functools.cache  # so that it is logged once
def _tell_of_no_workers(unused: str) -> None:
    logger.warning(
        "a loader has no workers (num_workers=0), so these options have no effect on it: %s. They are of workers: set "
        "num_workers, or leave them out",
        unused,
    )


class SavableDataLoader:
    """Iterates over the batches of this rank. `iter()` continues where the last iteration stopped.

    An iteration ends after `virtual_epoch_length` batches, or when all lanes of the rank have ended. In the latter case
    the next one starts with the first batch; so does a state saved at the end. Use it from one thread at a time.

    Raises:
        WorkerError: if workers cannot be started as asked.
    """

    is_within_step = False
    """Whether the last batch came with the state before it, as the rest of its training step is still to come. False:
    each batch comes with the state after it."""
    is_idle = False
    """Whether this rank gets no batches. False: it gets those of its own lanes."""

    def __init__(self, dataset: LaneDataset, config: LoaderConfig | None = None) -> None:
        self.dataset = dataset
        self.config = config or LoaderConfig()
        self.meter = Meter(dataset.worker_config.rank)
        self.skipped = self.meter.skipped
        """Samples skipped on the way to the batches handed out so far, by stage."""
        opener = functools.partial(open_pool, dataset, self.config)
        self.even_ends = None if self.config.ends == "uneven" else EvenEnds(dataset, opener)
        """Has the ranks end together; counts the batches that this rank got in place of its own."""
        self._recorders = dict(self._opened_recorders())
        """By the name of the feature, what follows the batches that are handed out."""
        self._pin = pinning.pinned if self.config.pin_memory and pinning.can_pin() else None
        self._in_sync = _InSync()
        self._fetched: Produced[Any] | None = None
        self._position: Position
        self._go_to(dataset.new_state())
        self._owner = os.getpid()
        self._warn_of_idle_workers()
        self._pool = open_pool(dataset, self.config, self._pin)
        self._close = weakref.finalize(self, _close_in, self._owner, self._pool, self.meter)

    __getitem__ = no_random_access
    __next__ = no_iterator

    def __iter__(self) -> Iterator[Any]:
        return Iteration(self)

    def __len__(self) -> int:
        """The batches of a pass; of endless data, of an epoch. See `LaneDataset.__len__` for when it is exact.

        Raises:
            TypeError: without `virtual_epoch_length`, if samples are packed or grouped, or hooks are generators.
        """
        if not self.dataset.passes.has_length:
            raise TypeError(
                "the length of this loader is not known before it is read, because of packing, of hooks that return "
                "generators, or of batch_group_criterion. Set virtual_epoch_length, or count batches; "
                "len(loader.dataset) is an estimate, which counts samples"
            )
        return self.dataset.passes.num_batches(
            even=self.even_ends is not None, num_lanes=self._position.state.num_lanes
        )

    def __bool__(self) -> bool:
        return True  # also if this rank has no batches

    def metrics(self, *, of_job: bool = False) -> LoaderMetrics:
        """Counts since this loader was made; `of_job`: of all data-parallel ranks, which must all call it."""
        pool = self._pool
        own = self.meter.measured(self.dataset, self._position.state, pool.processes(), pool.num_restarts)
        return of_all_ranks(own, self.dataset.worker_config) if of_job else own

    @property
    def truncated(self) -> int:
        """Samples that were too long, and cut: by `Packing(overlong="truncate")`, or by an encoder of this package."""
        return self.meter.num_truncated

    def can_restore_sample(self) -> bool:
        """True: any sample, pack or batch can be made again; see `restore_sample`."""
        return True

    def save_state_rank(self) -> dict[str, Any]:
        """The position after the last batch handed out, as a plain dict (`json` and `weights_only` loads take it)."""
        return self.snapshot().to_dict()

    def snapshot(self) -> LoaderState:
        """The state of `save_state_rank` as an object, cheap enough for each batch: not for files, but for this job."""
        for recorder in self._recorders.values():
            recorder.save()
        return self._position.state

    def restore_state_rank(self, state: LoaderState | dict[str, Any], *, strict: bool = True) -> None:
        """Go to a saved position, of this rank or merged from all; batches prefetched meanwhile are dropped.

        Without `strict`, weights, added data sets and the batch size may differ; differences are logged.

        Raises:
            StateError: if the state is of other data or settings, or lacks lanes of this rank.
        """
        self._go_to(self.dataset.restored_state(state, strict=strict))
        # Of several ranks that end unevenly, another may have batches left: then the pass ends here without one.
        self._position.may_be_over = self.even_ends is not None or self.dataset.worker_config.world_size == 1
        self._warn_of_idle_workers()

    def state_dict(self) -> dict[str, Any]:
        """The state of `save_state_rank` as one value, for trainers and `torch.distributed.checkpoint`."""
        if not self.dataset.passes.has_length and (warn_if_late := LATE_STATES.find()) is not None:
            warn_if_late()
        return as_one_value(self.save_state_rank())

    load_state_dict = restore_state_rank

    def save_state_global(self, global_dst_rank: int = 0) -> list[dict[str, Any]] | None:
        """The states of all data-parallel ranks, in their order, on the process `global_dst_rank`, else None. All ranks
        call it. `merge_states` makes one state of them.

        Raises:
            StateError: there, if the ranks are not at the same step.
        """
        return gather_rank_states(self.snapshot(), self.dataset.worker_config, global_dst_rank, self.dataset.extras)

    def restore_state_global(
        self, state: dict[str, Any] | list[dict[str, Any]] | None, *, src_rank: int | None = None, strict: bool = True
    ) -> None:
        """Restore what `save_state_global` returned, on any number of ranks, or a merged state. All ranks call it, each
        with all of it; with `src_rank`, only the process of that global rank needs to have it.

        Raises:
            StateError: if the state is of other data or settings, or not complete.
        """
        self.restore_state_rank(broadcast_state(state, self.dataset.worker_config, src_rank), strict=strict)

    def restore_sample(self, key: Any) -> Any:
        """The batch, pack or sample with the `__restore_key__` `key`; the position stays. Hooks run in this process.

        Raises:
            ConfigError: if the key is invalid, or of other data.
            SampleError: if the hooks skip it.
        """
        restored = with_tensors(self.dataset.restore_sample(key))
        return restored if self._pin is None else self._pin(restored)

    def wait_for_workers(self, timeout_s: float = 300) -> bool:
        """Wait until the workers have loaded the dataset, as the first batch does; False if that takes longer, or there
        are none.

        Raises:
            WorkerError: if a worker cannot load it.
        """
        with self._in_sync:
            return self._pool.wait_ready(timeout_s)

    def close(self) -> None:
        """End the worker processes. Batches handed out stay valid, the state can be saved, iteration is over."""
        for recorder in self._recorders.values():
            recorder.close()
        self._recorders = {}
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened_recorders(self) -> Iterator[tuple[str, Recorder]]:
        for extra in self.dataset.extras:
            options = self.config.options_of_extras
            asked = getattr(self.config, options[extra.name]) if extra.name in options else None
            if (recorder := extra.recorder(asked, self.dataset.worker_config)) is not None:
                yield extra.name, recorder

    def _before_take(self) -> None:
        """Check that this process may take a batch now; a derived class may meet the other ranks before the first."""
        if os.getpid() != self._owner:
            raise WorkerError(f"this loader belongs to process {self._owner}; make another one in this process")
        if not self._close.alive:
            raise WorkerError("this loader is closed")

    def _fetch(self) -> Produced[Any] | None:
        """The next batch, which stays the next one until `_hand_out`; None at the end of all lanes."""
        position = self._position
        while self._fetched is None and (lane := position.turn()) is not None:
            if not self._in_sync.holds:
                lanes = position.lanes()
                for recorder in self._recorders.values():
                    recorder.begin(position.state)
                self._pool.begin(lanes, position.state)
                self._in_sync.holds = True
                continue
            with self._in_sync:
                result = self._pool.take(lane)
                if result.skipped:
                    self.meter.count_skips(result.skipped)
                if isinstance(result, Ended):
                    position.end_lane(result.state)
                elif position.is_skipped:  # made, so that hooks, packs and pending samples are as without the skip
                    self.meter.count_skips({SKIPPED: BatchCounts(*result.counts).samples})
                    position.discard(result.state)
                else:
                    self._fetched = result
        return self._fetched

    def _hand_out(self, result: Produced[Any]) -> Any:
        """The batch that was fetched, noted as handed out."""
        with self._in_sync:
            self._fetched = None
            for name, recorder in self._recorders.items():
                recorder.note(self._position.index, result.notes.get(name))
            self._position.advance(result.state)
            self.meter.note(result.counts, result.ready_batches, result.ready_slots)
        return result.batch

    def _take(self) -> Any:
        """The next batch of this rank, an empty one where only others have one; or `_NONE_LEFT`."""
        position, ends = self._position, self.even_ends
        if ends is None:
            result = self._fetch()
            return _NONE_LEFT if result is None else self._hand_out(result)
        result = ends.fetched(self._fetch)
        own = (None, None) if result is None else (result.batch, position.next_index())
        step = ends.step(position.state.micro_batch_index, *own)
        if step is None:
            return _NONE_LEFT
        if step.filling is None:
            assert result is not None
            return self._hand_out(result)
        position.pass_over(step.end)
        return step.filling

    def _rewind(self, *, within_pass: bool = False) -> None:
        """Go to the first batch of finite data, `within_pass` as a part of this pass."""
        before = self._position.state
        state = self.dataset.new_state(before.num_lanes)
        self._go_to(self.dataset.repeated_state(state, before) if within_pass else state)

    def _go_to(self, state: LoaderState) -> None:
        dataset = self.dataset
        self._in_sync.holds = False
        self._fetched = None
        if self.even_ends is not None:
            self.even_ends.begin(state)
        self._position = Position(dataset.worker_config, state, dataset.virtual_epoch_length)

    def _warn_of_idle_workers(self) -> None:
        if (config := self.dataset.worker_config).num_workers:
            config.warn_of_idle_workers(self._position.state.num_lanes)


class _InSync:
    """Whether the pool and the recorders go on from where the position is. The pool takes batches ahead, so it has an
    offset of its own in the lanes, as recorders have in what they note. Whatever changes one of these is done `with`
    this: it does not hold meanwhile, nor afterwards if that was interrupted, at whichever line, or failed. Then all
    begin anew at the position, so no batch is lost, and none comes twice."""

    def __init__(self) -> None:
        self.holds = self._held = False

    def __enter__(self) -> None:
        self._held, self.holds = self.holds, False

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.holds = self._held


class Meter:
    """Counts what one rank gets, what was skipped on the way, and how long it waits, since its loader
    was made."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.batches = 0
        self._counted: tuple[CountValues, list[CountValues]] = NO_COUNTS, []  # summed up, and since
        self._ready_batches = self._ready_slots = 0
        self.skipped: dict[str, int] = {}
        """Samples skipped, by stage."""
        self.num_truncated = self.num_failed = 0
        self.elapsed_s = self.wait_s = 0.0
        self._slowest_key = NONE_SLOWEST, ""  # the slowest sample whose key was read last, and its key

    def count_skips(self, skipped: Mapping[str, int]) -> None:
        """Count what a lane has skipped since its last batch."""
        for stage, count in skipped.items():
            if stage == TRUNCATED:
                self.num_truncated += count
            elif stage == FAILED:
                self.num_failed += count
            else:
                self.skipped[stage] = self.skipped.get(stage, 0) + count

    def note(self, counts: CountValues, ready_batches: int, ready_slots: int) -> None:
        """Count a batch that was handed out; the numbers are those of its `Produced`."""
        self.batches += 1
        self._ready_batches += ready_batches
        self._ready_slots += ready_slots
        _, counted = self._counted
        counted.append(counts)
        if len(counted) == _MAX_COUNTED:  # summing many together costs little
            self._counted = self._sums(), []

    def _sums(self) -> CountValues:
        """The sums over all batches noted. Any thread may call it."""
        before, counted = self._counted
        return summed([before, *counted])

    def measured(
        self, dataset: LaneDataset, state: LoaderState, workers: Sequence[int], num_restarts: int
    ) -> LoaderMetrics:
        """The metrics of this rank, at the position `state`, with the process ids of `workers`, and how often one was
        replaced."""
        counts = dataclasses.asdict(BatchCounts(*self._sums()))
        return LoaderMetrics(
            elapsed_s=self.elapsed_s,
            wait_s=self.wait_s,
            batches=self.batches,
            slowest=self._slowest(dataset, counts.pop("slowest")),
            others=collections.Counter(counts.pop("others")),
            **counts,
            skipped=dict(self.skipped),
            failed=self.num_failed,
            truncated=self.num_truncated,
            worker_restarts=num_restarts,
            ready_batches=self._ready_batches,
            ready_slots=self._ready_slots,
            epochs=epochs_of(state, dataset),
            trainer_bytes=resident_bytes(os.getpid()),
            workers_bytes=sum(map(resident_bytes, workers)),
        )

    def _slowest(self, dataset: LaneDataset, slowest: tuple[int, int, int, int]) -> SlowestSample | None:
        took_ns, number, epoch, index = slowest
        if not took_ns:
            return None
        source = dataset.plan.sources[number]
        if self._slowest_key[0] != slowest:
            try:
                key = source.records.reader().read(index, ()).full_key
            except DatasetError:
                key = dataset.describe(SampleRef(number, epoch, index))
            self._slowest_key = slowest, key
        return SlowestSample(key=self._slowest_key[1], source=source.name, seconds=took_ns / 1e9)

    def sum_up(self) -> None:
        """Log, at the end, how many samples were skipped, if some of them failed."""
        if self.num_failed:
            logger.warning(
                "rank %d skipped %d samples in all (%s); of these, %d failed: see the errors logged before",
                self._rank,
                sum(self.skipped.values()),
                ", ".join(f"{count} in {stage}" for stage, count in sorted(self.skipped.items())),
                self.num_failed,
            )


class Timed(Iterator[T]):
    """An iteration whose batches come from `_next`. Reports to `meter` how long they and the steps between take."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._last_s: float | None = None
        self._is_profiled: Callable[[], bool] | None = None

    @abc.abstractmethod
    def _next(self) -> T:
        """The next batch; `StopIteration` after the last one."""

    def __next__(self) -> T:
        clock, meter = time.perf_counter, self._meter
        begun_s = clock()
        try:
            is_profiled = self._is_profiled = self._is_profiled or profiler()
            if is_profiled is not None and is_profiled():
                with torch.profiler.record_function("bridge_data.wait"):
                    return self._next()
            return self._next()
        finally:
            now_s = clock()
            meter.wait_s += now_s - begun_s
            meter.elapsed_s += now_s - (begun_s if self._last_s is None else self._last_s)
            self._last_s = now_s


class Iteration(Timed[Any]):
    """One pass, whose length `LaneDataset.passes` knows: to the end of the virtual epoch, or of all lanes, which finite
    data that are repeated begin again. It goes on with the pass that the loader is in; if that turns out to have been
    over, it is the next one."""

    def __init__(self, loader: SavableDataLoader) -> None:
        super().__init__(loader.meter)
        self._loader, self._has_begun, self._is_over = loader, False, False

    def _next(self) -> Any:
        if self._is_over:
            raise StopIteration
        loader = self._loader
        loader._before_take()
        may_be_over = not self._has_begun and self._begin()
        batch = loader._take()
        if batch is _NONE_LEFT:
            before, is_even = loader._position.state, loader.even_ends is not None
            is_repeated = loader.dataset.passes.is_repeated_after(before, even=is_even)
            if is_repeated or may_be_over:
                loader._rewind(within_pass=is_repeated)
                batch = loader._take()
        position = loader._position
        if batch is _NONE_LEFT:
            position.end_pass()
            loader.dataset.passes.note_end(position.state)
            self._is_over = True
            raise StopIteration
        self._is_over = position.is_at_virtual_epoch
        if self._is_over and loader.dataset.begins_anew:
            position.end_pass()
        return batch

    def _begin(self) -> bool:
        """Begin a pass, or go on with one. Returns whether that may be over: it is known only once nothing is left."""
        loader = self._loader
        loader._position.check_skips(loader.dataset.skips)
        if loader._position.state.ended:
            loader._rewind()
        self._has_begun = True
        return loader._position.may_be_over


class _Now(NamedTuple):
    """The fields of a state that turns change."""

    lanes: dict[int, LaneState]
    micro_batch_index: int
    epoch_batches: int
    ended: bool


class Position:
    """Where one rank is in the job's sequence of micro-batches: whose turn it is among its lanes, without those
    that have ended, and `state`, which is what to save at any time."""

    def __init__(self, config: WorkerConfig, state: LoaderState, virtual_epoch_length: int = 0) -> None:
        self._rank, self._world_size = config.rank, config.world_size
        self._epoch_length = virtual_epoch_length
        self._schedule, self._has_checked_skips = LaneSchedule(state, state.lanes), False
        self._began_with = state
        """The state with which it began, for the fields that no batch changes."""
        self._now = _Now(state.lanes, state.micro_batch_index, state.epoch_batches, state.ended)
        """Set in one assignment: an interrupt (Ctrl-C, a signal handler that saves) finds all of a turn, or none."""
        self.may_be_over = False
        """Whether nothing may be left of the pass, which only the next batch tells; if so, the next pass begins at
        once. True after batches of it were taken here, and mostly after a restore."""

    @property
    def state(self) -> LoaderState:
        """What to save now. It is made when it is asked for, which is seldom: a turn takes less time."""
        return dataclasses.replace(self._began_with, **self._now._asdict())

    @property
    def is_at_virtual_epoch(self) -> bool:
        """Whether a virtual epoch starts here."""
        return bool(self._epoch_length) and not self._now.epoch_batches

    def turn(self) -> int | None:
        """The lane whose turn it is; None if all of this rank have ended."""
        return self._schedule.lane if self._schedule else None

    @property
    def index(self) -> int:
        """The micro-batch of the lane whose turn it is."""
        return self._schedule.index

    @property
    def is_skipped(self) -> bool:
        """Whether the micro-batch of the lane whose turn it is goes to no rank."""
        return self._began_with.skips is not None and self._schedule.index in self._began_with.skips

    def check_skips(self, named: StepSkips | None) -> None:
        """Check, once, that the ranks can share what comes between skips, and log these, and what came before the
        state, so that it cannot be skipped; `named` are those from the settings, as named there.

        Raises:
            ConfigError: if they cannot.
        """
        skips, index = self._began_with.skips, self._now.micro_batch_index
        if self._has_checked_skips:
            return
        if skips is not None:
            skips.check_shared(index, self._world_size)
        self._has_checked_skips = True
        if self._rank == 0 and named is not None and (behind := named.not_skipped(skips)):
            logger.warning(
                "not skipped, as the run handed them out before this state was saved: micro-batches %s. To skip these "
                "too, resume from a checkpoint that was saved before them",
                "; ".join(behind),
            )
        ahead = [one for one in skips.ranges if one.stop >= index] if self._rank == 0 and skips is not None else []
        if ahead:
            words = StepSkips(()).name if named is None else named.name
            logger.warning("from micro-batch %d of the job on: %s", index, ", ".join(map(words, ahead)))

    def lanes(self) -> list[int]:
        """The lanes of this rank that have not ended, by their next micro-batches in `state`: also after an interrupt
        between the noting of a state and of the turn."""
        self._schedule = LaneSchedule(self.state, self._schedule.lanes)
        return self._schedule.lanes

    def discard(self, state: LaneState) -> None:
        """Note that the lane whose turn it is has made a micro-batch that is skipped; `state` is the lane's after
        it."""
        self._note(state)
        self._schedule.advance()

    def advance(self, state: LaneState) -> None:
        """Note that the batch of the lane whose turn it is has been handed out; `state` is the lane's after it."""
        self.may_be_over = True
        lanes = {**self._now.lanes, self._schedule.lane: state}
        self._now = _Now(lanes, self.next_index(), self._next_epoch_batches(), False)
        self._schedule.advance()

    def next_index(self) -> int:
        """The `micro_batch_index` of the state after the current turn: the same on all ranks, which get one micro-batch
        each at a time."""
        begin, skips, index = self._now.micro_batch_index, self._began_with.skips, self._schedule.index
        if skips is not None:  # of endless data, in which no rank lacks a turn
            return skips.index_after(skips.num_handed_out(begin) + self._world_size)
        return index - (index - begin) % self._world_size + self._world_size

    def pass_over(self, micro_batch_index: int) -> None:
        """Note that other ranks have got the micro-batches before this one; this rank has none of these."""
        self.may_be_over = True
        self._now = self._now._replace(micro_batch_index=micro_batch_index, epoch_batches=self._next_epoch_batches())

    def _next_epoch_batches(self) -> int:
        return (self._now.epoch_batches + 1) % self._epoch_length if self._epoch_length else 0

    def end_lane(self, state: LaneState) -> None:
        """Note that the lane whose turn it is has no more batches; `state` is the lane's at its end, so that what it
        skipped after its last batch is not made, and counted, again."""
        self._note(state)
        self._schedule.end_lane()

    def _note(self, state: LaneState) -> None:
        self._now = self._now._replace(lanes={**self._now.lanes, self._schedule.lane: state})

    def end_pass(self) -> None:
        """Note that the pass is over: a state saved now starts the next one."""
        self._now = self._now._replace(ended=True)


def _close_in(process: int, pool: LanePool, meter: Meter) -> None:
    if os.getpid() == process:  # not in a child that the trainer forked
        meter.sum_up()
        pool.close()
