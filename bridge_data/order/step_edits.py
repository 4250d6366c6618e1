"""Skipped and repeated steps: when each micro-batch of the original run comes.

A micro-batch has a *number* in the run without skips and repeats, which says what is in it and which lane makes it. Its
*slot* says when the job hands it out. Without skips and repeats both are equal.

Input: ranges of numbers that are skipped, or handed out twice. Output: the number of a slot, the slots of a number, the
turns of a lane. Guarantee: arithmetic alone, so it is the same on any number of ranks, workers and lanes.

A state keeps the ranges in its `extras`, also those that are over, because later slots and numbers differ by them:
`{"step_edits": {"version": 1, "data": [[first, stop, times], ...]}}`, sorted by `first`, `times` 0 for a skip and 2 for
a repeat. In a lane's state, `kept` is its state before the first micro-batch of a range that it will repeat.
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


class StepEdit(NamedTuple):
    """Micro-batches `first` to `stop - 1` are handed out `times` times: 0 or 2."""

    first: int
    stop: int
    times: int

    def __str__(self) -> str:
        what = "skip" if self.times == 0 else "repeat"
        return f"{what} micro-batches {self.first} to {self.stop - 1}"


class LaneTurn(NamedTuple):
    """A lane hands out its own micro-batch number `place` in `slot`; `is_kept`: its state before that is needed
    again."""

    slot: int
    place: int
    is_kept: bool


class _Run(NamedTuple):
    """`length` slots from `slot` on hold the micro-batches from `number` on; None: without end."""

    slot: int
    number: int
    length: int | None


@dataclasses.dataclass(frozen=True)
class StepEdits:
    """Ranges that are skipped or repeated, at least one, by their first micro-batch.

    Raises:
        ConfigError: if a repeated range overlaps another one.
    """

    edits: tuple[StepEdit, ...]
    names: Mapping[StepEdit, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    """The ranges as the options name them, if known."""

    def __post_init__(self) -> None:
        for one, other in itertools.pairwise(self.edits):
            if one.stop > other.first:
                raise ConfigError(f"{one} and {other}: these overlap; skip or repeat a micro-batch only once")

    @classmethod
    def of(cls, edits: Sequence[StepEdit], names: Mapping[StepEdit, str] | None = None) -> Self | None:
        """Ranges in any order, of which skips may overlap; None if there are none.

        Raises:
            ConfigError: if a repeated range overlaps another one.
        """
        found: list[StepEdit] = []
        for edit in sorted(set(edits)):
            last = found[-1] if found else None
            if last is not None and last.times == edit.times == 0 and edit.first <= last.stop:
                found[-1] = last._replace(stop=max(last.stop, edit.stop))
            else:
                found.append(edit)
        return cls(tuple(found), names or {}) if found else None

    @classmethod
    def of_steps(
        cls, first_micro_batch: Callable[[int], int], skip_steps: Sequence[Any], repeat_steps: Sequence[Any]
    ) -> Self | None:
        """Steps as options give them; `first_micro_batch` returns the micro-batch with which a step begins.

        Raises:
            ConfigError: naming the option, if steps are not numbers, reversed, or overlap.
        """
        ranges = [(one, 0) for one in parse_steps("skip_steps", skip_steps)]
        ranges += [(one, 2) for one in parse_steps("repeat_steps", repeat_steps)]
        ranges.sort(key=lambda found: found[0].start)
        for (one, times), (other, other_times) in itertools.pairwise(ranges):
            if other.start < one.stop:
                names = [f"{_option(t)} {_shown(steps)}" for steps, t in ((one, times), (other, other_times))]
                raise ConfigError(f"{names[0]} and {names[1]} overlap; skip or repeat a step only once")
        texts = {
            StepEdit(first_micro_batch(steps.start), first_micro_batch(steps.stop), times): (
                f"{_option(times)} {_shown(steps)}"
            )
            for steps, times in ranges
        }
        return cls.of(list(texts), texts)

    @classmethod
    def of_extras(cls, extras: Mapping[str, Any]) -> Self:
        """The ranges in the checked `extras` of a state that has some."""
        return cls(tuple(StepEdit(*edit) for edit in extras[NAME]["data"]))

    def in_extras(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """`extras` with these ranges."""
        return {**extras, NAME: {"version": VERSION, "data": [list(edit) for edit in self.edits]}}

    def __str__(self) -> str:
        return ", ".join(map(self.name, self.edits))

    def joined(self, other: "StepEdits | None") -> "StepEdits":
        """These ranges and others.

        Raises:
            ConfigError: if a repeated range overlaps another one.
        """
        if other is None:
            return self
        both = type(self).of([*self.edits, *other.edits], {**other.names, **self.names})
        assert both is not None
        return both

    def name(self, edit: StepEdit) -> str:
        """A range in words."""
        words = str(edit)
        return f"{self.names[edit]} ({words})" if edit in self.names else words

    @functools.cached_property
    def _runs(self) -> list[_Run]:
        """The slots in order, cut where the number jumps."""
        runs: list[_Run] = []
        slot = number = 0
        for first, stop, times in self.edits:
            end = first if times == 0 else stop
            runs.append(_Run(slot, number, end - number))
            slot, number = slot + end - number, stop if times == 0 else first
        return [*runs, _Run(slot, number, None)]

    @functools.cached_property
    def _begins(self) -> list[int]:
        return [run.slot for run in self._runs]

    @functools.cached_property
    def _edit_slots(self) -> list[int]:
        """For each range, the slot in which its first micro-batch comes, or would come."""
        jumps = self._begins[1:]
        return [jump - edit.times // 2 * (edit.stop - edit.first) for edit, jump in zip(self.edits, jumps, strict=True)]

    def check_shared(self, begin: int, world_size: int) -> None:
        """Check that ranks continuing from slot `begin` get one micro-batch each of every `world_size` slots. They do
        if the number does not jump within these, or by a multiple of `world_size`, as where whole steps are skipped.

        Raises:
            ConfigError: if they do not.
        """
        for before, run in itertools.pairwise(self._runs):
            jump = run.slot
            length = run.number - before.number - (run.slot - before.slot)
            if jump >= begin and (jump - begin) % world_size and length % world_size:
                raise ConfigError(
                    f"{self}: {world_size} data-parallel ranks cannot share the {jump - begin} micro-batches up to "
                    "there equally; skip and repeat whole steps, with a global batch that the ranks can share"
                )

    def number(self, slot: int) -> int:
        """The micro-batch that comes in a slot."""
        run = self._runs[bisect.bisect_right(self._begins, slot) - 1]
        return run.number + slot - run.slot

    def slots(self, number: int) -> list[int]:
        """The slots in which a micro-batch comes: none, one or two."""
        return [
            run.slot + number - run.number
            for run in self._runs
            if run.number <= number and (run.length is None or number < run.number + run.length)
        ]

    def stop_of(self, begin: int, end: int) -> int:
        """A number above those of all slots from `begin` to `end - 1`."""
        stops = [0]
        for run in self._runs:
            last = end if run.length is None else min(end, run.slot + run.length)
            if max(begin, run.slot) < last:
                stops.append(run.number + last - run.slot)
        return max(stops)

    def lane_slots(self, lane: int, num_lanes: int, begin: int = 0) -> Iterator[int]:
        """The slots of a lane from slot `begin` on, without end."""
        at = bisect.bisect_right(self._begins, begin) - 1
        for run in self._runs[at:]:
            slot = max(begin, run.slot)
            slot += (lane - run.number - slot + run.slot) % num_lanes
            while run.length is None or slot < run.slot + run.length:
                yield slot
                slot += num_lanes

    def lane_slot(self, lane: int, num_lanes: int, begin: int) -> int:
        """The first slot of a lane from slot `begin` on."""
        return next(self.lane_slots(lane, num_lanes, begin))

    def turns(self, lane: int, num_lanes: int, begin: int) -> Iterator[LaneTurn]:
        """The turns of a lane from slot `begin` on, without end."""
        for slot in self.lane_slots(lane, num_lanes, begin):
            number = self.number(slot)
            edit = self._edit_with(number)
            is_first = edit is not None and number - num_lanes < edit.first
            yield LaneTurn(slot, number // num_lanes, is_first and self.slots(number)[0] == slot)

    def slots_before(self, lane: int, num_lanes: int, stop: int, count: int) -> list[int]:
        """The last `count` slots of a lane before slot `stop`."""
        found: list[int] = []
        for run in reversed(self._runs):
            end = stop if run.length is None else min(stop, run.slot + run.length)
            last = end - 1 - (run.number + end - 1 - run.slot - lane) % num_lanes
            while last >= run.slot and len(found) < count:
                found.append(last)
                last -= num_lanes
        return found[::-1]

    def num_slots(self, lane: int, num_lanes: int, stop: int) -> int:
        """How many slots of a lane are before slot `stop`."""
        total = 0
        for run in self._runs:
            end = stop if run.length is None else min(stop, run.slot + run.length)
            bounds = (run.number + max(0, end - run.slot), run.number)
            total += sum(sign * -(-(bound - lane) // num_lanes) for sign, bound in zip((1, -1), bounds, strict=True))
        return total

    def from_number(self, reached: int) -> "StepEdits | None":
        """These ranges without the micro-batches before number `reached` of skips; None if nothing is left."""
        left = {
            edit: edit if edit.times else edit._replace(first=max(edit.first, reached))
            for edit in self.edits
            if edit.times or edit.stop > reached
        }
        return type(self).of([*left.values()], {left[edit]: name for edit, name in self.names.items() if edit in left})

    def not_skipped(self, other: "StepEdits | None") -> list[str]:
        """The micro-batches of skips that `other`, of a state, does not skip, in words: those from before the state."""
        found = []
        for edit in self.skips_without(other):
            whole = next(one for one in self.edits if one.first <= edit.first < one.stop)
            found.append(f"{edit.first} to {edit.stop - 1} of {self.name(whole)}")
        return found

    def skips_without(self, other: "StepEdits | None") -> Iterator[StepEdit]:
        """The skips, without the micro-batches that `other` skips."""
        for edit in self.edits:
            if edit.times:
                continue
            for taken in () if other is None else other.edits:
                if taken.times == edit.times and edit.first < taken.stop and taken.first < edit.stop:
                    if edit.first < taken.first:
                        yield edit._replace(stop=taken.first)
                    edit = edit._replace(first=min(taken.stop, edit.stop))
            if edit.first < edit.stop:
                yield edit

    def added_behind(self, before: "StepEdits | None", slot: int) -> StepEdit | None:
        """A range that `before` does not have, and that begins before `slot`; None if there is none."""
        for edit, begin in zip(self.edits, self._edit_slots, strict=True):
            if begin < slot and (before is None or edit not in before.edits):
                return edit
        return None

    def repeated_at(self, slot: int) -> StepEdit | None:
        """The repeated range that slot `slot` is in the middle of."""
        for edit, begin in zip(self.edits, self._edit_slots, strict=True):
            if begin < slot < begin + edit.times * (edit.stop - edit.first):
                return edit
        return None

    def ahead(self, slot: int) -> list[StepEdit]:
        """The ranges that begin in `slot` or later, and the one that is being repeated."""
        within = self.repeated_at(slot)
        pairs = zip(self.edits, self._edit_slots, strict=True)
        return [edit for edit, begin in pairs if begin >= slot or edit == within]

    def _edit_with(self, number: int) -> StepEdit | None:
        """The repeated range that a micro-batch is in."""
        for edit in self.edits:
            if edit.times and edit.first <= number < edit.stop:
                return edit
        return None


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


def _option(times: int) -> str:
    return "repeat_steps" if times else "skip_steps"


def _shown(steps: range) -> str:
    return f"{steps[0]}-{steps[-1]}" if len(steps) > 1 else str(steps[0])
