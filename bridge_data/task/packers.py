"""Packers: which of many sequences share a pack.

Enters: lengths, and what a pack holds. Leaves: groups of positions. Guarantees: every position is in one group; no
group is longer than the capacity; equal lengths give equal groups. All of them take O(n log n) steps, `lpt_balanced`
log n times as many.
"""

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from bridge_data.errors import ConfigError

Packer: TypeAlias = Callable[[Sequence[int], int], list[list[int]]]
"""(lengths, capacity) -> groups of positions."""


def greedy(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """The sequences as they come: a pack is closed when the next one does not fit (next fit).

    It keeps their order, in one pass; at most twice the fewest packs.
    """
    _check(lengths, capacity)
    groups: list[list[int]] = []
    room = -1
    for position, length in enumerate(lengths):
        if length > room:
            groups.append([])
            room = capacity
        groups[-1].append(position)
        room -= length
    return groups


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """The longest first, each into the first pack that has room for it; at most 11/9 of the fewest packs, plus one.

    Source: D. S. Johnson, Near-optimal bin packing algorithms (1973).
    """
    return _fit_decreasing(lengths, capacity, lambda room, pack: (pack, pack))


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """The longest first, each into the fullest pack that has room for it; at most 11/9 of the fewest packs, plus one.

    Source: D. S. Johnson et al., Worst-case performance bounds for simple one-dimensional packing algorithms (1974).
    """
    return _fit_decreasing(lengths, capacity, lambda room, pack: (room, pack))


def lpt(lengths: Sequence[int], num_groups: int) -> list[list[int]]:
    """`num_groups` groups of nearly equal sums: the longest first, each into the group with the least so far.

    The greatest sum is at most 4/3 of the least possible. With fewer sequences than groups, some are empty.

    Source: R. L. Graham, Bounds on multiprocessing timing anomalies (1969).
    """
    if num_groups < 1:
        raise ConfigError(f"lpt: num_groups={num_groups}: expected at least 1")
    groups: list[list[int]] = [[] for _ in range(num_groups)]
    loads = [(0, number) for number in range(num_groups)]
    for position in _longest_first(lengths):
        load, number = loads[0]
        heapq.heapreplace(loads, (load + lengths[position], number))
        groups[number].append(position)
    return groups


def lpt_balanced(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Few packs of nearly equal sums: `lpt` over as many groups as it needs for none to be longer than `capacity`.

    For packs whose cost should be alike, rather than as full as can be.
    """
    _check(lengths, capacity)
    if not lengths:
        return []

    def fits(num_groups: int) -> bool:
        return all(sum(lengths[position] for position in group) <= capacity for group in lpt(lengths, num_groups))

    too_few = max(1, -(-sum(lengths) // capacity)) - 1
    enough = next(
        number
        for step in itertools.count()
        if fits(number := min(too_few + (1 << step), len(lengths)))  # one group each fits
    )
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if fits(middle) else (middle, enough)
    return [group for group in lpt(lengths, enough) if group]


PACKERS: dict[str, Packer] = {
    "greedy": greedy,
    "first_fit_decreasing": first_fit_decreasing,
    "best_fit": best_fit,
    "lpt_balanced": lpt_balanced,
}
"""The packers by name."""


def packing_efficiency(lengths: Sequence[int], groups: Sequence[Sequence[int]], capacity: int) -> float:
    """The share of the packs' capacity that is filled, in 0..1; 1 without packs.

    A pack longer than `capacity`, of one sequence that fits nowhere, counts as full.
    """
    sums = [sum(lengths[position] for position in group) for group in groups]
    held = sum(max(total, capacity) for total in sums)
    return sum(sums) / held if held else 1.0


def _fit_decreasing(
    lengths: Sequence[int], capacity: int, rank: Callable[[int, int], tuple[int, int]]
) -> list[list[int]]:
    """The longest first, each into the pack of the least `rank(room, pack)` of those that have room for it.

    Lengths only fall, so a pack with room for one has room for all after it, until it takes one itself: those packs are
    in one heap, by rank; the others wait in a second one, by their room, until a sequence is short enough.
    """
    _check(lengths, capacity)
    groups: list[list[int]] = []
    rooms: list[int] = []
    open_packs: list[tuple[int, int]] = []
    waiting: list[tuple[int, int]] = []
    for position in _longest_first(lengths):
        length = lengths[position]
        while waiting and -waiting[0][0] >= length:
            pack = heapq.heappop(waiting)[1]
            heapq.heappush(open_packs, rank(rooms[pack], pack))
        if open_packs:
            pack = heapq.heappop(open_packs)[1]
        else:
            pack = len(groups)
            groups.append([])
            rooms.append(capacity)
        groups[pack].append(position)
        rooms[pack] -= length
        heapq.heappush(waiting, (-rooms[pack], pack))
    return groups


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))


def _check(lengths: Sequence[int], capacity: int) -> None:
    if capacity < 1:
        raise ConfigError(f"a pack must hold something: capacity={capacity}")
    for position, length in enumerate(lengths):
        if not 0 <= length <= capacity:
            raise ConfigError(
                f"sequence {position} has {length} tokens, a pack holds {capacity}. Raise the capacity, or see to such "
                "sequences before: Packing(overlong=...) drops them, truncates them or packs them alone"
            )
