"""Skipped steps: when each micro-batch of the original run comes.

A micro-batch has a *number* in the run without skips, which says what is in it and which lane makes it. Its *place* is
its index among those that the lane makes: number = place * num_lanes + lane. Its *slot* says when the job hands it out.
Without skips, slot and number are equal.

Input: ranges of numbers that are skipped. Output: the number of a slot, the slot of a number, the slots of a lane.
Guarantee: arithmetic alone, so it is the same on any number of ranks, workers and lanes.

A state keeps the ranges in its `extras`, also those that are over, because later slots and numbers differ by them:
`{"step_edits": {"version": 1, "data": [[first, stop, 0], ...]}}`, sorted by `first`. (States of releases that could
also repeat steps have a 2 instead of the 0; these are refused.)
"""

import bisect
import dataclasses
import functools
import itertools
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from bridge_data.errors import ConfigError

NAME = "step_edits"
"""The name of the extra."""
VERSION = 1

_STEPS = re.compile(r"([0-9]{1,15})(?:(?:-|\.\.)([0-9]{1,15}))?")


class SkippedRange(NamedTuple):
    """Micro-batches `first` to `stop - 1`."""

    first: int
    stop: int

    def __str__(self) -> str:
        return f"skip micro-batches {self.first} to {self.stop - 1}"


