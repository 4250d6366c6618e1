"""Packers, which choose the sequences that share a pack; and `Packing`, a `select_samples_to_pack` that uses one.

Reads the lengths of sequences, and the capacity of a pack. Returns groups of indices into the list of lengths. Each
index is in exactly one group, no group is longer than the capacity, and equal lengths give equal groups. All packers
take O(n log n) steps, except `lpt_balanced`, which takes log n times as many.
"""

import dataclasses
import enum
import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from bridge_data.errors import ConfigError, SkipSample
from bridge_data.options import check_at_least
from bridge_data.task.task_encoder import TaskEncoder, stateless

Packer: TypeAlias = Callable[[Sequence[int], int], list[list[int]]]
"""(lengths, capacity) -> groups of positions."""


def greedy(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Next fit: a pack is closed when the next sequence does not fit.

    One pass, which keeps the order; at most twice the minimum number of packs.

    >>> greedy([3, 5, 4, 2], capacity=8)
    [[0, 1], [2, 3]]
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

    >>> first_fit_decreasing([3, 5, 4, 2], capacity=8)
    [[1, 0], [2, 3]]

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

    >>> lpt([3, 5, 4, 2], num_groups=2)
    [[1, 3], [2, 0]]

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


def packs_within(costs: NDArray[np.int64], budgets: Sequence[int]) -> list[list[int]]:
    """`best_fit` for several budgets: groups of rows of `costs` (samples, budgets), each within every budget.

    The sample with the greatest share of a budget comes first, and goes into the pack with the least left of the first
    budget of those where it fits. With one budget O(n log n) steps, else as many times as there are packs.
    """
    if len(budgets) == 1:
        return best_fit(costs[:, 0].tolist(), budgets[0])
    limits = np.array(budgets, dtype=np.int64)
    if (over := costs > limits).any() or (costs < 0).any():
        row = int(np.flatnonzero((over | (costs < 0)).any(axis=1))[0])
        raise ConfigError(f"sequence {row} has costs {costs[row].tolist()}, a pack holds {list(budgets)}")
    groups: list[list[int]] = []
    free = np.empty((16, len(budgets)), dtype=np.int64)
    for row in np.argsort(-(costs / limits).max(axis=1), kind="stable").tolist():
        now = free[: len(groups)]
        fitting = np.flatnonzero((now >= costs[row]).all(axis=1))
        if len(fitting):
            pack = int(fitting[np.argmin(now[fitting, 0])])
        else:
            pack = len(groups)
            groups.append([])
            if pack == len(free):
                free = np.concatenate([free, np.empty_like(free)])
            free[pack] = limits
        groups[pack].append(row)
        free[pack] -= costs[row]
    return groups


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

    >>> packing_efficiency([3, 5, 4, 2], [[1, 0], [2, 3]], capacity=8)
    0.875
    """
    sums = [sum(lengths[position] for position in group) for group in groups]
    capacities = sum(max(total, capacity) for total in sums)
    return sum(sums) / capacities if capacities else 1.0


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


class FitToPack(enum.Enum):
    """What a `Packing` does to each sample before it is packed."""

    SKIP_OR_TRUNCATE = "admitted"
    """`Packing.admitted`, for packs that are chosen from a buffer."""
    TRUNCATE_ONLY = "truncated"
    """`Packing.truncated`, for packs in which no sample is that was too long when it was measured."""


Overlong: TypeAlias = Literal["drop", "truncate", "alone"]
Remeasured: TypeAlias = Literal["drop", "truncate", "error"]


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

    `budgets` are limits of a pack besides its length, such as `{"images": 16, "image_tokens": 4096}`, of what
    `costs` (the encoder's) counts in a sample, or `{"samples": 8}`; one that exceeds them alone is dropped, or with
    "alone" its own pack. With `budgets`, and with `packing="planned"`, packs are made by best fit, whatever the
    packer. `remeasured` says what happens in a planned pack that is too long, as samples are longer now than when
    they were measured: the samples for which there is no room are dropped ("drop"; counted as `left_out`),
    truncated, or stop the run ("error"), as do samples of which hooks make other parts than were measured.

    >>> packing = Packing(length=len, capacity=8, overlong="drop", carry_over=False)
    >>> packing(["aaa", "bbbbb", "cccc", "dd"])
    [['bbbbb', 'aaa'], ['cccc', 'dd']]

    Raises:
        ConfigError: if a setting is wrong.
    """

    length: Callable[[Any], int]
    capacity: int
    overlong: Overlong
    truncate: Callable[[Any, int], Any] | None = None
    packer: str | Packer = "first_fit_decreasing"
    carry_over: bool = True
    budgets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    costs: Callable[[Any], Mapping[str, int]] | None = None
    remeasured: Remeasured = "drop"
    NOT_COSTS: ClassVar = (
        "capacity",
        "overlong",
        "truncate",
        "packer",
        "carry_over",
        "budgets",
        "costs",
        "remeasured",
    )
    """Fields that change no cost of a sample, for `costs_key`."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "capacity")
        if self.budgets and self.costs is None:
            raise ConfigError(
                f"Packing(budgets={dict(self.budgets)}) needs costs=..., a function of a sample that returns its costs "
                "by name, such as the encoder's `costs`"
            )
        if not all(type(most) is int and most >= 1 for most in self.budgets.values()):
            raise ConfigError(f"Packing(budgets={dict(self.budgets)}): expected whole numbers of 1 or more")
        for name, known in (
            ("overlong", get_args(Overlong)),
            ("packer", PACKERS),
            ("remeasured", get_args(Remeasured)),
        ):
            value = getattr(self, name)
            if not callable(value) and value not in known:
                raise ConfigError(f"Packing({name}={value!r}): expected one of {', '.join(map(repr, known))}")
        if ("truncate" in (self.overlong, self.remeasured)) != (self.truncate is not None):
            raise ConfigError(
                "Packing(overlong='truncate') needs truncate=..., a function of (sample, capacity) that returns a "
                "sample of that length at most; other policies do not use it"
            )

    def admitted(self, sample: Any) -> tuple[Any, bool]:
        """The sample for the buffer, and whether it was truncated. A SkipSample if it is too long and dropped."""
        length, *others = self.costs_of(sample)
        for (name, most), cost in zip(self.budgets.items(), others, strict=True):
            if cost > most and self.overlong != "alone":
                raise SkipSample(f"it has {cost} {name}, a pack holds {most}")
        if length > self.capacity and self.overlong == "drop":
            raise SkipSample(f"its length is {length}, a pack holds {self.capacity}")
        return self.truncated(sample)

    def truncated(self, sample: Any) -> tuple[Any, bool]:
        """The sample, truncated if it is too long and the policy says so; and whether it was.

        Raises:
            ConfigError: if `truncate` leaves it too long.
        """
        length = self.length(sample)
        if self.truncate is None or self.overlong != "truncate" or length <= self.capacity:
            return sample, False
        cut = self.truncate(sample, self.capacity)
        if self.length(cut) > self.capacity:
            raise ConfigError(
                f"Packing(truncate=...): it made a sample of length {self.length(cut)} out of one of {length}, but a "
                f"pack holds {self.capacity}"
            )
        return cut, True

    def costs_of(self, sample: Any) -> list[int]:
        """The length of a sample, and what it takes of each of the `budgets`."""
        if not self.budgets:
            return [self.length(sample)]
        assert self.costs is not None
        costs = self.costs(sample)
        return [self.length(sample), *(costs.get(name, int(name == "samples")) for name in self.budgets)]

    def __call__(self, samples: list[Any]) -> list[list[Any]]:
        """The packs of `samples`; with `carry_over`, all but one."""
        costs = np.array([self.costs_of(sample) for sample in samples], dtype=np.int64).reshape(
            -1, 1 + len(self.budgets)
        )
        lengths, budgets = costs[:, 0].tolist(), [self.capacity, *self.budgets.values()]
        is_long = (costs > budgets).any(axis=1)
        alone, fitting = np.flatnonzero(is_long).tolist(), np.flatnonzero(~is_long).tolist()
        if self.budgets:
            made = packs_within(costs[fitting], budgets)
        else:
            packer = self.packer if callable(self.packer) else PACKERS[self.packer]
            made = packer([lengths[number] for number in fitting], self.capacity)
        groups = [[fitting[position] for position in group] for group in made]
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
