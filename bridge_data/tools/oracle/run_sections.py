"""The sections of a run: from its beginning or a saved state to the next state.

Input: the current data set of a run, and the states that it saved. Output: for each section, the samples of its
micro-batches. Between two states the run had the lanes, weights and batch size of the later one; after the last state,
those of the data set. States are converted as in a restore. But a state may have been saved right after a restore that
changed them, before any micro-batch (as Lightning does): then the run had those of the earlier state. Guarantee: by
arithmetic if that is exact (see `RunOrder`), else with the run's own lanes and hooks.
"""

import copy
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from bridge_data.errors import ConfigError, StateError
from bridge_data.lanes.edited_lane import caught_up, with_edits
from bridge_data.lanes.forgotten import ForgottenSamples
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.order import Cursor
from bridge_data.order.forget_history import changes_between, lists_at
from bridge_data.order.plan_order import PlanOrder
from bridge_data.order.state import LaneState, LoaderState, num_lanes_after
from bridge_data.order.step_edits import StepEdits
from bridge_data.tools.oracle.lane_contents import Changes, LanesFrom, UnitRefs

_MANY = 1 << 16
"""Draws of a lane that are processed together."""


class RunSection:
    """The slots of the job from that of `state` on, over `dataset`, whose sources have the numbers `source_numbers` in
    the current run. `changes` are the later changes of the forgotten samples."""

    def __init__(
        self,
        dataset: LaneDataset,
        state: LoaderState,
        source_numbers: Sequence[int],
        *,
        replay: bool,
        is_proved: bool,
        changes: Changes = (),
    ) -> None:
        self.begin, self.num_lanes = state.next_slot, state.num_lanes
        self.source_numbers = source_numbers
        self.source_names = [source.name for source in dataset.plan.sources]
        self.packs = dataset.batching.packing_buffer_size is not None
        self._edits = state.edits
        work = dataset.work()
        waits = any(lane.get("pending") for lane in state.lanes.values())
        is_replayed = replay or self.packs or work.may_multiply or waits
        has_hooks = bool(work.does or dataset.task_encoder.cookers)
        self.assumes_no_skips = has_hooks and not (is_replayed or is_proved)
        self._lanes = LanesFrom(dataset, state, changes, is_replayed=is_replayed)
        self._kept_lanes: LanesFrom | None = None
        if any("kept" in lane for lane in state.lanes.values()):
            kept = {number: lane.get("kept", lane) for number, lane in state.lanes.items()}
            again = dataclasses.replace(state, lanes=kept)
            self._kept_lanes = LanesFrom(dataset, again, (), is_replayed=is_replayed)

    @property
    def num_replayed(self) -> int:
        """The samples that hooks have worked on so far."""
        return self._lanes.num_replayed + (0 if self._kept_lanes is None else self._kept_lanes.num_replayed)

    def number(self, slot: int) -> int:
        """The number, in the run without skips and repeats, of the micro-batch in a slot."""
        return slot if self._edits is None else self._edits.number(slot)

    def units(self, slot: int) -> list[UnitRefs]:
        """The packs of the micro-batch in a slot, or its samples; none after the end of finite data."""
        number = self.number(slot)
        if self._kept_lanes is not None and self._lanes.has_emitted(number):
            return self._kept_lanes.units(number)
        return self._lanes.units(number)

    def find(self, source: int, index: int, stop: int) -> Iterator[int]:
        """The slots before `stop` that have sample `index` of the source with this number in the run, in ascending
        order."""
        if source not in self.source_numbers:
            return
        own = self.source_numbers.index(source)
        if self._lanes.is_replayed:
            for slot in range(self.begin, stop):
                if any((ref.source, ref.index) == (own, index) for unit in self.units(slot) for ref in unit):
                    yield slot
            return
        if self._edits is None:
            yield from sorted(self._lanes.find(own, index, stop))
            return
        last = self._edits.stop_of(self.begin, stop)
        numbers = {
            number for lanes in (self._lanes, self._kept_lanes) if lanes for number in lanes.find(own, index, last)
        }
        slots = {slot for number in numbers for slot in self._edits.slots(number)}
        yield from sorted(slot for slot in slots if self.begin <= slot < stop)


