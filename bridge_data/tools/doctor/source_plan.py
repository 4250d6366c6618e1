"""How often each source is drawn in the course of a run, and how many epochs that is.

Enters: a plan, and numbers of samples that the job has drawn. Leaves: draws and epochs by source. Guarantee: the shares
are those of the plan, with its schedules of weights; the order keeps them to a few draws a lane.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bridge_data.plan import Plan
from bridge_data.tools.doctor.findings import Finding, Level

MANY_EPOCHS = 4
"""Repeating text data up to so often is nearly as good as new data. Source: Muennighoff et al., "Scaling
Data-Constrained Language Models" (2023)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceDraws:
    """What is drawn of a source in a run: `share` of the draws at its beginning; `draws` in all, that is `epochs`
    (None: the length of the run is not known)."""

    name: str
    num_samples: int
    share: float
    draws: float | None
    epochs: float | None


def draws_after(plan: Plan, drawn: ArrayLike) -> NDArray[np.float64]:
    """The draws of each source when the job has drawn so many samples, (numbers, sources)."""
    totals = np.atleast_1d(np.asarray(drawn, dtype=np.float64))[:, None]
    counts = np.zeros((len(totals), len(plan.sources)))
    phases = _phases(plan)
    ends = [start for start, _ in phases[1:]] + [np.inf]
    for (start, weights), end in zip(phases, ends, strict=True):
        counts += np.clip(totals - start, 0, end - start) * np.asarray(weights)
    return counts


def shares_at(plan: Plan, drawn: ArrayLike) -> NDArray[np.float64]:
    """The shares of the sources in the next draw when the job has drawn so many samples, (numbers, sources)."""
    phases = _phases(plan)
    number = np.searchsorted([start for start, _ in phases], np.atleast_1d(drawn), side="right") - 1
    return np.asarray([weights for _, weights in phases])[number]


def plan_sources(plan: Plan, num_drawn: float | None) -> list[SourceDraws]:
    """What is drawn of each source in a run of `num_drawn` draws (None: not known)."""
    draws = [None] * len(plan.sources) if num_drawn is None else draws_after(plan, num_drawn)[0].tolist()
    return [
        SourceDraws(
            name=source.name,
            num_samples=source.num_samples,
            share=share,
            draws=number,
            epochs=None if number is None else number / source.num_samples,
        )
        for source, share, number in zip(plan.sources, plan.weights or (), draws, strict=True)
    ]


def check_epochs_of(sources: Sequence[SourceDraws]) -> Iterator[Finding]:
    """Sources that come very often, or never."""
    total = sum(source.draws or 0.0 for source in sources)
    enough = total <= MANY_EPOCHS * sum(source.num_samples for source in sources)
    for source in sources:
        if source.draws is None or source.epochs is None:
            continue
        if source.draws < 1:
            yield Finding(
                code="never-drawn",
                level=Level.NOTE,
                what=f"{source.name}: no sample of it is drawn in this run",
                change="raise its weight, or leave it out of the blend",
            )
        elif source.epochs > MANY_EPOCHS:
            share = MANY_EPOCHS * source.num_samples / total
            way_out = f"lower its weight to {share:.2%} of the draws or less" if enough else "train fewer steps"
            yield Finding(
                code="many-epochs",
                level=Level.NOTE,
                what=f"{source.name}: each sample comes {source.epochs:,.1f} times in this run",
                change=f"{way_out}, or add data",
                gain=f"at most {MANY_EPOCHS} epochs",
                factor=source.epochs / MANY_EPOCHS,
            )


def _phases(plan: Plan) -> list[tuple[int, tuple[float, ...]]]:
    return [(0, plan.weights or ()), *plan.later_weights]
