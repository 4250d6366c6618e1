"""Going on with another plan: `strict=False` of a restore.

Reads a state, and the order of a plan with other weights, additional sources, or another micro-batch size. Returns the
state of that order. Every source continues where it was, with nothing repeated or lost; only which source is drawn when
changes. Schedules of weights count the samples that the job has drawn, including those under the old plan. Raises a
`StateError` for any other difference.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from bridge_data.errors import StateError
from bridge_data.order import BlendSchedule, Cursor
from bridge_data.order.blends import SampleBlend
from bridge_data.order.pending import Pending
from bridge_data.order.plan_order import PlanOrder, order_keys
from bridge_data.order.resharding import MakeCursor
from bridge_data.order.state import Generation, LaneState, LoaderState, has_started

logger = logging.getLogger("bridge_data")

T = TypeVar("T")

TOLERATED = {
    "sources": "added data sets start with their first epoch now",
    "weights": "sources continue where they were, and are drawn by the new weights from here on",
    "schedule": "weights follow the new schedule from here on, by the samples that the job has drawn",
    "batch_size": "micro-batches have the new size; samples still come exactly once, in other batches than before",
}
"""Items of the fingerprint that may differ in a migration, which `strict=False` allows, and the effect of each."""


def migrated(order: PlanOrder, state: LoaderState, fingerprint: dict[str, Any]) -> LoaderState:
    """`state` converted to `order`, whose run has `fingerprint`; differences are logged.

    Raises:
        StateError: if they are not allowed (see `TOLERATED`).
    """
    for name, difference in state.differences(fingerprint):
        logger.warning("restoring a state of another run: %s; %s", difference, TOLERATED.get(name, "not allowed"))
    saved = [source_id for source_id, _ in state.fingerprint["sources"]]
    was, now = (
        dict(zip(saved, order_keys(saved), strict=True)),
        dict(zip(order.source_ids, order.source_keys, strict=True)),
    )
    labels = state.fingerprint["sources"]
    if moved := [label for source_id, label in labels if now.get(source_id, was[source_id]) != was[source_id]]:
        raise StateError(
            f"{', '.join(moved)}: other data sets whose shards have the same names, sizes and counts come before "
            "it now, or no longer do, so its samples would come in another order: keep the sequence of these in "
            "the plan, and add others after them"
        )
    number = {source_id: number for number, source_id in enumerate(order.source_ids)}
    kept = [number[source_id] for source_id, _ in state.fingerprint["sources"] if source_id in number]
    weights = state.fingerprint["weights"]
    blend: BlendSchedule | SampleBlend | None = None
    phases = [] if weights is None else [(0, weights), *state.fingerprint.get("schedule", ())]
    if len(kept) < len(state.fingerprint["sources"]):
        pass  # refused below
    elif order.rule is not None:
        blend = order.sample_blend_of(phases, kept)
    elif len(phases) and len(weights) > 1:
        blend = BlendSchedule(phases, order.seed).since(state.drawn_before)

    def old_cursor(lane: int) -> Cursor:
        return Cursor([order.rows(generation, kept) for generation in state.generations], blend, lane)

    found = _migrate(state, fingerprint, old_cursor, order.generation)
    if order.sample_blend is None or blend is None or isinstance(blend, BlendSchedule):
        return found
    lanes: dict[int, LaneState] = {}
    for lane, of_lane in found.lanes.items():
        own = blend.migrated(state.lanes[lane].get("blend"), order.sample_blend, kept, state.num_lanes)
        lanes[lane] = {**of_lane, "blend": own} if has_started(of_lane) else of_lane
    return dataclasses.replace(found, lanes=lanes)


def _migrate(
    state: LoaderState,
    fingerprint: dict[str, Any],
    make_cursor: MakeCursor,
    new_generation: Callable[[int, Sequence[int]], Generation],
) -> LoaderState:
    """Convert a state to the plan with `fingerprint`.

    `make_cursor` makes a cursor of a lane under the old plan. `new_generation` makes the geometries of the new plan's
    sources from the number of lanes and each source's first epoch.

    Raises:
        StateError: if more differs than `TOLERATED`, or a source is missing from the new plan.
    """
    state.check(fingerprint, tolerated=TOLERATED)
    old = [name for name, _ in state.fingerprint["sources"]]
    new = [name for name, _ in fingerprint["sources"]]
    gone = [label for name, label in state.fingerprint["sources"] if name not in new]
    if gone:
        raise StateError(
            f"the saved state has read from {', '.join(gone)}, which this plan lacks or has changed. Data sets can be "
            "added to a run; to stop drawing from one, keep it with weight 0."
        )
    if state.is_ordered and state.fingerprint != fingerprint:
        raise StateError(
            "a validation in progress cannot continue with other data or another batch size; start it again"
        )
    if state.fingerprint["batch_size"] != fingerprint["batch_size"]:
        waits_as = "queue" if fingerprint["packing_buffer_size"] is None else "packs"
        lanes = {lane: _ungrouped(lane_state, waits_as) for lane, lane_state in state.lanes.items()}
        state = dataclasses.replace(state, lanes=lanes)
    numbers = [new.index(name) for name in old]
    weights = [[of.get("weights"), of.get("schedule")] for of in (state.fingerprint, fingerprint)]
    if numbers == list(range(len(new))) and weights[0] == weights[1]:
        return dataclasses.replace(state, fingerprint=fingerprint)
    generations = []
    for num_lanes, geometry in state.generations:
        merged = new_generation(num_lanes, [0] * len(new)).rows
        for number, of_source in zip(numbers, geometry, strict=True):
            merged[number] = of_source
        generations.append(Generation(num_lanes, merged))
    lanes = {
        lane: _renumbered(lane_state, make_cursor(lane), numbers) if has_started(lane_state) else lane_state
        for lane, lane_state in state.lanes.items()
    }
    return dataclasses.replace(state, fingerprint=fingerprint, generations=generations, lanes=lanes)


def _ungrouped(state: LaneState, waits_as: str) -> LaneState:
    """A lane's state without members of incomplete micro-batches, which may be more than one of another size holds:
    they come next, in the queue or as packs, and are grouped again."""
    pending = dict(state.get("pending", {}))
    units = [unit for bucket in pending.pop("buckets", {}).values() for unit in bucket]
    if not units:
        return state
    waiting = units if waits_as == "packs" else itertools.chain.from_iterable(units)
    return {**state, "pending": {**pending, waits_as: [*waiting, *pending.get(waits_as, ())]}}


def _renumbered(state: LaneState, cursor: Cursor, numbers: Sequence[int]) -> LaneState:
    """A lane's state with renumbered sources. Pending items become explicit: their draws can no longer be replayed."""

    def by_number(by_source: dict[str, T]) -> dict[str, T]:
        return {str(numbers[int(source)]): value for source, value in by_source.items()}

    moved = state.copy()
    if "cursors" in state:
        moved["cursors"] = by_number(state["cursors"])
    if "inbox" in state:
        moved["inbox"] = by_number(state["inbox"])
    if "pending" in state:
        moved["pending"] = Pending.decode(state, cursor).explicit(numbers).to_dict()
    return moved