@dataclasses.dataclass(frozen=True)
class StepSkips:
    """Ranges that are skipped, at least one, by their first micro-batch; they do not overlap."""

    ranges: tuple[SkippedRange, ...]
    names: Mapping[SkippedRange, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    """The ranges as the options name them, if known."""

    @classmethod
    def of(cls, ranges: Sequence[SkippedRange], names: Mapping[SkippedRange, str] | None = None) -> Self | None:
        """Ranges in any order, of which those that touch or overlap are joined; None if there are none."""
        found: list[SkippedRange] = []
        for one in sorted(ranges):
            if found and one.first <= found[-1].stop:
                found[-1] = SkippedRange(found[-1].first, max(found[-1].stop, one.stop))
            else:
                found.append(one)
        return cls(tuple(found), names or {}) if found else None

    @classmethod
    def of_steps(cls, first_micro_batch: Callable[[int], int], skip_steps: Sequence[Any]) -> Self | None:
        """Steps as options give them; `first_micro_batch` returns the micro-batch with which a step begins.

        Raises:
            ConfigError: naming the option, if steps are not numbers, reversed, or overlap.
        """
        found = sorted(parse_steps("skip_steps", skip_steps), key=lambda steps: steps.start)
        for one, other in itertools.pairwise(found):
            if other.start < one.stop:
                raise ConfigError(f"skip_steps {_shown(one)} and {_shown(other)} overlap; skip a step only once")
        texts = {
            SkippedRange(first_micro_batch(steps.start), first_micro_batch(steps.stop)): f"skip_steps {_shown(steps)}"
            for steps in found
        }
        return cls.of(list(texts), texts)

    @classmethod
    def of_extras(cls, extras: Mapping[str, Any]) -> "Self | None":
        """The ranges in the checked `extras` of a state; None if it has none."""
        if NAME not in extras:
            return None
        return cls(tuple(SkippedRange(first, stop) for first, stop, _ in extras[NAME]["data"]))

    def in_extras(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """`extras` with these ranges."""
        return {**extras, NAME: {"version": VERSION, "data": [[first, stop, 0] for first, stop in self.ranges]}}

    def __str__(self) -> str:
        return ", ".join(map(self.name, self.ranges))

    def name(self, one: SkippedRange) -> str:
        """A range in words."""
        return f"{self.names[one]} ({one})" if one in self.names else str(one)

    def joined(self, other: "StepSkips | None") -> "StepSkips":
        """These ranges and others."""
        if other is None:
            return self
        both = type(self).of([*self.ranges, *other.ranges], {**other.names, **self.names})
        assert both is not None
        return both

    @functools.cached_property
    def _num_before(self) -> list[int]:
        """For each range, and after the last one, the micro-batches skipped before it."""
        return [0, *itertools.accumulate(stop - first for first, stop in self.ranges)]

    @functools.cached_property
    def _begins(self) -> list[int]:
        """For each range, the slot in which its first micro-batch would come."""
        return [first - before for (first, _), before in zip(self.ranges, self._num_before, strict=False)]

    def number(self, slot: int) -> int:
        """The micro-batch that comes in a slot."""
        return slot + self._num_before[bisect.bisect_right(self._begins, slot)]

    def range_with(self, number: int) -> SkippedRange | None:
        """The range that skips a micro-batch; None if it is handed out."""
        at = bisect.bisect_right(self.ranges, number, key=lambda one: one.first) - 1
        return self.ranges[at] if at >= 0 and number < self.ranges[at].stop else None

    def slot_from(self, number: int) -> int:
        """The first slot that has a micro-batch of this number or a higher one."""
        at = bisect.bisect_right(self.ranges, number, key=lambda one: one.first)
        within = max(0, self.ranges[at - 1].stop - number) if at else 0
        return number + within - self._num_before[at]

    def slot(self, number: int) -> int | None:
        """The slot in which a micro-batch comes; None if it is skipped."""
        return None if self.range_with(number) else self.slot_from(number)

    def slot_of_lane(self, lane: int, num_lanes: int, place: int) -> int:
        """The slot of the first micro-batch that a lane hands out, of its own from `place` on."""
        number = place * num_lanes + lane
        while (skipped := self.range_with(number)) is not None:
            number = skipped.stop + (lane - skipped.stop) % num_lanes
        return self.slot_from(number)

    def num_of_lane(self, lane: int, num_lanes: int, place: int) -> int:
        """How many of a lane's first `place` micro-batches are handed out."""
        stop = place * num_lanes + lane
        skipped = [(first, min(end, stop)) for first, end in self.ranges if first < stop]
        return place - sum(
            (end - lane + num_lanes - 1) // num_lanes - (first - lane + num_lanes - 1) // num_lanes
            for first, end in skipped
        )

    def check_shared(self, begin: int, world_size: int) -> None:
        """Check that ranks continuing from slot `begin` get one micro-batch each of every `world_size` slots. They do
        if the number does not jump within these, or by a multiple of `world_size`, as where whole steps are skipped.

        Raises:
            ConfigError: if they do not.
        """
        for (first, stop), jump in zip(self.ranges, self._begins, strict=True):
            if jump >= begin and (jump - begin) % world_size and (stop - first) % world_size:
                raise ConfigError(
                    f"{self}: {world_size} data-parallel ranks cannot share the {jump - begin} micro-batches up to "
                    "there equally; skip whole steps, with a global batch that the ranks can share"
                )

    def from_number(self, reached: int) -> "StepSkips | None":
        """These ranges without the micro-batches before number `reached`; None if nothing is left."""
        left = {one: SkippedRange(max(one.first, reached), one.stop) for one in self.ranges if one.stop > reached}
        names = {left[one]: name for one, name in self.names.items() if one in left}
        return type(self).of([*left.values()], names)

    def not_skipped(self, other: "StepSkips | None") -> list[str]:
        """The micro-batches that `other`, of a state, does not skip, in words: those from before the state."""
        found = []
        for first, stop in self.without(other):
            whole = next(one for one in self.ranges if one.first <= first < one.stop)
            found.append(f"{first} to {stop - 1} of {self.name(whole)}")
        return found

    def without(self, other: "StepSkips | None") -> Iterator[SkippedRange]:
        """These ranges without the micro-batches that `other` skips."""
        for first, stop in self.ranges:
            for taken in () if other is None else other.ranges:
                if first < taken.stop and taken.first < stop:
                    if first < taken.first:
                        yield SkippedRange(first, taken.first)
                    first = min(taken.stop, stop)
            if first < stop:
                yield SkippedRange(first, stop)

    def ahead(self, slot: int) -> list[SkippedRange]:
        """The ranges that begin in `slot` or later."""
        return [one for one, begin in zip(self.ranges, self._begins, strict=True) if begin >= slot]


def parse_steps(option: str, steps: Sequence[Any]) -> list[range]:
    """The ranges of steps in texts such as "1200-1260" (both included) and "1300".

    Raises:
        ConfigError: naming the option, for another text, or one whose last step comes before the first.
    """
    expected = f'expected a list of steps, such as {option}: ["1200-1260", "1300"], both ends included'
    if isinstance(steps, str | bytes) or not isinstance(steps, Sequence):
        raise ConfigError(f"{option}={steps!r}: {expected}")
    found = []
    for text in steps:
        match = None if isinstance(text, bool) else _STEPS.fullmatch(str(text).strip())
        if match is None:
            raise ConfigError(f"{option}: {reprlib.repr(text)}: {expected}; steps are counted from 0, below 10^15")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ConfigError(f"{option}: {text!r}: the last step comes before the first; write {last}-{first}")
        found.append(range(first, last + 1))
    return found


def _shown(steps: range) -> str:
    return f"{steps[0]}-{steps[-1]}" if len(steps) > 1 else str(steps[0])
