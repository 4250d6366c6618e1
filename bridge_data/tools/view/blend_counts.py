"""The blend of a split part: the requested shares, and the exact counts that a run draws.

Enters: a plan with weights. Leaves: for each source its share and its draws. Guarantee: the counts are those of the
order itself (`random_draws.Schedule`), by arithmetic; nothing is read.
"""

import dataclasses

import numpy as np

from bridge_data.errors import ConfigError
from bridge_data.order import Schedule
from bridge_data.plan import Plan

MAX_DRAWS, MAX_LANES = 10**12, 4096


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceShare:
    """A source of a blend: `asked` is its requested share at the end of the draws, from 0 to 1; `drawn` are samples."""

    number: int
    name: str
    path: str
    num_samples: int
    asked: float
    drawn: int
    share: float

    @property
    def epochs(self) -> float:
        """The number of epochs of its samples that were drawn."""
        return self.drawn / self.num_samples


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BlendCounts:
    """A blend after `draws` samples of a job with `num_lanes` lanes. `changes` are the samples at which weights
    change."""

    draws: int
    num_lanes: int
    sources: tuple[SourceShare, ...]
    changes: tuple[int, ...]


def count_draws(plan: Plan, draws: int, num_lanes: int, seed: int) -> BlendCounts:
    """The samples of each source in `draws` draws, which the lanes share equally.

    Raises:
        ConfigError: if the plan has no weights, or a number is out of range.
    """
    if plan.weights is None:
        raise ConfigError("this split part is read front to back, as for validation: it has no blend")
    if not (1 <= draws <= MAX_DRAWS and 1 <= num_lanes <= MAX_LANES):
        raise ConfigError(
            f"draws={draws}, lanes={num_lanes}: expected 1 to {MAX_DRAWS:,} draws and 1 to {MAX_LANES:,} lanes"
        )
    weights = plan.weights
    for start, later in plan.later_weights:
        weights = later if start < draws else weights
    counts = np.zeros(len(plan.sources), dtype=np.int64)
    if len(plan.sources) == 1:
        counts[0] = draws
    else:
        schedule = Schedule([(0, plan.weights), *plan.later_weights], seed)
        each, rest = divmod(draws, num_lanes)
        for lane in range(num_lanes):
            counts += schedule.counts(lane, num_lanes, each + (lane < rest))
    sources = tuple(
        SourceShare(
            number=number,
            name=source.name,
            path=source.path,
            num_samples=source.num_samples,
            asked=weights[number],
            drawn=int(counts[number]),
            share=int(counts[number]) / draws,
        )
        for number, source in enumerate(plan.sources)
    )
    changes = tuple(start for start, _ in plan.later_weights)
    return BlendCounts(draws=draws, num_lanes=num_lanes, sources=sources, changes=changes)
