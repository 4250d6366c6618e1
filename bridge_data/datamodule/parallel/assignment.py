"""Which rank works on which micro-batch of a step, so that all of them are done at about the same time.

Enters: the costs of a step's micro-batches, by number; the number of ranks. Leaves: for each rank its micro-batches.
Guarantees: every micro-batch is assigned once, and each rank gets equally many; the most loaded rank is never worse off
than with micro-batch m on rank m mod D; equal costs give equal assignments, on any machine.

A step takes as long as its most loaded rank. That rank exchanges one micro-batch for another with a less loaded one, as
long as this helps; from where the micro-batches are, so that few of them move. Where that does not come close to what
whole micro-batches allow at best, they are dealt anew, the costliest first, each to the rank with the least so far, and
exchanged from there.

Source: R. L. Graham, Bounds on multiprocessing timing anomalies (1969), with a bound on the number of jobs.
"""

import heapq
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

Assignment: TypeAlias = list[list[int]]
"""The micro-batches of each rank, by number."""

_CLOSE = 1.01
_MAX_PARTNERS = 32
_MAX_EXCHANGES_PER_RANK = 4


def round_robin(num_micro_batches: int, num_ranks: int) -> Assignment:
    """Micro-batch m on rank m mod D: where it is read."""
    return [list(range(rank, num_micro_batches, num_ranks)) for rank in range(num_ranks)]


def assign(costs: Sequence[float], num_ranks: int) -> Assignment:
    """The micro-batches of each rank, in the order of their numbers; `num_ranks` divides how many there are."""
    assert len(costs) % num_ranks == 0, f"{len(costs)} micro-batches cannot be shared by {num_ranks} ranks"
    home = round_robin(len(costs), num_ranks)
    enough = _CLOSE * least_possible(costs, num_ranks)
    best = _exchanged(home, costs, enough)
    if greatest_load(best, costs) > enough:
        dealt = _exchanged(_near_home(_dealt(costs, num_ranks)), costs, enough)
        best = min(best, dealt, key=lambda made: greatest_load(made, costs))
    best = min(home, best, key=lambda made: greatest_load(made, costs))
    return [sorted(group) for group in best]


def greatest_load(assignment: Assignment, costs: Sequence[float]) -> float:
    """The cost of the most loaded rank."""
    return max(_load(group, costs) for group in assignment)


def least_possible(costs: Sequence[float], num_ranks: int) -> float:
    """No assignment has a lower greatest load: the mean, or the costliest micro-batch with the cheapest ones."""
    ordered = sorted(costs)
    per_rank = len(costs) // num_ranks
    return max(math.fsum(costs) / num_ranks, math.fsum([ordered[-1], *ordered[: per_rank - 1]]))


def imbalance(assignment: Assignment, costs: Sequence[float]) -> float:
    """The greatest load over the mean one; 1 if nothing costs anything."""
    mean = math.fsum(costs) / len(assignment)
    return greatest_load(assignment, costs) / mean if mean else 1.0


def _load(group: Sequence[int], costs: Sequence[float]) -> float:
    return math.fsum(costs[number] for number in group)


def _dealt(costs: Sequence[float], num_ranks: int) -> Assignment:
    """The costliest first, each to the least loaded rank that has not got all of its own."""
    per_rank = len(costs) // num_ranks
    groups: Assignment = [[] for _ in range(num_ranks)]
    loads = [(0.0, rank) for rank in range(num_ranks)]
    for number in sorted(range(len(costs)), key=lambda number: (-costs[number], number)):
        load, rank = heapq.heappop(loads)
        groups[rank].append(number)
        if len(groups[rank]) < per_rank:
            heapq.heappush(loads, (load + costs[number], rank))
    return groups


def _near_home(groups: Assignment) -> Assignment:
    """The same groups, each on a rank that has read many of it, as far as no other group has more from there."""
    num_ranks = len(groups)
    shares = sorted(
        (-sum(number % num_ranks == rank for number in group), index, rank)
        for index, group in enumerate(groups)
        for rank in {number % num_ranks for number in group}
    )
    rank_of: dict[int, int] = {}
    taken: set[int] = set()
    for _, index, rank in shares:
        if index not in rank_of and rank not in taken:
            rank_of[index] = rank
            taken.add(rank)
    free = iter(sorted(set(range(num_ranks)) - taken))
    placed: Assignment = [[] for _ in range(num_ranks)]
    for index, group in enumerate(groups):
        placed[rank_of[index] if index in rank_of else next(free)] = group
    return placed


def _exchanged(groups: Assignment, costs: Sequence[float], enough: float) -> Assignment:
    """`groups` after exchanges between the most loaded rank and less loaded ones, until it has no more than `enough`,
    or none helps."""
    groups = [list(group) for group in groups]
    loads = np.array([_load(group, costs) for group in groups])
    table = np.array([[costs[number] for number in group] for group in groups], dtype=np.float64)
    for _ in range(_MAX_EXCHANGES_PER_RANK * len(groups)):
        top = int(np.argmax(loads))
        lowest = np.argsort(loads, kind="stable")[:_MAX_PARTNERS]
        if loads[top] <= max(enough, loads[lowest[0]]):
            break
        gain = table[top][:, None, None] - table[lowest][None]  # (own micro-batch, partner, its micro-batch)
        after = np.maximum(loads[top] - gain, loads[lowest][None, :, None] + gain)
        after[:, lowest == top] = np.inf
        own, partner, other = (int(place) for place in np.unravel_index(np.argmin(after), after.shape))
        if after[own, partner, other] >= loads[top]:
            break
        rank = int(lowest[partner])
        groups[top][own], groups[rank][other] = groups[rank][other], groups[top][own]
        for changed in (top, rank):
            table[changed] = [costs[number] for number in groups[changed]]
            loads[changed] = _load(groups[changed], costs)
    return groups
