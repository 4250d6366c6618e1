"""The sections of a run: from its beginning or a saved state to the next state.

Input: the current data set of a run, and the states that it saved. Output: for each section, the samples of its
micro-batches. Between two states the run had the lanes, weights and batch size of the later one; after the last state,
those of the data set. States are converted as in a restore. But a state may have been saved right after a restore that
changed them, before any micro-batch (as Lightning does): then the run had those of the earlier state. Guarantees: by
arithmetic if that is exact (see `RunOrder`), else with the run's own lanes and hooks; the sections are a chain, each
state made from the one before, and a section where that cannot be is `unknown`, with the reason.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

from bridge_data.errors import ConfigError, StateError
from bridge_data.lanes.forgotten import ForgottenSamples
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.skipping import caught_up, with_skips
from bridge_data.order import Cursor
from bridge_data.order.cursor import packed_references
from bridge_data.order.forgotten_lists import ListVersions, changes_between, lists_at
from bridge_data.order.ledger import tallies
from bridge_data.order.plan_order import PlanOrder
from bridge_data.order.state import LaneState, LoaderState, num_lanes_after
from bridge_data.order.step_skips import StepSkips
from bridge_data.samples import CrudeSample
from bridge_data.task import Cooker, DefaultTaskEncoder
from bridge_data.tools.oracle.lane_contents import Changes, LanesFrom, UnitRefs

ListsOfRun: TypeAlias = Literal["now", "then"]
"""Which lists of forgotten samples a run has after its last state."""

NEEDS_ENCODER = (
    "samples were left out, grouped, packed or made of others here, as the states show: only the task encoder of the "
    "run says which; name it (--task-encoder package.module:Name, bridge_data:DefaultTaskEncoder if it has no own one)"
)
"""Why a section is unknown without the task encoder."""

_MANY = 1 << 16
"""Draws of a lane that are processed together."""


def _kept_as_it_is(sample: CrudeSample, **_: Any) -> CrudeSample:
    return sample


class OrderTaskEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Stands for the task encoder of a run that nobody named. The order does not run it, so crude samples need no
    cooker here; what only the run's own hooks tell is `unknown`."""

    cookers = (Cooker(_kept_as_it_is),)


class RunSection:
    """The slots of the job from that of `state` on, over `dataset`, whose sources have the numbers `source_numbers` in
    the current run. `changes` are the later changes of the forgotten samples. `unknown`: why its samples cannot be
    told; "" if they can."""

    def __init__(
        self,
        dataset: LaneDataset,
        state: LoaderState,
        source_numbers: Sequence[int],
        *,
        replay: bool,
        is_proved: bool,
        changes: Changes = (),
        unknown: str = "",
    ) -> None:
        self.begin, self.num_lanes, self.unknown = state.next_slot, state.num_lanes, unknown
        self.source_numbers = source_numbers
        self.source_names = [source.name for source in dataset.plan.sources]
        self.fingerprints = dataset.source_names
        self.packs = dataset.batching.packing_buffer_size is not None
        self._skips = state.skips
        work = dataset.work()
        waits = any(lane.get("pending") for lane in state.lanes.values())
        is_replayed = replay or self.packs or work.may_multiply or waits
        is_unnamed = isinstance(dataset.task_encoder, OrderTaskEncoder)
        has_hooks = bool(work.does or dataset.task_encoder.cookers)
        if is_replayed and is_unnamed and not self.unknown:
            self.unknown = NEEDS_ENCODER
        self.assumes_no_skips = has_hooks and not (is_replayed or is_proved)
        self._lanes = LanesFrom(dataset, state, changes, is_replayed=is_replayed)

    @property
    def num_replayed(self) -> int:
        """The samples that hooks have worked on so far."""
        return self._lanes.num_replayed

    def number(self, slot: int) -> int:
        """The number, in the run without skips, of the micro-batch in a slot."""
        return slot if self._skips is None else self._skips.number(slot)

    def units(self, slot: int) -> list[UnitRefs]:
        """The packs of the micro-batch in a slot, or its samples; none after the end of finite data."""
        return self._lanes.units(self.number(slot))

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
        if self._skips is None:
            yield from sorted(self._lanes.find(own, index, stop))
            return
        slots = map(self._skips.slot, self._lanes.find(own, index, self._skips.number(stop)))
        yield from sorted(slot for slot in slots if slot is not None and self.begin <= slot < stop)


