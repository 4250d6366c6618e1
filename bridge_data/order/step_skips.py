"""Skipped steps: the micro-batches of the job that lanes make and no rank gets.

Reads the steps that the options name. Returns ranges of micro-batch indices, and how indices and what was handed out
relate: the trainer's step N of a run with skips has the data of a later step of the run without. Arithmetic alone, so
it is the same on any number of ranks, workers and lanes. Raises a ConfigError for steps that are no numbers, overlap,
or cannot be shared by the ranks.
"""

import dataclasses
import itertools
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from bridge_data.errors import ConfigError

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
        """Steps as options give them; `first_micro_batch` returns the index of the micro-batch with which a step
        begins.

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

    def __contains__(self, index: object) -> bool:
        """Whether the micro-batch of this index is skipped."""
        return any(first <= index < stop for first, stop in self.ranges)  # type: ignore[operator]

    def num_handed_out(self, index: int) -> int:
        """How many of the micro-batches before `index` are handed out."""
        return index - sum(min(stop, index) - first for first, stop in self.ranges if first < index)

    def index_after(self, num_handed_out: int) -> int:
        """The index of the micro-batch that comes after so many were handed out."""
        index = num_handed_out
        for first, stop in self.ranges:
            index += stop - first if first <= index else 0
        return index

    def check_shared(self, begin: int, world_size: int) -> None:
        """Check that ranks continuing from micro-batch `begin` take turns: of every `world_size` micro-batches that are
        handed out, each gets one. They do if whole multiples of `world_size` come before a range, or are in it.

        Raises:
            ConfigError: if they do not.
        """
        for first, stop in self.ranges:
            before = self.num_handed_out(first) - self.num_handed_out(begin)
            if first >= begin and before % world_size and (stop - first) % world_size:
                raise ConfigError(
                    f"{self}: {world_size} data-parallel ranks cannot share the {before} micro-batches up to "
                    "there equally; skip whole steps, with a global batch that the ranks can share"
                )

    def from_index(self, reached: int) -> "StepSkips | None":
        """These ranges without the micro-batches before `reached`; None if nothing is left."""
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