def sections_of(dataset: LaneDataset, states: Sequence[LoaderState], *, replay: bool) -> list[RunSection]:
    """The sections of a run, by their first micro-batches.

    Raises:
        StateError: if a state lacks lanes, or is of other data. ConfigError: for a state at the end of finite data.
    """
    ordered = sorted(states, key=lambda state: state.next_slot)
    for state in ordered:
        state.check_complete()
        if state.ended or state.repetition:
            raise ConfigError("a state at the end of a pass through finite data begins the next pass; leave it out")
    ordered = list({state.next_slot: state for state in ordered}.values())
    found: list[RunSection] = []
    first = ordered[0] if ordered else None
    if first is None or (len(first.generations) == 1 and not first.drawn_before):
        run, numbers = (dataset, None) if first is None else dataset_of(dataset, first.fingerprint)
        num_lanes = None if first is None else first.num_lanes
        beginning = run.new_state(num_lanes or dataset.worker_config.num_lanes)
        lanes: dict[int, LaneState] = {lane: {} for lane in range(beginning.num_lanes)}
        ordered.insert(0, dataclasses.replace(beginning, lanes=lanes))
    if (edits := edits_of(dataset, states)) is not None:
        ordered = [_with_edits(state, edits) for state in ordered]
    for state, later in zip(ordered, [*ordered[1:], None], strict=True):
        had = state if later is not None and _was_changed_last(dataset, state, later) else later
        run, numbers = (dataset, None) if had is None else dataset_of(dataset, had.fingerprint)
        num_lanes = num_lanes_after(run.worker_config, state.num_lanes) if had is None else had.num_lanes
        if later is None and len(ordered) == 1:
            num_lanes = state.num_lanes
        converted = state
        if state.fingerprint != run.fingerprint():
            converted = run.order.migrated(state, run.fingerprint())
        if num_lanes != state.num_lanes:
            converted = converted if edits is None else caught_up(converted, run.lane)
            converted = run.order.redealt(converted, num_lanes, range(num_lanes))
        run, changes = _with_lists(run, converted, later)
        skipped = None if later is None else _has_skipped(run, converted, later, changes)
        section = RunSection(
            run,
            converted,
            numbers or range(len(dataset.plan.sources)),
            replay=replay or bool(skipped),
            is_proved=skipped is False,
            changes=changes,
        )
        found.append(section)
    return found


def edits_of(dataset: LaneDataset, states: Sequence[LoaderState]) -> StepEdits | None:
    """The steps that the run skips and repeats, by its settings and its states. Of a range within which it resumed, it
    has skipped what its states say.

    Raises:
        StateError: for a state after a range of which it has skipped nothing.
    """
    own = dataset.edits
    if own is not None and states:
        last = max(states, key=lambda state: state.next_slot)
        for skip in own.skips_without(last.edits):
            if skip in own.edits and skip.stop <= last.next_number:
                raise _of_another_run(last, own)
        own = own.from_number(last.next_number)
    found = [edits for edits in (own, *(state.edits for state in states)) if edits is not None]
    return functools.reduce(StepEdits.joined, found) if found else None


def _with_edits(state: LoaderState, edits: StepEdits) -> LoaderState:
    if not state.next_slot:  # the beginning has what the settings say, also of a range within which the run resumed
        return dataclasses.replace(state, extras=edits.in_extras(state.extras))
    try:
        edited = with_edits(state, edits)
    except StateError as error:
        raise _of_another_run(state, edits) from error
    if [*edits.skips_without(edited.edits)]:
        raise _of_another_run(state, edits)
    return edited


def _of_another_run(state: LoaderState, edits: StepEdits) -> StateError:
    return StateError(
        f"the state after {state.next_slot} micro-batches was saved by a run that did not {edits}: leave it out"
    )


def _with_lists(run: LaneDataset, state: LoaderState, later: LoaderState | None) -> tuple[LaneDataset, Changes]:
    """(`run` with the samples forgotten at `state`, the changes up to `later`). After the last state, the forgotten
    samples are those of a run that resumes from it now.

    Raises:
        StateError: if the data sets do not have these lists. ConfigError: if they changed while steps are skipped.
    """
    if later is None or not (run.forgotten or later.extras):
        return run, ()
    sources, names = run.plan.sources, run.source_names
    changed = copy.copy(run)
    changed.forgotten = ForgottenSamples.under(sources, names, lists_at(later.extras, state.next_slot))
    found = changes_between(later.extras, state.next_slot, later.next_slot)
    if found and later.edits is not None:
        raise ConfigError(
            f"the list of forgotten samples changed at micro-batch {found[0][0]} of a run that skips or repeats steps: "
            "also give the state that was saved there"
        )
    return changed, [(slot, ForgottenSamples.under(sources, names, lists)) for slot, lists in found]


