"""The states of a run: the first one, a saved one that it goes on from, and those between repetitions of its data.

Reads a `LaneDataset`, and states. Returns states of its lanes: of this rank's, or of as many as are asked for. Raises
`StateError` if a state is of other data or settings, or lacks lanes that are needed. Samples are read only to reshard
lanes of which micro-batches are skipped.
"""

import dataclasses
import logging
import math
from collections.abc import Collection
from typing import Any, Protocol

from bridge_data.lanes.lane import Lane
from bridge_data.lanes.pack_source import PackSources
from bridge_data.lanes.passes import PassedData, PassLength
from bridge_data.order.extras import StateExtra, begun, resharded_extras
from bridge_data.order.state import LaneState, LoaderState, num_lanes_after, parse_state
from bridge_data.order.step_skips import StepSkips

logger = logging.getLogger("bridge_data")


class RunData(PassedData, Protocol):
    """What states depend on: a `LaneDataset`, which says what each is."""

    pack_sources: PackSources
    extras: tuple[StateExtra, ...]
    skips: StepSkips | None

    @property
    def is_packing(self) -> bool: ...
    @property
    def passes(self) -> PassLength: ...
    def fingerprint(self) -> dict[str, Any]: ...
    def lane(self, lane: int, state: LoaderState) -> Lane: ...


def first_state(dataset: RunData, num_lanes: int | None = None) -> LoaderState:
    """See `LaneDataset.new_state`."""
    config = dataset.worker_config
    num_lanes = num_lanes or config.num_lanes
    lanes: dict[int, LaneState] = {lane: {} for lane in range(config.rank, num_lanes, config.world_size)}
    generation = dataset.order.first_generation(num_lanes)
    return _from_here(dataset, LoaderState(dataset.fingerprint(), [generation], 0, lanes))


def checked_state(dataset: RunData, data: LoaderState | dict[str, Any], *, strict: bool = True) -> LoaderState:
    """See `LaneDataset.check_state`."""
    state = parse_state(data)
    if strict or not dataset.pack_sources.keeps_order:
        state.check(dataset.fingerprint())
    else:
        state = dataset.order.migrated(state, dataset.fingerprint())
    state = _from_here(dataset, state)
    config = dataset.worker_config
    num_lanes = num_lanes_after(config, state.num_lanes)
    if state.ended or (dataset.finite and _is_over(dataset, state)):
        new = first_state(dataset, num_lanes)
        goes_on = not state.ended and dataset.passes.is_repeated_after(state, even=True)
        return repeated_state(dataset, new, state) if goes_on else new
    if dataset.is_packing:
        dataset.pack_sources.check(dataset, state)
    if num_lanes != state.num_lanes:
        state = resharded_state(dataset, state, num_lanes, range(config.rank, num_lanes, config.world_size))
    return state.of_rank(config.rank, config.world_size)


def repeated_state(dataset: RunData, first: LoaderState, last: LoaderState) -> LoaderState:
    """The state `first`, before the first batch, in a pass that continues with it after `last`."""
    repetition = last.repetition + 1 if dataset.repeats < math.inf else 0
    first = dataclasses.replace(first, epoch_batches=last.epoch_batches, repetition=repetition)
    if not repetition or not dataset.extras:
        return first
    if first.num_lanes != last.num_lanes:
        return _from_here(dataset, dataclasses.replace(first, extras=resharded_extras(last, dataset.extras)))
    kept: dict[int, LaneState] = {
        lane: {"extras": last.lanes[lane]["extras"]} for lane in first.lanes if "extras" in last.lanes[lane]
    }
    lanes: dict[int, LaneState] = {lane: kept.get(lane, {}) for lane in first.lanes}
    return _from_here(dataset, dataclasses.replace(first, extras=last.extras, lanes=lanes))


def resharded_state(dataset: RunData, state: LoaderState, num_lanes: int, lanes: Collection[int]) -> LoaderState:
    """A whole state converted to `num_lanes` lanes, of which only `lanes` are computed."""
    state.check_complete()
    if state.skips is not None:
        state = _after_skips(dataset, state)
    extras = resharded_extras(state, dataset.extras)
    made = dataset.pack_sources.resharded(dataset, state, num_lanes, lanes)
    return dataclasses.replace(made, extras=extras)


def limit_of(dataset: RunData, lane: int, state: LoaderState) -> float:
    """See `PassLength.limit_of`."""
    is_fraction = dataset.repeats < math.inf and dataset.repeats % 1
    has_limit = dataset.batching.max_micro_batches is not None or is_fraction
    return dataset.passes.limit_of(lane, state) if has_limit else math.inf


def _is_over(dataset: RunData, state: LoaderState) -> bool:
    """Whether finite data are over, as far as known without reading: all lanes are here, and none has any left."""
    if len(state.lanes) < state.num_lanes:
        return False
    below_limit = [lane for lane in state.lanes if state.num_made(lane) < limit_of(dataset, lane, state)]
    return dataset.pack_sources.have_ended(dataset, state, below_limit)


def _after_skips(dataset: RunData, state: LoaderState) -> LoaderState:
    """`state` after each lane has made and discarded its skipped micro-batches before that of the state."""
    lanes, num_discarded = dict(state.lanes), 0
    for lane, index in state.next_indexes(lanes).items():
        missing = range(index, state.micro_batch_index, state.num_lanes)
        if missing:
            behind = dataset.lane(lane, state)
            for _ in missing:
                behind.next()
            lanes[lane], num_discarded = behind.state(), num_discarded + len(missing)
    if num_discarded:
        logger.info("made and discarded %d micro-batches of skipped steps, to reshard the lanes", num_discarded)
    return dataclasses.replace(state, lanes=lanes)


def _from_here(dataset: RunData, state: LoaderState) -> LoaderState:
    """`state` of a run that from here on also skips the steps of `dataset`, and has its extras.

    Raises:
        ConfigError: for steps to skip, if the data end.
        StateError: if an extra cannot go on from the state.
    """
    if dataset.skips is not None:
        state = state.skipping(dataset.skips)
    return begun(state, dataset.extras) if dataset.extras or state.has_extras else state
