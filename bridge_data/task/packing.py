"""`select_samples_to_pack` out of a length function and a packer.

Enters: the samples of the packing buffer. Leaves: packs of them, none longer than the capacity. Guarantees: each sample
is in one pack, or left for the next buffer, or it is longer than a pack and dealt with as declared, and counted; what
is left for the next buffer is in a pack of that one or of a later one: none waits for ever.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

from bridge_data.errors import ConfigError, SkipSample
from bridge_data.task.packers import PACKERS, Packer
from bridge_data.task.stateless import stateless

Overlong: TypeAlias = Literal["drop", "truncate", "alone"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Packing:
    """Put it into a task encoder as `select_samples_to_pack`, in the class or, as `self.select_samples_to_pack`, in
    `__init__`.

    `length` is that of a sample as `preencode_sample` (or `encode_sample`) makes it; the lengths of a pack's samples
    sum up to `capacity` at most. A longer sample is, by `overlong`, dropped ("drop"; counted as skipped by
    `select_samples_to_pack`), cut by `truncate(sample, capacity)` ("truncate"; counted in `loader.truncated`), or made
    a pack of its own ("alone"). `packer` is one of `bridge_data.task.packers`, by name, or a function of yours of the
    same form. With `carry_over`, the emptiest pack of a buffer is left for the next one, where it may be filled.

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
        if self.capacity < 1:
            raise ConfigError(f"Packing(capacity={self.capacity}): expected at least 1")
        for name, known in (("overlong", get_args(Overlong)), ("packer", PACKERS)):
            value = getattr(self, name)
            if not callable(value) and value not in known:
                raise ConfigError(f"Packing({name}={value!r}): expected one of {', '.join(map(repr, known))}")
        if (self.overlong == "truncate") != (self.truncate is not None):
            raise ConfigError(
                "Packing(overlong='truncate') needs truncate=..., a function of (sample, capacity) that returns a "
                "sample of that length at most; other policies have no use for it"
            )

    def admitted(self, sample: Any) -> tuple[Any, bool]:
        """A sample as it goes into the buffer, and whether it was cut.

        Raises:
            SkipSample: if it is too long, and to be dropped.
            ConfigError: if `truncate` did not make it short enough.
        """
        length = self.length(sample)
        if length <= self.capacity or self.overlong == "alone":
            return sample, False
        if self.truncate is None:
            raise SkipSample
        cut = self.truncate(sample, self.capacity)
        if self.length(cut) > self.capacity:
            raise ConfigError(
                f"Packing(truncate=...): it made a sample of length {self.length(cut)} out of one of {length}, but a "
                f"pack holds {self.capacity}"
            )
        return cut, True

    def __call__(self, samples: list[Any]) -> list[list[Any]]:
        """Packs of some of `samples`."""
        lengths = [self.length(sample) for sample in samples]
        alone = [number for number, length in enumerate(lengths) if length > self.capacity]
        fitting = [number for number, length in enumerate(lengths) if length <= self.capacity]
        packer = self.packer if callable(self.packer) else PACKERS[self.packer]
        groups = [
            [fitting[place] for place in group]
            for group in packer([lengths[number] for number in fitting], self.capacity)
        ]
        if self.carry_over and len(groups) > 1:
            groups.remove(self._emptiest(groups, lengths))
        return [[samples[number] for number in group] for group in [[number] for number in alone] + groups]

    def _emptiest(self, groups: list[list[int]], lengths: list[int]) -> list[int]:
        """The pack to be left for the next buffer. Never that of the first sample: the first ones were left before, and
        so move up from buffer to buffer."""
        first = min(min(group) for group in groups)
        return min((group for group in groups if first not in group), key=lambda group: sum(lengths[n] for n in group))


stateless(Packing)