def sections_of(
    dataset: LaneDataset, states: Sequence[LoaderState], *, replay: bool, lists: ListsOfRun | None = None
) -> list[RunSection]:
    """The sections of a run, by their first micro-batches. `lists` says which samples are forgotten after the last
    state: those of the lists as they are "now", or "then", as the run had them there; None: it must be the same.

    Raises:
        StateError: if a state lacks lanes, is of other data, or of another continuation of the run than others.
            ConfigError: for a state at the end of finite data.
    """
    for state in states:
        state.check_complete()
        if state.ended or state.repetition:
            raise ConfigError("a state at the end of a pass through finite data begins the next pass; leave it out")
    skips = skips_of(dataset, states)
    positions = _positions(dataset, states)
    first = positions[0][0] if positions else None
    if first is None or (len(first.generations) == 1 and not first.drawn_before):
        run, _ = (dataset, None) if first is None else dataset_of(dataset, first.fingerprint)
        beginning = run.new_state(dataset.worker_config.num_lanes if first is None else first.num_lanes)
        lanes: dict[int, LaneState] = {lane: {} for lane in range(beginning.num_lanes)}
        beginning = dataclasses.replace(beginning, lanes=lanes)
        if first is None or first.next_slot:
            positions.insert(0, [beginning])
    if skips is not None:
        positions = [[_with_skips(state, skips) for state in group] for group in positions]
    found: list[RunSection] = []
    for group, following in zip(positions, [*positions[1:], None], strict=True):
        later = None if following is None else following[0]
        found.append(_section(dataset, group[-1], later, replay=replay, lists=lists if states else "now"))
    return found


def _section(
    dataset: LaneDataset,
    state: LoaderState,
    later: LoaderState | None,
    *,
    replay: bool,
    lists: ListsOfRun | None,
) -> RunSection:
    """The section from `state` to `later`, None if there is no later state."""
    make = functools.partial(_section_as, dataset, state, later, replay=replay, lists=lists)
    if later is None or not _was_changed_last(dataset, state, later):
        return make(later)
    found = make(state)
    if found.unknown or _was_dealt_between(state, later) or not _is_run_to(dataset, state, later):
        return found
    # After few draws, either weights reach the same samples in another order: the sums in the states say which it was.
    return found if _has_sums(found, state, later) else make(later)


def _section_as(
    dataset: LaneDataset,
    state: LoaderState,
    later: LoaderState | None,
    had: LoaderState | None,
    *,
    replay: bool,
    lists: ListsOfRun | None,
) -> RunSection:
    """`_section` of a run with the lanes and weights of `had`, one of the states; None: with those of `dataset`."""
    run, numbers = (dataset, None) if had is None else dataset_of(dataset, had.fingerprint)
    num_lanes = had.num_lanes if had is not None else num_lanes_after(run.worker_config, state.num_lanes)
    converted, unknown = _converted(run, state, num_lanes), ""
    if later is not None:
        unknown = _gap(state, converted, later, is_changed_last=had is state)
    elif lists is None:
        unknown = _other_lists(dataset, state)
    run, changes = _with_lists(run, converted, later, lists)
    skipped = None if later is None or unknown else _has_skipped(run, converted, later, changes)
    return RunSection(
        run,
        converted,
        numbers or range(len(dataset.plan.sources)),
        replay=replay or bool(skipped),
        is_proved=skipped is False,
        changes=changes,
        unknown=unknown,
    )


def _has_sums(section: RunSection, state: LoaderState, later: LoaderState) -> bool:
    """Whether the samples of a section are those that were counted between its states."""
    found = state.sums()
    batches = []
    for slot in range(state.next_slot, later.next_slot):
        refs = [ref for unit in section.units(slot) for ref in unit]
        batches.append((slot, packed_references([n for *ref, part in refs for n in (*ref, max(0, part))])))
    for one in tallies(batches, section.fingerprints):
        found = found.plus(one)
    return found == dataclasses.replace(later.sums(), since=found.since)


