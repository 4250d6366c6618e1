"""How many batches a pass through the data has, and what follows it.

Reads the settings of a data set: its plan, its order, the size of batches. Returns numbers of batches without reading
data. They are exact for `virtual_epoch_length`, and for data that end, after a whole number of repetitions, without
packing, grouping, or hooks that skip samples or make several of one; else they are estimates.
"""

import math
from fractions import Fraction

import numpy as np

from bridge_data.lanes.units import Batching
from bridge_data.order.plan_order import PlanOrder
from bridge_data.order.row import Ints
from bridge_data.order.state import LoaderState
from bridge_data.plan import Plan
from bridge_data.topology import WorkerConfig


class PassLength:
    """The length of a pass of one rank over the `order` of a plan.

    `finite` data end; a pass over them `repeats` them, exactly. A pass ends after `virtual_epoch_length` batches, if
    that is not 0, and then, if it `begins_anew`, starts again with the first batch. If hooks `may_multiply`, they make
    more batches than the samples fill.
    """

    def __init__(
        self,
        plan: Plan,
        order: PlanOrder,
        batching: Batching,
        config: WorkerConfig,
        *,
        finite: bool,
        repeats: float | Fraction,
        virtual_epoch_length: int,
        begins_anew: bool,
        may_multiply: bool,
    ) -> None:
        self._plan, self._order, self._batching, self._config = plan, order, batching, config
        self._repeats, self._longest, self._begins_anew = repeats, virtual_epoch_length, begins_anew
        self._ends = finite and repeats < math.inf  # apart from the end of virtual epochs
        self._is_plain = batching.packing_buffer_size is None and not may_multiply
        self._is_longer = False  # than `num_batches` says
        self._counted: dict[int, Ints | None] = {}  # `_batches_of_lanes`, by the number of lanes

    def num_batches(self, *, even: bool = False, num_lanes: int | None = None) -> int:
        """The batches that this rank gets in a pass, as by `len` of the data set; if `even`, those of the rank with the
        most. A resumed run may have another number of lanes than the `WorkerConfig`."""
        even = even or not self._ends
        if self._longest and not (self._ends and self._begins_anew):
            return self._longest
        rank = 0 if even else self._config.rank
        length = self._num_of_rank(rank, self.num_micro_batches)
        of_lanes = self._batches_of_lanes(num_lanes or self._config.num_lanes)
        if of_lanes is not None:  # of some lanes the last batch is smaller
            of_ranks = of_lanes.reshape(-1, self._config.world_size).sum(0)
            length = int(of_ranks.max() if even else of_ranks[rank])
        if self._ends:
            length = length * math.floor(self._repeats) + self._num_of_rank(rank, self._num_of_last_repetition)
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
    def has_length(self) -> bool:
        """Whether the number of batches in a pass is known before: not with packs, generators or groups."""
        return bool(self._longest) or (self._is_plain and not (self._ends and self._is_longer))

    def note_end(self, state: LoaderState) -> None:
        """Note the state at the end of a pass: with plain functions that return generators, only then is it known that
        a pass has more batches than `num_batches` says."""
        of_lanes = self._batches_of_lanes(state.num_lanes) if len(state.generations) == 1 else None
        if of_lanes is not None:
            is_longer = any(state.num_made(lane) > of_lanes[lane] for lane in state.lanes)
        else:
            longest = self._num_of_rank(0, self.num_micro_batches)
            is_longer = state.micro_batch_index > longest * self._config.world_size
        self._is_longer = self._is_longer or is_longer

    def is_repeated_after(self, state: LoaderState, *, even: bool = False) -> bool:
        """Whether the pass restarts with the first batch when the lanes end in `state`; `even` as in `num_batches`."""
        left = self._repeats - state.repetition - 1
        return left >= 1 or (left > 0 and self._num_of_last_repetition > (0 if even else self._config.rank))

    def is_complete(self, state: LoaderState, *, even: bool = False) -> bool:
        """Whether the pass is over in `state` because the last repetition is a fraction: for this rank, or for all."""
        config, index = self._config, state.micro_batch_index
        index += 0 if even else (config.rank - index) % config.world_size
        return state.repetition + 1 > self._repeats and index >= self._num_of_last_repetition

    @property
    def _num_of_last_repetition(self) -> int:
        """Micro-batches of the job in the last repetition, if it is not whole."""
        return math.floor(self.num_micro_batches * (self._repeats % 1))

    def _batches_of_lanes(self, num_lanes: int) -> Ints | None:
        """The micro-batches of each lane of shuffled data that end; None if they are not known, or of other data."""
        if num_lanes not in self._counted:
            size, limit = self._batching.batch_size or 1, self._batching.max_micro_batches
            total = self._order.samples_of_lanes(num_lanes) if self._ends and self._is_plain else None
            if total is not None:
                total = total // size if self._batching.drop_last else -(-total // size)
                if limit is not None:
                    total = np.minimum(total, -((np.arange(num_lanes) - limit) // num_lanes).clip(max=0))
            self._counted[num_lanes] = total
        return self._counted[num_lanes]

    def _num_of_rank(self, rank: int, num_micro_batches: int) -> int:
        return -(-max(0, num_micro_batches - rank) // self._config.world_size)
