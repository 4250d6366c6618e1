"""How often an item of a blend is drawn: its weight, and how many epochs of a source are shuffled together.

A weight is one number, or a schedule that follows the samples drawn so far:

    weight: [{from_sample: 0, weight: 5}, {from_sample: 1_000_000, weight: 1}]

Enters: the YAML of a weight. Leaves: a finite number of 0 or more, or a `WeightSchedule` of them; 0 leaves the item
out, for as long as it holds. Guarantee: errors name the file and line.

`shuffle_over_epochs_multiplier` is an `EpochsPerShuffle`. With 1, each epoch is shuffled alone. With n, a sample comes
n times in n epochs, maybe twice before another comes once. -1 draws chunks as if with replacement, each equally often
in the long run. None does not shuffle: every lane reads its chunks in the order of the data.
"""

import dataclasses
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import TypeAlias

from bridge_data.errors import ConfigError
from bridge_data.plan.document import Node

EpochsPerShuffle: TypeAlias = int | None

WITH_REPLACEMENT = -1

MANY_EPOCHS = 256
"""Epochs that are shuffled together for -1. The number of draws of a chunk then varies 99.6% as much as it would with
replacement."""


@dataclasses.dataclass(frozen=True, slots=True)
class WeightSchedule:
    """`(from_sample, weight)` in ascending sequence, the first from sample 0: each holds until the next one, counted
    in samples that the whole job has drawn."""

    steps: tuple[tuple[int, float], ...]

    def at(self, sample: int) -> float:
        """The weight that holds from `sample` on."""
        return [weight for start, weight in self.steps if start <= sample][-1]


Weight: TypeAlias = float | WeightSchedule


def weight_at(weight: Weight, sample: int) -> float:
    """The weight that holds when the job has drawn `sample` samples."""
    return weight.at(sample) if isinstance(weight, WeightSchedule) else weight


def as_written(number: float) -> Fraction:
    """The number that was written for `number`: 1/10 for 0.1, where the float is a little more."""
    return Fraction(str(number))


def changes(weights: Iterable[Weight]) -> set[int]:
    """The samples above 0 at which one of the weights changes."""
    schedules = (weight for weight in weights if isinstance(weight, WeightSchedule))
    return {start for schedule in schedules for start, _ in schedule.steps[1:]}


def read_weight(node: Node, key: str, of: str = "") -> Weight:
    """The weight at `node`, the value of `key`; only a `weight` may be a schedule, or 0. Messages name what it is `of`.

    Raises:
        ConfigError: naming file and line, if it is neither a finite number of 0 or more nor a schedule.
    """
    what = f"{key} of {of}" if of else key
    if isinstance(node.value, list) and key == "weight":
        return _schedule(node)
    number = _number(node, what)
    if not number and key != "weight":
        raise node.error(f"{what}: expected a number above 0, got 0; to leave a data set out, remove it")
    return number


def _number(node: Node, what: str) -> float:
    try:
        number = float(node.number(what))
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise node.error(f"{what}: expected a finite number of 0 or more, got {number:g}")
    return number


def _schedule(node: Node) -> WeightSchedule:
    steps: list[tuple[int, float]] = []
    for item in node.sequence("weight"):
        step = item.mapping("step of a schedule", ("from_sample", "weight"))
        for key in ("from_sample", "weight"):
            if key not in step:
                raise item.error(f"step of a schedule: {key} is missing, expected {{from_sample: N, weight: W}}")
        start, weight = step["from_sample"].number("from_sample"), _number(step["weight"], "weight")
        if not float(start).is_integer() or start < 0:
            raise step["from_sample"].error(f"from_sample: expected a whole number of samples, got {start:g}")
        if not steps and start != 0:
            raise step["from_sample"].error(
                f"from_sample: the first step of a schedule begins at 0, got {start:g}; give the weight from there on "
                "(0: to begin later)"
            )
        if steps and start <= steps[-1][0]:
            raise step["from_sample"].error(
                f"from_sample: {start:g} comes after {steps[-1][0]:g}; the steps of a schedule must ascend"
            )
        steps.append((int(start), weight))
    if not steps:
        raise node.error("weight: the schedule is empty, expected steps {from_sample: N, weight: W}")
    return WeightSchedule(tuple(steps))


def check_epochs(epochs: object) -> EpochsPerShuffle:
    """`epochs`, if it is valid.

    Raises:
        ConfigError: if it is not.
    """
    if epochs is None or (isinstance(epochs, int) and not isinstance(epochs, bool) and (epochs >= 1 or epochs == -1)):
        return epochs
    raise ConfigError(
        f"shuffle_over_epochs_multiplier: got {epochs!r}, expected a number of epochs from 1 on, -1 for drawing with "
        "replacement, or null for no shuffling"
    )


def multiplied(outer: EpochsPerShuffle, inner: EpochsPerShuffle) -> EpochsPerShuffle:
    """The value for a source below two levels that give one: None wins over -1, which wins over the product."""
    if outer is None or inner is None:
        return None
    if WITH_REPLACEMENT in (outer, inner):
        return WITH_REPLACEMENT
    return outer * inner


def together(epochs: EpochsPerShuffle) -> int | None:
    """The number of epochs that a `Row` shuffles together."""
    return MANY_EPOCHS if epochs == WITH_REPLACEMENT else epochs
