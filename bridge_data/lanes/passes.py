"""Passes: how many batches the pass of a rank has, and with how many micro-batches each lane ends.

Reads the order, sizes and limits of a data set; no data. What a pass is, is settled by four settings of the data set:
`finite` (the lanes end with their data, else only `virtual_epoch_length` ends a pass), `repeats` (how often a pass
begins again when the lanes have ended), `virtual_epoch_length`, and `begins_anew` (the next pass begins with the first
batch, not where that one ended). The loader begins and ends passes; it asks a `PassLength`.
"""

import bisect
import math
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from bridge_data.lanes.pack_source import PackedData
from bridge_data.order.row import Ints
from bridge_data.order.state import Generation, LoaderState, Resharded


class PassedData(PackedData, Protocol):
    """What a `PassLength` asks of its `LaneDataset`, whose module imports this one."""

    finite: bool
    repeats: float | Fraction
    virtual_epoch_length: int
    begins_anew: bool

    @property
    def may_multiply(self) -> bool:
        """Whether hooks may make more batches than the samples fill."""


class PassLength:
    """The length of a pass of one rank over `dataset`, without reading data, and the share of it that each lane has.
    Exact for `virtual_epoch_length`, and for data that end, after a whole number of repetitions, without packing,
    grouping, or hooks that skip samples or make several of one; else an estimate.

    A limit, and a repetition that is not whole, are a number of micro-batches of the job. Lanes take turns, and one
    that has ended is passed over; the limit counts the turns taken. A lane ends by its own state alone, so it gets its
    share of them beforehand, by what lanes have left when a pass starts or is resharded. If that is not known (packs,
    groups, generators), or hooks then skip samples, a lane that ends early leaves its share unused: there are fewer.
    """

    def __init__(self, dataset: PassedData) -> None:
        self._plan, self._order, self._batching = dataset.plan, dataset.order, dataset.batching
        self._config, self._repeats = dataset.worker_config, dataset.repeats
        self._longest, self._begins_anew = dataset.virtual_epoch_length, dataset.begins_anew
        self._ends = dataset.finite and dataset.repeats < math.inf  # apart from the end of virtual epochs
        self._is_plain = dataset.batching.packing_buffer_size is None and not dataset.may_multiply
        self._is_longer = False  # than `num_batches` says
        self._of_lanes: dict[tuple[int, int | None], Ints | None] = {}  # micro-batches of each in a pass from its start
        self._limits: tuple[Any, Ints] | None = None  # of the lanes of one state

    def num_batches(self, *, even: bool = False, num_lanes: int | None = None) -> int:
        """The batches that this rank gets in a pass, as by `len` of the data set; if `even`, those of the rank with the
        most. A resumed run may have another number of lanes than the `WorkerConfig`."""
        even = even or not self._ends
        if self._longest and not (self._ends and self._begins_anew):
            return self._longest
        num_lanes = num_lanes or self._config.num_lanes
        length = self._num_of_rank(num_lanes, self._batching.max_micro_batches, even=even)
        if self._ends:
            of_last = self._num_of_rank(num_lanes, self._num_of_last_repetition, even=even)
            length = length * math.floor(self._repeats) + of_last
        return min(length, self._longest or length)

    @property
    def num_micro_batches(self) -> int:
        """The micro-batches of the whole job in a pass (endless data: in an epoch)."""
        samples, size = self._plan.num_samples, self._batching.batch_size or 1
        if self._plan.repetitions is not None:
            pairs = zip(self._plan.repetitions, self._plan.sources, strict=True)
            samples = math.floor(sum(times * source.num_samples for times, source in pairs))
        total = samples // size if self._batching.drop_last else -(-samples // size)
        limit = self._batching.max_micro_batches
        return total if limit is None else min(total, limit)

    @property
    def num_in_pass(self) -> int:
        """As `num_micro_batches`, with the smaller ones in which the lanes of data that end do so."""
        of_lanes = self._batches_of_lanes(self._config.num_lanes, self._batching.max_micro_batches)
        return self.num_micro_batches if of_lanes is None else int(of_lanes.sum())

    @property
    def has_length(self) -> bool:
        """Whether the number of batches in a pass is known before: not with packs, generators or groups."""
        return bool(self._longest) or (self._is_plain and not (self._ends and self._is_longer))

    def note_end(self, state: LoaderState) -> None:
        """Note the state at the end of a pass: with plain functions that return generators, only then is it known that
        a pass has more batches than `num_batches` says."""
        of_lanes = (
            self._batches_of_lanes(state.num_lanes, self._limit_in(state)) if len(state.generations) == 1 else None
        )
        if of_lanes is not None:
            is_longer = any(state.num_made(lane) > of_lanes[lane] for lane in state.lanes)
        else:
            longest = -(-self.num_micro_batches // self._config.world_size)
            is_longer = state.micro_batch_index > longest * self._config.world_size
        self._is_longer = self._is_longer or is_longer

    def is_repeated_after(self, state: LoaderState, *, even: bool = False) -> bool:
        """Whether the pass restarts with the first batch when the lanes end in `state`; `even` as in `num_batches`."""
        left = self._repeats - state.repetition - 1
        return left >= 1 or (
            left > 0 and self._num_of_rank(state.num_lanes, self._num_of_last_repetition, even=even) > 0
        )

    def num_in(self, state: LoaderState) -> int:
        """The micro-batches of the whole job in the repetition of `state`."""
        limit = self._limit_in(state)
        return self.num_micro_batches if limit is None else min(limit, self.num_micro_batches)

    def limit_of(self, lane: int, state: LoaderState) -> float:
        """With how many micro-batches a lane ends, since the start of this repetition of the data; `inf`: with its
        data."""
        limit = self._limit_in(state)
        if limit is None:
            return math.inf
        shared = limit, state.generations[-1], state.resharded
        if self._limits is None or self._limits[0] != shared:
            self._limits = shared, _divided(*self._turns(*shared[1:]), limit)
        return int(self._limits[1][lane])

    def _limit_in(self, state: LoaderState) -> int | None:
        is_part = self._ends and self._repeats % 1 and state.repetition + 1 > self._repeats
        return self._num_of_last_repetition if is_part else self._batching.max_micro_batches

    @property
    def _num_of_last_repetition(self) -> int:
        """Micro-batches of the job in the last repetition, if it is not whole."""
        return math.floor(self.num_micro_batches * (self._repeats % 1))

    def _num_of_rank(self, num_lanes: int, limit: int | None, *, even: bool) -> int:
        """The batches of this rank in a repetition that ends after `limit` of the job; if `even`, of the rank with the
        most."""
        of_lanes, config = self._batches_of_lanes(num_lanes, limit), self._config
        if of_lanes is None:
            total = self.num_micro_batches if limit is None else min(limit, self.num_micro_batches)
            return -(-max(0, total - (0 if even else config.rank)) // config.world_size)
        of_ranks = of_lanes.reshape(-1, config.world_size).sum(0)  # of some lanes the last batch is smaller
        return int(of_ranks.max() if even else of_ranks[config.rank])

    def _batches_of_lanes(self, num_lanes: int, limit: int | None) -> Ints | None:
        """The micro-batches of each lane of shuffled data that end; None if they are not known, or of other data."""
        if not self._ends:
            return None
        if (num_lanes, limit) not in self._of_lanes:
            begins, ends = self._turns(self._order.first_generation(num_lanes), None)
            if ends is not None and limit is not None:
                ends = np.minimum(ends, _divided(begins, ends, limit))
            self._of_lanes[num_lanes, limit] = ends
        return self._of_lanes[num_lanes, limit]

    def _turns(self, generation: Generation, resharded: Resharded | None) -> tuple[Ints, Ints | None]:
        """The micro-batches that each lane had made when it got its part of the data, and those it will have made at
        the end of the data; None if that is not known."""
        num_lanes, number = generation.num_lanes, 0 if resharded is None else resharded.num_handed_out
        begins = -((np.arange(num_lanes) - number) // num_lanes).clip(max=0)
        samples = self._order.samples_of_lanes(generation, resharded) if self._is_plain else None
        if samples is None:
            return begins, None
        size = self._batching.batch_size or 1
        return begins, begins + (samples // size if self._batching.drop_last else -(-samples // size))


def _divided(begins: Ints, ends: Ints | None, limit: int) -> Ints:
    """How many micro-batches each lane has made when the job has made `limit`, if lanes have made those of `begins`
    when they start, and end after those of `ends`. If there are not so many, lanes take turns with more: they may
    have more samples than is known."""
    shares, left = begins, max(0, limit - int(begins.sum()))
    for stops in [begins + left] if ends is None else [ends, ends + left]:
        made = _in_turn(shares, stops, left)
        left -= int((made - shares).sum())
        shares = made
    return shares


def _in_turn(begins: Ints, ends: Ints, count: int) -> Ints:
    """The micro-batches of each lane, from those of `begins` on to those of `ends`, after `count` turns, or fewer if
    all have ended; lanes without one left have no turn."""

    def num_after(rounds: int) -> int:
        return int((np.clip(rounds, begins, ends) - begins).sum())

    rounds = bisect.bisect_right(range(int(ends.max()) + 1), count, key=num_after) - 1
    made: Ints = np.clip(rounds, begins, ends)
    going_on = np.flatnonzero((begins <= rounds) & (rounds < ends))[: count - num_after(rounds)]
    made[going_on] += 1
    return made
