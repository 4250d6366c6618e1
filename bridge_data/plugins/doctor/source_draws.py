"""How often a run draws each source: by arithmetic, or, if weights count tokens, at the rates of the first draws."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.order.plan_order import PlanOrder
from bridge_data.order.state import LoaderState
from bridge_data.plan.blending import SAMPLES
from bridge_data.runs.run_plan import EXACT_SAMPLES, drawn_of_sources, passes_of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceDraws:
    """The draws of a source in a run: its `share` at the beginning; `draws` in all, that is `epochs` (None: the length
    of the run is not known)."""

    name: str
    num_samples: int
    share: float
    draws: int | None
    epochs: float | None


def draws_of_sources(dataset: LaneDataset, num_drawn: int | None) -> list[SourceDraws]:
    """How often each source is drawn by a job of `num_drawn` draws (None: not known). If weights count tokens, at the
    rates of its first draws, `EXACT_SAMPLES` at most."""
    plan, drawn, made = dataset.plan, None, []
    shares: Sequence[float] = plan.weights or [1.0] * len(plan.sources)
    if dataset.finite:
        passes = passes_of(plan)
        shares = [count / sum(passes) for count in passes]
    elif plan.weight_unit != SAMPLES:
        shares = _first_shares(dataset.order, min(num_drawn or EXACT_SAMPLES, EXACT_SAMPLES))
    if num_drawn is not None:
        found = drawn_of_sources(dataset, num_drawn, dataset.worker_config.num_lanes)
        drawn = [round(share * num_drawn) for share in shares] if found is None else found.tolist()
    for number, (source, share) in enumerate(zip(plan.sources, shares, strict=True)):
        draws = None if drawn is None else drawn[number]
        epochs = None if draws is None else draws / source.num_samples
        own = SourceDraws(name=source.name, num_samples=source.num_samples, share=share, draws=draws, epochs=epochs)
        made.append(own)
    return made


def _first_shares(order: PlanOrder, draws: int) -> list[float]:
    """The share of each source in the first draws of a job."""
    cursor = order.cursor(0, LoaderState({}, [order.first_generation(1)], 0, {}))
    counts = np.zeros(len(order.sizes), np.int64)
    while missing := draws - int(counts.sum()):
        counts += np.bincount([ref.source for _, ref in cursor.take(missing)], minlength=len(counts))
    return [count / draws for count in counts.tolist()]
