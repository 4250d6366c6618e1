"""Balanced steps: data-parallel ranks exchange micro-batches, so that all finish a step at about the same time.

    lanes ─▶ loader ─▶ thread: cost of n micro-batches ─▶ all_gather ─▶ assign ─▶ point to point ─▶ queue ─▶ next()

Reads this data-parallel rank's loader, the cost of a micro-batch, and the number of micro-batches per rank and step.
Returns the same number of micro-batches per step, some of them from other ranks. All ranks compute the same assignment
from the same costs. The step as a whole has the same micro-batches as without balancing, each once. Order and state are
those of the lanes, so a run resumes with the same global batches on other ranks, balanced or not.

A step is read and exchanged while the trainer works on the previous step. Its micro-batches are drawn together, so a
state saved within a step is the state at its start: after a restore the whole step comes again, and nothing is
lost. At the end of finite data, ranks may have different numbers of micro-batches left: then each keeps its own.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from bridge_data.datamodule.trainer_loaders import RankLoader
from bridge_data.errors import WorkerError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.pinning import can_pin, pinned
from bridge_data.order.state import LoaderState
from bridge_data.plugins.sharing.assignment import Cost, assign, check_cost, imbalance, round_robin
from bridge_data.plugins.sharing.background import (
    BATCH,
    CLOSED,
    END,
    ERROR,
    Arrival,
    Arrivals,
    BackgroundLoader,
    filled,
    from_bytes,
    num_bytes,
    to_parts,
)
from bridge_data.plugins.sharing.replica import ReplicaRanks
from bridge_data.run_options import LoaderConfig

_NONE_LEFT = object()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Balancing:
    """How to balance: `cost` of a micro-batch; `step_size`, the micro-batches per rank of the step that starts with a
    given micro-batch of the job; at most `max_step_size`."""

    cost: Cost
    step_size: Callable[[int], int]
    max_step_size: int


@dataclasses.dataclass(slots=True)
class BalanceReport:
    """Sums over `num_steps` balanced steps of the greatest load divided by the mean load, as read and as exchanged; and
    the bytes that this rank has sent."""

    num_steps: int = 0
    sum_unbalanced: float = 0.0
    sum_balanced: float = 0.0
    num_bytes_sent: int = 0

    @property
    def unbalanced(self) -> float:
        """Greatest over mean load of a step as read; 1 before the first."""
        return self.sum_unbalanced / self.num_steps if self.num_steps else 1.0

    @property
    def balanced(self) -> float:
        """Greatest over mean load of a step as exchanged; 1 before the first."""
        return self.sum_balanced / self.num_steps if self.num_steps else 1.0


@dataclasses.dataclass(slots=True)
class Step:
    """The micro-batches of one rank in a step, with the state after each; `first` is the first one of the step in the
    whole job. `kind` is `BATCH`, or what came instead of the rest: `END`, or `ERROR` with the `error`. `start` is the
    state before the step, `after_end` the state after the end of a pass."""

    start: LoaderState
    first: int = 0
    size: int = 1
    kind: int = BATCH
    error: Exception | None = None
    after_end: LoaderState | None = None
    items: list[Arrival] = dataclasses.field(default_factory=list)
    costs: list[float] = dataclasses.field(default_factory=list)
    parts: list[list[memoryview]] = dataclasses.field(default_factory=list)

    @property
    def end(self) -> LoaderState:
        """The state after it."""
        state = self.items[-1].state if self.items else self.start
        assert state is not None
        return state if self.after_end is None else self.after_end


@dataclasses.dataclass(frozen=True, slots=True)
class StepReport:
    """What a rank sends to the others about its step."""

    restore_number: int
    kind: int
    count: int
    costs: list[float]
    sizes: list[int]


class Exchange:
    """The communication of this rank, `rank` of `peers`, with the others."""

    def __init__(self, peers: ReplicaRanks, rank: int, balancing: Balancing, report: BalanceReport, pin: bool) -> None:
        self._peers, self.rank, self._balancing, self._report, self._pin = peers, rank, balancing, report, pin

    def read(self, loader: RankLoader, reading: Iterator[Any]) -> Step:
        """The next step of this rank."""
        step = Step(loader.snapshot())
        try:
            while len(step.items) < step.size:
                batch = next(reading, _NONE_LEFT)
                if batch is _NONE_LEFT:
                    step.kind, step.after_end = END, loader.snapshot()
                    break
                state = loader.snapshot()
                if not step.items:  # only now is it known whether a pass continues, or another one has started
                    step.first = state.num_handed_out - len(self._peers.ranks)
                    step.size = self._balancing.step_size(step.first)
                step.items.append(Arrival(BATCH, batch, state))
                step.costs.append(check_cost(self._balancing.cost(batch)))
                step.parts.append(to_parts(batch))
        except Exception as error:
            step.kind, step.error = ERROR, error
        return step

    def gather(self, restore_number: int, step: Step | None) -> list[StepReport]:
        """The reports of all ranks on their steps, in the order of the ranks; None: this rank is closed."""
        width = self._balancing.max_step_size
        own = torch.zeros(3 + 2 * width, dtype=torch.float64)  # whole numbers are exact up to 2**53
        own[0], own[1] = restore_number, CLOSED if step is None else step.kind
        if step is not None:
            own[2] = count = len(step.parts)  # of the last, only the cost is known if it cannot be sent
            own[3 : 3 + count] = torch.tensor(step.costs[:count], dtype=torch.float64)
            own[3 + width : 3 + width + count] = torch.tensor([num_bytes(parts) for parts in step.parts])
        group = self._peers.group
        gathered = [torch.empty_like(own) for _ in self._peers.ranks]
        dist.all_gather(gathered, own, group=group)
        rows = [gathered[dist.get_group_rank(group, peer)].tolist() for peer in self._peers.ranks]
        return [
            StepReport(
                int(row[0]), int(row[1]), int(row[2]), row[3 : 3 + width], [int(size) for size in row[3 + width :]]
            )
            for row in rows
        ]

    def exchange(self, step: Step, rows: list[StepReport]) -> None:
        """Send and receive micro-batches, so that `step` has those assigned to this rank."""
        num_ranks, first = len(rows), step.first % len(rows)
        readers = [*range(first, num_ranks), *range(first)]  # in the order of their micro-batches in the step

        def read_as(number: int) -> tuple[int, int]:
            """The rank that has read a micro-batch of the step, and its number there."""
            return readers[number % num_ranks], number // num_ranks

        numbers = range(num_ranks * step.size)
        costs = [rows[reader].costs[index] for reader, index in map(read_as, numbers)]
        assignment = assign(costs, num_ranks)
        assigned = dict(zip(readers, assignment, strict=True))
        coming: dict[int, torch.Tensor] = {}
        transfers: list[Any] = []
        for number in assigned[self.rank]:
            reader, index = read_as(number)
            if reader != self.rank:
                coming[number] = torch.empty(rows[reader].sizes[index], dtype=torch.uint8)
                transfers.append(self._receive(coming[number], reader, number))
        for rank in readers:
            for number in assigned[rank]:
                reader, index = read_as(number)
                if reader == self.rank != rank:
                    transfers.append(self._send(step.parts[index], rank, number))
        for transfer, _ in transfers:
            transfer.wait()
        contents = [
            self._opened(coming[number]) if number in coming else step.items[number // num_ranks].content
            for number in assigned[self.rank]
        ]
        # The only position within a step is its start, as batches are no longer in the order of lanes.
        states = [step.start] * (step.size - 1) + [step.end]
        step.items = [Arrival(BATCH, content, state) for content, state in zip(contents, states, strict=True)]
        step.parts = []
        self._report.num_steps += 1
        self._report.sum_unbalanced += imbalance(round_robin(len(costs), num_ranks), costs)
        self._report.sum_balanced += imbalance(assignment, costs)

    def _send(self, parts: list[memoryview], rank: int, number: int) -> tuple[Any, torch.Tensor]:
        """The transfer, and the memory to keep until its end."""
        content = filled(parts)
        self._report.num_bytes_sent += content.numel()
        return dist.isend(content, dst=self._peers.ranks[rank], group=self._peers.group, tag=number), content

    def _receive(self, content: torch.Tensor, rank: int, number: int) -> tuple[Any, torch.Tensor]:
        return dist.irecv(content, src=self._peers.ranks[rank], group=self._peers.group, tag=number), content

    def _opened(self, content: torch.Tensor) -> Any:
        batch = from_bytes(content)
        return pinned(batch) if self._pin else batch


class BalancedLoader(BackgroundLoader):
    """The micro-batches assigned to this rank in each step, read by its own `loader` of `dataset` or by other ranks.
    This object owns `loader`.

    All data-parallel ranks must make one, with the same settings, call `restore_state_rank` and `close` in the same
    order, and draw the same number of batches.
    """

    def __init__(
        self,
        dataset: LaneDataset,
        loader: RankLoader,
        peers: ReplicaRanks,
        balancing: Balancing,
        config: LoaderConfig,
    ) -> None:
        self.report = BalanceReport()
        arrivals = Arrivals(balancing.max_step_size)
        exchange = Exchange(peers, dataset.worker_config.rank, balancing, self.report, config.pin_memory and can_pin())
        run = functools.partial(_balance, exchange, arrivals, loader)
        failure = "micro-batches can no longer be exchanged between data-parallel ranks"
        super().__init__(dataset, loader, arrivals, run, failure, config)


def _balance(exchange: Exchange, arrivals: Arrivals, loader: RankLoader) -> None:
    """The thread: one all_gather per step, which also reports ranks that were restored, have failed or are closed.

    The ranks restore at different moments. A step is dropped unless all ranks have restored equally often; a rank
    that is behind waits for its restore. From the first step that a rank cannot fill because its data has ended, each
    rank continues alone to its own end. They exchange again from the first step of the next pass.
    """
    restore_number, reading, is_alone = 0, iter(loader), False
    step: Step | None = None
    while not arrivals.closed:
        if (newest := arrivals.follow(loader, restore_number)) != restore_number:
            restore_number, reading, is_alone, step = newest, iter(loader), False, None
        if step is None:
            step = exchange.read(loader, reading)
        if not is_alone:
            rows = exchange.gather(restore_number, step)
            closed = [rank for rank, row in enumerate(rows) if row.kind == CLOSED]
            if closed:
                arrivals.fail(
                    WorkerError(f"data-parallel rank {closed[0]}, which shares steps with this one, has closed")
                )
                return
            newest_of_all = max(row.restore_number for row in rows)
            if restore_number < newest_of_all:
                _stop(arrivals, restore_number, WorkerError("other ranks restored a saved position, this one did not"))
            if any(row.restore_number < newest_of_all for row in rows):
                continue
            failed = [rank for rank, row in enumerate(rows) if row.kind == ERROR]
            if failed:
                other = WorkerError(f"data-parallel rank {failed[0]} failed to read its part of a step; see its error")
                _stop(arrivals, restore_number, step.error or other)
                step = None
                continue
            is_alone = any(row.count < step.size for row in rows)
            if not is_alone:
                exchange.exchange(step, rows)
        for item in step.items:
            arrivals.put(restore_number, item)
        if step.error is not None:
            _stop(arrivals, restore_number, step.error)
        elif step.kind == END:
            arrivals.put(restore_number, Arrival(END, None, step.end))
            reading, is_alone = iter(loader), False
        step = None
    exchange.gather(restore_number, None)


def _stop(arrivals: Arrivals, restore_number: int, error: Exception) -> None:
    """Deliver an error, and wait for the next restore."""
    arrivals.put(restore_number, Arrival(ERROR, error, None))
    arrivals.wait_for_restore(restore_number)
