"""One step between data-parallel ranks: what they tell each other of it, and the micro-batches that move.

Enters: this rank's micro-batches of a step. Leaves: those that it shall work on. Guarantee: all ranks find the same
assignment by themselves from the same costs; each micro-batch is on one rank afterwards.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from bridge_data import samples
from bridge_data.datamodule.parallel import wire
from bridge_data.datamodule.parallel.arrivals import BATCH, CLOSED, END, ERROR, Arrival
from bridge_data.datamodule.parallel.assignment import assign, imbalance, round_robin
from bridge_data.datamodule.parallel.costs import Cost, check_cost
from bridge_data.datamodule.parallel.groups import Peers
from bridge_data.errors import WorkerError
from bridge_data.loader import SavableDataLoader

_NONE_LEFT = object()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Balancing:
    """How to balance: `cost` of a micro-batch; `step_size`, the micro-batches that each rank takes for the step that
    begins with that micro-batch of the job; at most `max_step_size`."""

    cost: Cost
    step_size: Callable[[int], int]
    max_step_size: int


@dataclasses.dataclass(slots=True)
class BalanceReport:
    """Over the `num_steps` that were balanced: the sums of greatest load over mean load, as read and as exchanged; the
    bytes that this rank has sent."""

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
    """The micro-batches of one rank for a step, whose first one in the whole job is `first`, with the state after each;
    `kind` is `BATCH`, or what came instead of the rest of them: `END`, or `ERROR` with the `error`. `start` is the
    state before it, `after_end` that after the end of a pass."""

    start: dict[str, Any]
    first: int = 0
    size: int = 1
    kind: int = BATCH
    error: Exception | None = None
    after_end: dict[str, Any] | None = None
    items: list[Arrival] = dataclasses.field(default_factory=list)
    costs: list[float] = dataclasses.field(default_factory=list)
    parts: list[list[memoryview]] = dataclasses.field(default_factory=list)

    @property
    def end(self) -> dict[str, Any]:
        """The state after it."""
        state = self.items[-1].state if self.items else self.start
        assert state is not None
        return state if self.after_end is None else self.after_end


@dataclasses.dataclass(frozen=True, slots=True)
class StepReport:
    """What a rank tells the others of its step."""

    generation: int
    kind: int
    count: int
    costs: list[float]
    sizes: list[int]


class Exchange:
    """The dealings of this rank, `rank` of `peers`, with the others."""

    def __init__(self, peers: Peers, rank: int, balancing: Balancing, report: BalanceReport, pin: bool) -> None:
        self._peers, self.rank, self._balancing, self._report, self._pin = peers, rank, balancing, report, pin

    def read(self, loader: SavableDataLoader, reading: Iterator[Any]) -> Step:
        """The next step of this rank."""
        step = Step(loader.save_state_rank())
        try:
            while len(step.items) < step.size:
                batch = next(reading, _NONE_LEFT)
                if batch is _NONE_LEFT:
                    step.kind, step.after_end = END, loader.save_state_rank()
                    break
                state = loader.save_state_rank()
                if not step.items:  # only now is it known whether a pass went on, or another one has begun
                    step.first = state["next_slot"] - len(self._peers.ranks)
                    step.size = self._balancing.step_size(step.first)
                step.items.append(Arrival(BATCH, batch, state))
                step.costs.append(check_cost(self._balancing.cost(batch)))
                step.parts.append(_encoded(batch))
        except Exception as error:
            step.kind, step.error = ERROR, error
        return step

    def gather(self, generation: int, step: Step | None) -> list[StepReport]:
        """What all ranks tell of their steps (None: that this rank is closed), in the order of the ranks."""
        width = self._balancing.max_step_size
        own = torch.zeros(3 + 2 * width, dtype=torch.float64)  # whole numbers are exact up to 2**53
        own[0], own[1] = generation, CLOSED if step is None else step.kind
        if step is not None:
            own[2] = count = len(step.costs)
            own[3 : 3 + count] = torch.tensor(step.costs, dtype=torch.float64)
            own[3 + width : 3 + width + count] = torch.tensor([wire.num_bytes(parts) for parts in step.parts])
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
        """Send and receive, so that `step` has the micro-batches that this rank shall work on."""
        num_ranks = len(rows)
        first_rank = step.first % num_ranks  # of the first micro-batch of the step
        turns = [rows[(first_rank + turn) % num_ranks] for turn in range(num_ranks)]
        costs = [turns[number % num_ranks].costs[number // num_ranks] for number in range(num_ranks * step.size)]
        assignment = assign(costs, num_ranks)
        own_turn = (self.rank - first_rank) % num_ranks
        coming: dict[int, torch.Tensor] = {}
        transfers: list[Any] = []
        for number in assignment[own_turn]:
            place, turn = divmod(number, num_ranks)
            if turn != own_turn:
                coming[number] = torch.empty(turns[turn].sizes[place], dtype=torch.uint8)
                transfers.append(self._receive(coming[number], turn + first_rank, number))
        for turn, numbers in enumerate(assignment):
            if turn != own_turn:
                leaving = [number for number in numbers if number % num_ranks == own_turn]
                transfers += [self._send(step.parts[n // num_ranks], turn + first_rank, n) for n in leaving]
        for transfer, _ in transfers:
            transfer.wait()
        contents = [
            self._opened(coming[number]) if number in coming else step.items[number // num_ranks].content
            for number in assignment[own_turn]
        ]
        # Within a step there is no position but its beginning: who has which batch is no order of lanes.
        states = [step.start] * (step.size - 1) + [step.end]
        step.items = [Arrival(BATCH, content, state) for content, state in zip(contents, states, strict=True)]
        step.parts = []
        self._report.num_steps += 1
        self._report.sum_unbalanced += imbalance(round_robin(len(costs), num_ranks), costs)
        self._report.sum_balanced += imbalance(assignment, costs)

    def _send(self, parts: list[memoryview], rank: int, number: int) -> tuple[Any, torch.Tensor]:
        """The transfer, and the memory that it needs until its end."""
        content = torch.empty(wire.num_bytes(parts), dtype=torch.uint8)
        wire.fill(content, parts)
        self._report.num_bytes_sent += content.numel()
        peer = self._peers.ranks[rank % len(self._peers.ranks)]
        return dist.isend(content, dst=peer, group=self._peers.group, tag=number), content

    def _receive(self, content: torch.Tensor, rank: int, number: int) -> tuple[Any, torch.Tensor]:
        peer = self._peers.ranks[rank % len(self._peers.ranks)]
        return dist.irecv(content, src=peer, group=self._peers.group, tag=number), content

    def _opened(self, content: torch.Tensor) -> Any:
        batch = wire.decoded(content)
        return samples.pin(batch) if self._pin else batch


def _encoded(batch: Any) -> list[memoryview]:
    try:
        return wire.encoded(batch)
    except Exception as error:
        raise WorkerError(f"{batch!r:.200} cannot be sent to another rank: {error!r}") from error