def _positions(dataset: LaneDataset, states: Sequence[LoaderState]) -> list[list[LoaderState]]:
    """The states by position; those at the same one each made from the one before.

    Raises:
        StateError: if those at the same position are not.
    """
    found: list[list[LoaderState]] = []
    for _, group in itertools.groupby(sorted(states, key=_slot), key=_slot):
        different: list[LoaderState] = []
        for state in group:
            if state not in different:
                different.append(state)
        found.append(_chained(dataset, different, found[-1][-1] if found else None))
    return found


def _slot(state: LoaderState) -> int:
    return state.next_slot


def _chained(dataset: LaneDataset, states: list[LoaderState], before: LoaderState | None) -> list[LoaderState]:
    """Different states at one position, as lanes or weights were changed there: each follows from the one before, and
    the first from a run that began in `before`, None for the beginning."""
    if len(states) == 1:
        return states

    @functools.cache
    def follows(one: int, other: int) -> bool:
        return _is_changed_into(dataset, states[one], states[other])

    def chains_from(chain: list[int]) -> Iterator[list[int]]:
        if len(chain) == len(states):
            yield chain
        for number in range(len(states)):
            if number not in chain and (not chain or follows(chain[-1], number)):
                yield from chains_from([*chain, number])

    chains = [*chains_from([])]
    if not chains:
        raise StateError(
            f"{len(states)} states after {states[0].next_slot} micro-batches, with "
            f"{' and '.join(str(state.num_lanes) for state in states)} lanes, are of different continuations of the "
            "run: none follows from the other. Give the states of one"
        )
    if len(chains) > 1:  # other weights can be taken back: which came first, the samples before say
        chains.sort(key=lambda chain: not _is_run_to(dataset, before, states[chain[0]]))
    return [states[number] for number in chains[0]]


def _is_run_to(dataset: LaneDataset, before: LoaderState | None, state: LoaderState) -> bool:
    """Whether a run with the lanes and weights of `state` gets there from `before`."""
    run, numbers = dataset_of(dataset, state.fingerprint)
    if before is None:
        lanes: dict[int, LaneState] = {lane: {} for lane in state.lanes}
        before = dataclasses.replace(run.new_state(state.num_lanes), lanes=lanes)
    try:
        begin = _converted(run, before, state.num_lanes)
    except StateError:
        return False
    if [list(one) for one in begin.generations] != [list(one) for one in state.generations]:
        return False
    slots = range(len(numbers))
    return all(
        _reaches(run.order.cursor(lane, begin), begin.lanes[lane], state.lanes[lane], slots) for lane in state.lanes
    )


def _is_changed_into(dataset: LaneDataset, state: LoaderState, other: LoaderState) -> bool:
    """Whether a restore of `state`, with the lanes and weights of `other`, is `other`."""
    run, _ = dataset_of(dataset, other.fingerprint)
    try:
        made = _converted(run, state, other.num_lanes)
    except StateError:
        return False
    same = ("fingerprint", "generations", "drawn_before")
    return all(getattr(made, name) == getattr(other, name) for name in same) and all(
        _position_in(made.lanes[lane]) == _position_in(other.lanes[lane]) for lane in other.lanes
    )


def _position_in(lane: LaneState) -> tuple[Any, ...]:
    names = ("draws", "cursors", "micro_batches")
    return (*(lane.get(name) or 0 for name in names), lane.get("inbox") or {}, lane.get("pending") or {})


def _converted(run: LaneDataset, state: LoaderState, num_lanes: int) -> LoaderState:
    """`state` as a restore in `run` with `num_lanes` lanes makes it."""
    if state.fingerprint != run.fingerprint():
        state = run.order.migrated(state, run.fingerprint())
    if num_lanes != state.num_lanes:
        state = state if state.skips is None else caught_up(state, run.lane)
        state = run.order.redealt(state, num_lanes, range(num_lanes))
    return state


