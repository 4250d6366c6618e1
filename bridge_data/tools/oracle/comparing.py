"""From which step the data of two runs differ, and why.

Input: the orders of two runs. Output: the settings that differ, and the first step whose samples do. Guarantee: what is
compared is the samples themselves, in their order: source by content, epoch, index, part, and packs.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from bridge_data.order.state import LoaderState
from bridge_data.tools.oracle.run_order import RunOrder, RunSample


@dataclasses.dataclass(frozen=True, slots=True)
class RunDifference:
    """`reasons` are differences of the settings, in words. `step` is the first in which the samples differ, None if
    that is none of those compared; `first` and `second` are what each run has at the first place that differs, None
    where it has no sample there."""

    reasons: list[str]
    step: int | None
    first: RunSample | None = None
    second: RunSample | None = None


def first_difference(one: RunOrder, other: RunOrder, *, steps: Sequence[int]) -> RunDifference:
    """The difference of two runs in these steps."""
    reasons = [
        text.replace("the state has", "the first has").replace("this run has", "the second")
        for _, text in LoaderState(one.dataset.fingerprint(), [], 0, {}).differences(other.dataset.fingerprint())
    ]
    for name, values in _others(one, other).items():
        if values[0] != values[1]:
            reasons.append(f"{name}: the first has {values[0]}, the second {values[1]}")
    for step in steps:
        samples = [run.at(step).samples for run in (one, other)]
        names = [[_identity(run, sample) for sample in found] for run, found in zip((one, other), samples, strict=True)]
        if names[0] == names[1]:
            continue
        same = next((at for at, pair in enumerate(zip(*names, strict=False)) if pair[0] != pair[1]), None)
        place = min(map(len, names)) if same is None else same
        first, second = (found[place] if place < len(found) else None for found in samples)
        return RunDifference(reasons, step, first, second)
    return RunDifference(reasons, None)


def _others(one: RunOrder, other: RunOrder) -> dict[str, list[Any]]:
    runs = (one, other)
    return {
        "num_lanes": [run.num_lanes for run in runs],
        "global_batch_size": [run.schedule.global_batch_size for run in runs],
        "rampup_batch_size": [run.schedule.rampup_batch_size for run in runs],
    }


def _identity(run: RunOrder, sample: RunSample) -> tuple[Any, ...]:
    source = run.dataset.source_names[sample.source_number]
    return source, sample.epoch, sample.index, sample.part, sample.place, sample.place_in_pack