def dataset_of(dataset: LaneDataset, fingerprint: dict[str, Any]) -> tuple[LaneDataset, Sequence[int]]:
    """The data set of the run under `fingerprint`, whose weights, sources and batch size may differ; and the numbers of
    its sources in `dataset`.

    Raises:
        StateError: if anything else differs.
    """
    number = {name: number for number, name in enumerate(dataset.source_names)}
    missing = [label for name, label in fingerprint["sources"] if name not in number]
    if missing:
        raise StateError(f"a state is of {', '.join(missing)}, which the data set lacks, or no longer has as it was")
    numbers = [number[name] for name, _ in fingerprint["sources"]]
    later = tuple((start, tuple(weights)) for start, weights in fingerprint.get("schedule", ()))
    plan = dataclasses.replace(
        dataset.plan,
        sources=tuple(dataset.plan.sources[one] for one in numbers),
        weights=tuple(fingerprint["weights"]),
        later_weights=later,
    )
    changed = copy.copy(dataset)
    for name in ("_loaders", "_cooks", "_cut_for"):
        changed.__dict__.pop(name, None)
    changed.plan = plan
    changed.batching = dataclasses.replace(dataset.batching, batch_size=fingerprint["batch_size"])
    seed, shuffle = dataset.worker_config.seed_offset, dataset.order.shuffle
    changed.order = PlanOrder(plan, seed, shuffle, changed.batching.batch_size or 1)
    changed.forgotten = ForgottenSamples.newest(plan.sources, changed.source_names)
    LoaderState(fingerprint, [], 0, {}).check(changed.fingerprint(), tolerated=("batch_size",))
    return changed, numbers


def _was_changed_last(dataset: LaneDataset, state: LoaderState, later: LoaderState) -> bool:
    """Whether the run continued from `state` unchanged, and lanes or weights changed just before `later` was saved."""
    if _was_dealt_between(state, later):
        return _is_just_dealt(later)
    if all(state.fingerprint.get(name) == later.fingerprint.get(name) for name in ("sources", "weights", "schedule")):
        return False
    run, _ = dataset_of(dataset, state.fingerprint)
    names = [name for name, _ in later.fingerprint["sources"]]
    slots = [names.index(name) for name, _ in state.fingerprint["sources"]]
    return all(
        _reaches(run.order.cursor(lane, state), state.lanes[lane], later.lanes[lane], slots) for lane in later.lanes
    )


def _reaches(cursor: Cursor, before: LaneState, after: LaneState, slots: Sequence[int]) -> bool:
    """Whether a lane gets from `before` to `after` with the blend of the cursor; its sources have the numbers `slots`
    in `after`."""
    if before:
        cursor.seek(before)
    for left in range(after.get("draws", 0) - before.get("draws", 0), 0, -_MANY):
        cursor.take(min(left, _MANY))
    reached = {str(slots[int(source)]): position for source, position in cursor.state()["cursors"].items()}
    wanted: dict[str, Any] = after.get("cursors", {})
    return reached == wanted


def _was_dealt_between(state: LoaderState, later: LoaderState) -> bool:
    return state.num_lanes != later.num_lanes or state.drawn_before != later.drawn_before


def _is_just_dealt(state: LoaderState) -> bool:
    return not any(lane.get("draws") for lane in state.lanes.values())


def _has_skipped(run: LaneDataset, state: LoaderState, later: LoaderState, changes: Changes) -> bool | None:
    """Whether hooks skipped samples between `state` and `later`, or made several of one; None if the states do not show
    it."""
    batch_size, forgets = run.batching.batch_size or 1, bool(run.forgotten or changes)
    if not _was_dealt_between(state, later):
        lanes = LanesFrom(run, state, changes, is_replayed=False) if forgets else None

        def num_extra(lane: int) -> int:
            before, after = state.lanes[lane], later.lanes[lane]
            num_draws = after.get("draws", 0) - before.get("draws", 0)
            return _num_extra(before, after, batch_size) - (lanes.num_gone(lane, num_draws) if lanes else 0)

        return any(after.get("pending") or num_extra(lane) for lane, after in later.lanes.items())
    if forgets or not _is_just_dealt(later):
        return None
    drawn: int = state.drawn_before + sum(lane.get("draws", 0) for lane in state.lanes.values())
    return later.drawn_before - drawn != (later.next_slot - state.next_slot) * batch_size


def _num_extra(before: LaneState, after: LaneState, batch_size: int) -> int:
    """The number of draws of a lane that are not in its micro-batches."""
    num_batches: int = after.get("micro_batches", 0) - before.get("micro_batches", 0)
    draws: int = after.get("draws", 0) - before.get("draws", 0)
    return draws - num_batches * batch_size
