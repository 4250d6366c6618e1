"""Subsets: a consecutive range of a data set's samples, such as `subset: {range: [10%, 20%]}`.

Reads the values in YAML, at one or several levels of a metadataset. Returns the numbers of the first sample and of the
one after the last, and `Records` with these samples only. Raises `ConfigError` for a range that reaches beyond the
data. Ranges that share a bound share no sample and leave none out.

Source: the rules are those of Megatron-Energon, to the sample: absolute numbers are applied first, then the percentages
from the innermost to the outermost level, in double precision, rounded down.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from bridge_data.data.plain_data import Node
from bridge_data.data.records import Selection, count_samples, counts_of, label_of
from bridge_data.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EXAMPLES = "expected two bounds such as [10%, 50%], [100, 200] or [100, end]"


@dataclasses.dataclass(frozen=True, slots=True)
class SubsetRange:
    """A range: `absolute` sample numbers (None: no bounds; end None: the end of the data), and `relative` shares of the
    samples in them."""

    absolute: tuple[int, int | None] | None = None
    relative: tuple[float, float] = (0.0, 1.0)

    @classmethod
    def parse(cls, value: Any) -> SubsetRange:
        """The range in `value`: `[start, end]` or `{range: [start, end]}`, plain or as a YAML node.

        Raises:
            ConfigError: naming file and line, if it is a node.
        """
        if not isinstance(value, Node):
            return cls._parsed(value)
        with value.placed():
            return cls._parsed(value.plain())

    @classmethod
    def _parsed(cls, value: Any) -> SubsetRange:
        if isinstance(value, dict):
            if list(value) != ["range"]:
                raise ConfigError(
                    f"subset: expected `range` alone, such as {{range: [10%, 50%]}}, got {', '.join(map(str, value))}"
                )
            value = value["range"]
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            raise ConfigError(f"subset: range: got {value!r}, {_EXAMPLES}")
        start, end = map(_bound, value)
        if isinstance(start, float) and isinstance(end, float):
            if start > end:
                raise ConfigError(f"subset: range: {value[0]} comes after {value[1]}; {_EXAMPLES}")
            return cls(relative=(start, end))
        if isinstance(start, float) or isinstance(end, float) or start is None:
            raise ConfigError(
                f"subset: range: got [{value[0]}, {value[1]}], {_EXAMPLES}: both percentages or both sample numbers, "
                "and `end` only after a number"
            )
        if end is not None and start > end:
            raise ConfigError(f"subset: range: {start} comes after {end}; {_EXAMPLES}")
        return cls(absolute=(start, end))

    def within(self, outer: SubsetRange | None) -> SubsetRange:
        """This range, narrowed by the range `outer` of the level above.

        Raises:
            ConfigError: if `outer` is absolute.
        """
        if outer is None:
            return self
        if outer.absolute is not None:
            raise ConfigError(
                f"subset: range: {outer}: sample numbers are for a single data set only, since a blend or another "
                "metadataset has no numbering; give percentages here, or the numbers to its data sets"
            )
        start, end = self.relative
        first, last = outer.relative
        length = end - start
        return SubsetRange(self.absolute, (start + first * length, start + last * length))

    def resolve(self, num_samples: int) -> tuple[int, int]:
        """(first sample, the one after the last) in a data set of `num_samples`; equal, if the range is empty.

        Raises:
            ConfigError: if it reaches beyond the data.
        """
        start, end = 0, num_samples
        if self.absolute is not None:
            start = self.absolute[0]
            end = num_samples if self.absolute[1] is None else self.absolute[1]
            if end > num_samples or start > end:
                raise ConfigError(
                    f"subset: range: {self} reaches beyond the data, which have {num_samples} samples; "
                    f"the last possible bound is {num_samples}, or `end`"
                )
        length = end - start
        return start + int(length * self.relative[0]), start + int(length * self.relative[1])

    def __str__(self) -> str:
        shares = "" if self.relative == (0.0, 1.0) else "[" + ", ".join(f"{100 * x:g}%" for x in self.relative) + "]"
        if self.absolute is None:
            return shares or "[0%, 100%]"
        start, end = self.absolute
        bounds = f"[{start}, {'end' if end is None else end}]"
        return f"{shares} of {bounds}" if shares else bounds


def _bound(value: Any) -> int | float | None:
    """A sample number, a share, or None for the end."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ConfigError(f"subset: range: got {value}, but samples are numbered from 0")
        return value
    if isinstance(value, str):
        text = value.strip()
        if text == "end":
            return None
        if text.endswith("%"):
            try:
                percentage = float(text[:-1])
            except ValueError:
                percentage = -1.0
            if not 0 <= percentage <= 100:
                raise ConfigError(f"subset: range: got {value!r}, expected a percentage from 0% to 100%")
            return percentage / 100.0
    raise ConfigError(f"subset: range: got {value!r}, {_EXAMPLES}")


@dataclasses.dataclass(frozen=True, eq=False)
class Subset(Selection):
    """Samples `start` to `end` - 1 of `records`.

    Raises:
        ConfigError: if there are no such samples.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= (there := count_samples(self.records)):
            raise ConfigError(
                f"{label_of(self.records)}: subset from sample {self.start} to {self.end}, but there are {there} of "
                "them"
            )

    @property
    def num_samples(self) -> int:
        return self.end - self.start

    def to_base(self, index: int) -> int:
        return self.start + index

    def to_base_array(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return indices + self.start

    def rank(self, number: int) -> int:
        return min(max(number, self.start), self.end) - self.start

    @functools.cached_property
    def shard_counts(self) -> Sequence[int]:
        ranks = map(self.rank, itertools.accumulate(counts_of(self.records), initial=0))
        return [end - start for start, end in itertools.pairwise(ranks)]

    def identity(self) -> dict[str, Any]:
        """The identity of `records`, and the range."""
        return {"of": self.records.identity(), "range": [self.start, self.end]}


def gaps(parts: Iterable[tuple[int, int]], num_samples: int) -> tuple[int, int]:
    """Numbers of `num_samples` samples that are in none of the ranges (first, the one after the last), and in
    several."""
    num_unused = num_shared = reached = 0
    for start, end in sorted(parts):
        num_unused += max(0, start - reached)
        num_shared += max(0, min(end, reached) - start)
        reached = max(reached, end)
    return num_unused + num_samples - reached, num_shared
