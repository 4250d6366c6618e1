"""Packers: which sequences share a pack; and `Packing`, a `select_samples_to_pack` by one of them.

Enters: lengths, and the capacity of a pack. Leaves: groups of positions in the list of lengths. Guarantees: every
position is in one group; no group is longer than the capacity; equal lengths give equal groups. All take O(n log n)
steps, `lpt_balanced` log n times as many.
"""

import dataclasses
import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

from bridge_data.errors import ConfigError, SkipSample
from bridge_data.options import check_at_least
from bridge_data.task.task_encoder import TaskEncoder, stateless

Packer: TypeAlias = Callable[[Sequence[int], int], list[list[int]]]
"""(lengths, capacity) -> groups of positions."""


def greedy(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Next fit: a pack is closed when the next sequence does not fit.

    One pass, which keeps the order; at most twice the minimum number of packs.
    """
    _check(lengths, capacity)
    groups: list[list[int]] = []
    free = -1
    for position, length in enumerate(lengths):
        if length > free:
            groups.append([])
            free = capacity
        groups[-1].append(position)
        free -= length
    return groups


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """The longest first, each into the first pack where it fits; at most 11/9 of the minimum of packs, plus one.

    Source: D. S. Johnson, Near-optimal bin packing algorithms (1973).
    """
    return _fit_decreasing(lengths, capacity, lambda free, pack: (pack, pack))


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """The longest first, each into the fullest pack where it fits; at most 11/9 of the minimum of packs, plus one.

    Source: D. S. Johnson et al., Worst-case performance bounds for simple one-dimensional packing algorithms (1974).
    """
    return _fit_decreasing(lengths, capacity, lambda free, pack: (free, pack))


def lpt(lengths: Sequence[int], num_groups: int) -> list[list[int]]:
    """`num_groups` groups of nearly equal sums: the longest first, each into the group with the smallest sum so far.

    The largest sum is at most 4/3 of the optimum. With fewer sequences than groups, some are empty.

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
    """Few packs of nearly equal sums: `lpt` with the smallest number of groups that keeps all within `capacity`.

    For packs of equal cost, rather than full ones.
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
    """The filled share of the packs' capacity, in 0..1; 1 without packs.

    A pack longer than `capacity`, of one sequence that is too long, counts as full.
    """
    sums = [sum(lengths[position] for position in group) for group in groups]
    held = sum(max(total, capacity) for total in sums)
    return sum(sums) / held if held else 1.0


def _fit_decreasing(
    lengths: Sequence[int], capacity: int, rank: Callable[[int, int], tuple[int, int]]
) -> list[list[int]]:
    """The longest first, each into the pack with the smallest `rank(free, pack)` of those where it fits.

    Lengths only fall, so a pack that fits one sequence fits all later ones, until it takes one itself: such packs are
    in one heap, by rank; the others wait in a second heap, by free length, until a sequence is short enough.
    """
    _check(lengths, capacity)
    groups: list[list[int]] = []
    free: list[int] = []
    open_packs: list[tuple[int, int]] = []
    waiting: list[tuple[int, int]] = []
    for position in _longest_first(lengths):
        length = lengths[position]
        while waiting and -waiting[0][0] >= length:
            pack = heapq.heappop(waiting)[1]
            heapq.heappush(open_packs, rank(free[pack], pack))
        if open_packs:
            pack = heapq.heappop(open_packs)[1]
        else:
            pack = len(groups)
            groups.append([])
            free.append(capacity)
        groups[pack].append(position)
        free[pack] -= length
        heapq.heappush(waiting, (-free[pack], pack))
    return groups


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))


def _check(lengths: Sequence[int], capacity: int) -> None:
    if capacity < 1:
        raise ConfigError(f"capacity={capacity}: a pack must hold at least one token")
    for position, length in enumerate(lengths):
        if not 0 <= length <= capacity:
            raise ConfigError(
                f"sequence {position} has {length} tokens, a pack holds {capacity}. Raise the capacity, or "
                "set Packing(overlong=...), which drops them, truncates them or packs them alone"
            )


Overlong: TypeAlias = Literal["drop", "truncate", "alone"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packing:
    """A `select_samples_to_pack` for a task encoder; set it in the class or, as `self.select_samples_to_pack`, in
    `__init__`.

    `length` is a function of a sample from `preencode_sample` (or `encode_sample`); the lengths of a pack's samples sum
    to at most `capacity`. By `overlong`, a longer sample is dropped ("drop"; counted as skipped by
    `select_samples_to_pack`), cut by `truncate(sample, capacity)` ("truncate"; counted in `loader.truncated`), or
    becomes its own pack ("alone"). `packer` is the name of one of `bridge_data.task.packers`, or a function of the same
    form. With `carry_over`, the emptiest pack of a buffer moves to the next buffer, where it may be filled: no sample
    waits forever.

    Raises:
        ConfigError: if a setting is wrong.
    """

    length: Callable[[Any], int]
    capacity: int
    overlong: Overlong
    truncate: Callable[[Any, int], Any] | None = None
    packer: str | Packer = "first_fit_decreasing"
    carry_over: bool = True

    def __post_init__(self) -> None:
        check_at_least(self, 1, "capacity")
        for name, known in (("overlong", get_args(Overlong)), ("packer", PACKERS)):
            value = getattr(self, name)
            if not callable(value) and value not in known:
                raise ConfigError(f"Packing({name}={value!r}): expected one of {', '.join(map(repr, known))}")
        if (self.overlong == "truncate") != (self.truncate is not None):
            raise ConfigError(
                "Packing(overlong='truncate') needs truncate=..., a function of (sample, capacity) that returns a "
                "sample of that length at most; other policies do not use it"
            )

    def admitted(self, sample: Any) -> tuple[Any, bool]:
        """The sample for the buffer, and whether it was truncated. A SkipSample if it is too long and dropped."""
        length = self.length(sample)
        if length <= self.capacity or self.overlong == "alone":
            return sample, False
        if self.truncate is None:
            raise SkipSample(f"its length is {length}, a pack holds {self.capacity}")
        cut = self.truncate(sample, self.capacity)
        if self.length(cut) > self.capacity:
            raise ConfigError(
                f"Packing(truncate=...): it made a sample of length {self.length(cut)} out of one of {length}, but a "
                f"pack holds {self.capacity}"
            )
        return cut, True

    def __call__(self, samples: list[Any]) -> list[list[Any]]:
        """The packs of `samples`; with `carry_over`, all but one."""
        lengths = [self.length(sample) for sample in samples]
        alone = [number for number, length in enumerate(lengths) if length > self.capacity]
        fitting = [number for number, length in enumerate(lengths) if length <= self.capacity]
        packer = self.packer if callable(self.packer) else PACKERS[self.packer]
        groups = [
            [fitting[position] for position in group]
            for group in packer([lengths[number] for number in fitting], self.capacity)
        ]
        if self.carry_over and len(groups) > 1:
            groups.remove(self._emptiest(groups, lengths))
        return [[samples[number] for number in group] for group in [[number] for number in alone] + groups]

    def _emptiest(self, groups: list[list[int]], lengths: list[int]) -> list[int]:
        """The pack for the next buffer. Never that of the first sample: the first samples were carried over before, and
        would wait forever."""
        first = min(min(group) for group in groups)
        return min((group for group in groups if first not in group), key=lambda group: sum(lengths[n] for n in group))


stateless(Packing)


def pack_by(encoder: TaskEncoder[Any, Any, Any, Any], packing: Packing) -> None:
    """Let `encoder` select the samples of its packs by `packing`, unless its class selects them itself."""
    if type(encoder).select_samples_to_pack is TaskEncoder.select_samples_to_pack:
        encoder.select_samples_to_pack = packing  # type: ignore[method-assign]