def _gap(state: LoaderState, converted: LoaderState, later: LoaderState, *, is_changed_last: bool) -> str:
    """Why the run cannot have gone from `state` to `later`, as `converted` or (`is_changed_last`) before a change; ""
    if it can. Then there was another state between them, or they are of different continuations of a run."""
    where = f"micro-batches {state.next_slot} to {later.next_slot - 1} lie between two states, of {state.num_lanes} and"
    where += f" {later.num_lanes} lanes, of which the second does not follow from the first: give "
    if is_changed_last:
        known = [list(generation) for generation in state.generations]
        if _was_dealt_between(state, later) and any(list(one) not in known for one in later.generations[:-1]):
            return where + "also the states of between, with which the lanes were dealt again"
        return ""
    is_later = later.skips is not None or all(
        after.get(name, 0) >= converted.lanes[lane].get(name, 0)
        for lane, after in later.lanes.items()
        for name in ("draws", "micro_batches")
    )
    same = [list(one) for one in converted.generations] == [list(one) for one in later.generations]
    if same and is_later and converted.drawn_before == later.drawn_before:
        return ""
    return (
        where + "also the states of between, with which the lanes were dealt again, or only those of one continuation"
    )


def _other_lists(dataset: LaneDataset, state: LoaderState) -> str:
    """Why samples after the last state cannot be told: the lists of forgotten samples have changed since; "" if not."""
    then = lists_at(state.extras, state.next_slot)
    now: ListVersions = {} if dataset.forgotten is None else dataset.forgotten.lists
    if then == now:
        return ""
    return (
        f"the last state, after {state.next_slot} micro-batches, is of version "
        f"{_versions(then)} of the list of forgotten samples, and the data set has {_versions(now)}: a step after it "
        "is either of the run as it was, or of one that resumes now. Give a later state or the ledger, or say which "
        '(lists="then" or "now"; --lists)'
    )


def _versions(lists: ListVersions) -> str:
    return ", ".join(str(number) for versions in lists.values() for number, _ in versions) or "0"


def skips_of(dataset: LaneDataset, states: Sequence[LoaderState]) -> StepSkips | None:
    """The steps that the run skips, by its settings and its states. Of a range within which it resumed, it has skipped
    what its states say.

    Raises:
        StateError: for a state after a range of which it has skipped nothing.
    """
    own = dataset.skips
    if own is not None and states:
        last = max(states, key=lambda state: state.next_slot)
        for skip in own.without(last.skips):
            if skip in own.ranges and skip.stop <= last.next_number:
                raise _of_another_run(last, own)
        own = own.from_number(last.next_number)
    found = [skips for skips in (own, *(state.skips for state in states)) if skips is not None]
    return functools.reduce(StepSkips.joined, found) if found else None


def _with_skips(state: LoaderState, skips: StepSkips) -> LoaderState:
    if not state.next_slot:  # the beginning has what the settings say, also of a range within which the run resumed
        return dataclasses.replace(state, extras=skips.in_extras(state.extras))
    skipping = with_skips(state, skips)
    if [*skips.without(skipping.skips)]:
        raise _of_another_run(state, skips)
    return skipping


def _of_another_run(state: LoaderState, skips: StepSkips) -> StateError:
    return StateError(
        f"the state after {state.next_slot} micro-batches was saved by a run that did not {skips}: leave it out"
    )


def _with_lists(
    run: LaneDataset, state: LoaderState, later: LoaderState | None, lists: ListsOfRun | None
) -> tuple[LaneDataset, Changes]:
    """(`run` with the samples forgotten at `state`, the changes up to `later`). After the last state, `lists` says
    which they are.

    Raises:
        StateError: if the data sets do not have these lists. ConfigError: if they changed while steps are skipped.
    """
    extras = state.extras if later is None else later.extras
    if (later is None and lists != "then") or not (run.forgotten or extras):
        return run, ()
    sources, names = run.plan.sources, run.source_names
    changed = run.changed(forgotten=ForgottenSamples.under(sources, names, lists_at(extras, state.next_slot)))
    if later is None:
        return changed, ()
    found = changes_between(later.extras, state.next_slot, later.next_slot)
    if found and later.skips is not None:
        raise ConfigError(
            f"the list of forgotten samples changed at micro-batch {found[0][0]} of a run that skips steps: "
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
    batching = dataclasses.replace(dataset.batching, batch_size=fingerprint["batch_size"])
    order = PlanOrder(plan, dataset.worker_config.seed_offset, dataset.order.shuffle, batching.batch_size or 1)
    forgotten = ForgottenSamples.newest(plan.sources, order.source_names)
    changed = dataset.changed(plan=plan, batching=batching, order=order, forgotten=forgotten)
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
