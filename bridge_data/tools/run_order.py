"""The order of a run: the samples of any step, the steps of any sample, and where two runs differ.

Reads the training data set of a run, the sizes of its steps, and the states that it saved, if any. Returns for a step
its samples, with source, key, epoch, lane, rank and place; for a sample the steps in which it comes; for two runs the
settings that differ and the first step whose samples do.

A step is found as a loader would get there from the last state before it, or from the beginning. If samples are neither
packed nor grouped, the cursor of its lane passes over what comes before, for any step, and no shard is opened: right if
hooks skip no sample. If the next state shows that they did, and for packs, groups and generators, the lane is run as
the loader runs it. Planned packs are known from the cost index.

Between two states the run had the lanes, weights and batch size of the later one (or of the earlier one, if the later
was saved right after a restore), after the last one those of the data set; samples that are forgotten now are left out
there. Whether one state leads to the next is checked with the cursors; where it does not, steps are unknown.
"""

import bisect
import collections
import contextlib
import dataclasses
import functools
import importlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeAlias

from bridge_data.data.records import RecordReader, counts_of, names_of
from bridge_data.data.sample_keys import find_sample
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError, StateError
from bridge_data.lanes.assembly import Unit
from bridge_data.lanes.lane import Lane
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.maker import Key, LaneView, Maker
from bridge_data.lanes.restoring import SampleKey
from bridge_data.order import Cursor, SampleRef
from bridge_data.order.state import LaneState, LoaderState, num_lanes_after
from bridge_data.order.step_skips import StepSkips
from bridge_data.plugins.forget.forgotten import ForgottenSamples, forgotten_in, history_of, with_forgotten
from bridge_data.plugins.forget.forgotten_lists import changes_between, lists_at
from bridge_data.plugins.planned.planned_sources import costs_of_sources, planned_of
from bridge_data.tools.runs import OrderTaskEncoder

UnitRefs: TypeAlias = list[SampleRef]
"""The samples of a pack, or one sample."""

Lists: TypeAlias = Sequence[tuple[int, "ForgottenSamples | None"]]
"""(first micro-batch, the samples forgotten from that one on)."""

_MANY = 1 << 14
"""Micro-batches of a lane that are looked through together."""


class _CursorLane:
    """The micro-batches of a lane from a state on, by its cursor: each sample makes one, and none is left out."""

    num_replayed = 0

    def __init__(self, dataset: LaneDataset, state: LoaderState, lane: int) -> None:
        self._dataset, self._state, self._lane = dataset, state, lane
        self.size, self._drop_last = dataset.batching.batch_size or 1, dataset.batching.drop_last
        self._open()

    def _open(self) -> None:
        self._cursor, self._next = self._dataset.order.cursor(self._lane, self._state), 0
        if own := self._state.lanes[self._lane]:
            self._cursor.seek(own)

    def units(self, first: int, count: int) -> list[list[UnitRefs]]:
        """The samples of `count` micro-batches after the `first` ones since the state; none after the end of data."""
        if first < self._next:
            self._open()
        refs: list[SampleRef] = []
        with contextlib.suppress(StopIteration):
            self._cursor.skip((first - self._next) * self.size)
            while missing := count * self.size - len(refs):
                refs += [ref for _, ref in self._cursor.take(missing)]
        self._next = first + count
        found = [[[ref] for ref in refs[at : at + self.size]] for at in range(0, count * self.size, self.size)]
        return [units if len(units) == self.size or not self._drop_last else [] for units in found]


class _PlannedLane:
    """The micro-batches of a lane with planned packs, by the plan."""

    num_replayed = 0

    def __init__(self, dataset: LaneDataset, state: LoaderState, lane: int, lists: Lists) -> None:
        planned = planned_of(dataset)
        assert planned is not None
        self._packs = planned.lane_packs(dataset, lane, state)
        self._index, self._num_lanes = state.num_made(lane) * state.num_lanes + lane, state.num_lanes
        self._size, self._drop_last = dataset.batching.batch_size or 1, dataset.batching.drop_last
        self._lists, self._known = lists, list[list[UnitRefs]]()

    def units(self, first: int, count: int) -> list[list[UnitRefs]]:
        with contextlib.suppress(StopIteration):
            while len(self._known) < first + count:
                index = self._index + len(self._known) * self._num_lanes
                forgotten = next(lists for begin, lists in reversed(self._lists) if begin <= index) or ()
                units: list[UnitRefs] = []
                try:
                    while len(units) < self._size:
                        if left := [ref for ref in self._packs.next().members if ref not in forgotten]:
                            units.append(left)
                finally:
                    if len(units) == self._size or (units and not self._drop_last):
                        self._known.append(units)
        found = self._known[first : first + count]
        return [*found, *([] for _ in range(count - len(found)))]


class _Placeholder:
    """A sample that is not made."""

    __restore_key__ = ()


class _LoaderLane:
    """The micro-batches of a lane, run as the loader runs it; opened again wherever the forgotten samples change.
    Without `reads`, no sample is read or made, as none is packed and no hook matters: only what lanes do is done."""

    def __init__(self, dataset: LaneDataset, state: LoaderState, lane: int, lists: Lists, *, reads: bool) -> None:
        self.num_replayed, self._reads = 0, reads
        self._dataset, self._state, self._number = dataset, state, lane
        done, num_lanes = state.num_made(lane), state.num_lanes
        places = [(max(0, -(-(begin - lane) // num_lanes) - done), forgotten) for begin, forgotten in lists]
        self._changes = collections.deque(places)
        self._lane = self._opened(state.lanes[lane])
        self._units: list[Unit] = []
        self._known: list[list[UnitRefs]] = []

    def _opened(self, own: LaneState) -> Lane:
        _, forgotten = self._changes.popleft()
        dataset = self._dataset
        if forgotten is not forgotten_in(dataset):
            dataset = with_forgotten(dataset, forgotten)
        work = dataset.work(watch=self._count if self._reads else None)
        make = work.batch
        # The lane calls it with what a batch is made of; all else is unchanged.
        work.batch = functools.partial(self._batch, make)  # type: ignore[method-assign]
        state = dataclasses.replace(self._state, lanes={self._number: own})
        wrappers = () if self._reads else (_unread,)
        return dataset.lane(self._number, state, work=work, wrappers=wrappers)

    def _count(self, _: SampleRef) -> None:
        self.num_replayed += 1

    def _batch(self, make: Callable[..., list[Any]], units: list[Unit], keys: list[Key], *, collate: bool) -> list[Any]:
        made = make(units, keys, collate=collate) if self._reads else [None]
        self._units = units
        return made

    def units(self, first: int, count: int) -> list[list[UnitRefs]]:
        while len(self._known) < first + count:
            while self._changes and self._changes[0][0] <= len(self._known):
                self._lane = self._opened(self._lane.state())
            try:
                self._lane.next()
            except StopIteration:
                break
            self._known.append([[item.ref._replace(output=item.output) for item in unit.items] for unit in self._units])
        found = self._known[first : first + count]
        return [*found, *([] for _ in range(count - len(found)))]

    def state_after(self, count: int) -> LaneState:
        """The state after `count` micro-batches, the most that were asked for."""
        if count:
            self.units(count - 1, 1)
        return self._lane.state()


class _Unread:
    def make(self, refs: Sequence[SampleRef]) -> list[Any]:
        return [_Placeholder() for _ in refs]


def _unread(_: Maker, __: LaneView) -> Maker:
    """For a lane whose samples are not made."""
    return _Unread()


NEEDS_ENCODER = (
    "samples were left out, grouped, packed or made of others here: only the task encoder of the run says which; name "
    "it (task_encoder=package.module.Name, bridge_data.DefaultTaskEncoder if it has no own one)"
)
"""Why a section is unknown without the task encoder."""


class RunSection:
    """The micro-batches of the job from that of `state` on, over `dataset`, whose sources have the numbers
    `source_numbers` in the current run. `lists` are the forgotten samples. `unknown`: why its samples cannot be found;
    "" if they can. With `replay`, hooks are run; `is_proved` says that they skip nothing."""

    def __init__(
        self,
        dataset: LaneDataset,
        state: LoaderState,
        source_numbers: Sequence[int],
        *,
        lists: Lists,
        replay: bool,
        is_proved: bool = False,
        unknown: str = "",
    ) -> None:
        self.begin, self.num_lanes, self.unknown = state.micro_batch_index, state.num_lanes, unknown
        self.source_numbers, self.state = source_numbers, state
        self.source_labels, self.source_ids = [one.name for one in dataset.plan.sources], dataset.source_ids
        self.packs = dataset.batching.packing_buffer_size is not None
        work, is_planned = dataset.work(), planned_of(dataset) is not None
        waits = any(lane.get("pending") for lane in state.lanes.values())
        self.is_replayed = not is_planned and (replay or self.packs or work.may_multiply or waits)
        if self.is_replayed and isinstance(dataset.task_encoder, OrderTaskEncoder) and not unknown:
            self.unknown = NEEDS_ENCODER
        has_hooks = bool(work.does or dataset.task_encoder.cookers)
        self.assumes_no_skips = is_planned or (has_hooks and not (self.is_replayed or is_proved))
        self._limit_of = functools.cache(functools.partial(dataset.limit_of, state=state))
        if is_planned:
            self._open: Callable[[int], Any] = lambda lane: _PlannedLane(dataset, state, lane, lists)
        elif self.is_replayed or len(lists) > 1 or lists[0][1] is not None:
            reads = self.is_replayed
            self._open = lambda lane: _LoaderLane(dataset, state, lane, lists, reads=reads)
        else:
            self._open = lambda lane: _CursorLane(dataset, state, lane)
        self._lanes: dict[int, Any] = {}

    @property
    def num_replayed(self) -> int:
        """The samples that hooks have worked on so far."""
        return sum(lane.num_replayed for lane in self._lanes.values())

    def lane(self, number: int) -> Any:
        """What makes the micro-batches of a lane."""
        return self._lanes.get(number) or self._lanes.setdefault(number, self._open(number))

    def units(self, index: int) -> list[UnitRefs]:
        """The packs of a micro-batch, or its samples; none after the end of finite data.

        Raises:
            StateError: if its lane is further on in the state.
        """
        place, lane = divmod(index, self.num_lanes)
        first = place - self.state.num_made(lane)
        if first < 0:
            made = self.state.num_made(lane)
            raise StateError(f"micro-batch {index}: lane {lane} of the state has emitted {made} already")
        return self.lane(lane).units(first, 1)[0] if place < self._limit_of(lane) else []

    def find(self, source: int, index: int, indices: Sequence[int]) -> Iterator[int]:
        """Those of these micro-batches that have sample `index` of the source with this number in the run."""
        if source not in self.source_numbers:
            return
        own = self.source_numbers.index(source)
        for lane, group in itertools.groupby(sorted(indices, key=self._lane_of), key=self._lane_of):
            made, limit = self.state.num_made(lane), self._limit_of(lane)
            places = [place - made for one in group if (place := one // self.num_lanes) < limit]
            for first in range(places[0], places[-1] + 1, _MANY) if places else ():
                count = min(_MANY, places[-1] + 1 - first)
                for number, units in enumerate(self.lane(lane).units(first, count), start=first):
                    if any((ref.source, ref.index) == (own, index) for unit in units for ref in unit):
                        found = (number + made) * self.num_lanes + lane
                        if found in indices:
                            yield found

    def _lane_of(self, index: int) -> int:
        return index % self.num_lanes


def sections_of(dataset: LaneDataset, states: Sequence[LoaderState], *, replay: bool) -> list[RunSection]:
    """The sections of a run, by their first micro-batches.

    Raises:
        StateError: if a state lacks lanes, is of other data, or of another continuation of the run than others.
        ConfigError: for a state at the end of finite data.
    """
    for state in states:
        state.check_complete()
        if state.ended or state.repetition:
            raise ConfigError("a state at the end of a pass through finite data begins the next pass; leave it out")
    skips = skips_of(dataset, states)
    if skips is not None:
        states = [_with_skips(state, skips) for state in states]
    groups = _by_position(dataset, states)
    first = groups[0][0] if groups else None
    if first is None or (len(first.generations) == 1 and not first.drawn_before and first.num_handed_out):
        run = dataset if first is None else dataset_of(dataset, first.fingerprint)[0]
        lanes = dataset.worker_config.num_lanes if first is None else first.num_lanes
        groups.insert(0, [dataclasses.replace(_beginning(run, lanes), skips=skips, micro_batch_index=0)])
    found = []
    for group, following in zip(groups, [*groups[1:], None], strict=True):
        section = section_between(dataset, group[-1], None if following is None else following[0], replay=replay)
        if following is not None and not section.unknown and _may_begin_otherwise(dataset, group[-1], following):
            section.unknown = _UNKNOWN_WEIGHTS
        found.append(section)
    return found


def _may_begin_otherwise(dataset: LaneDataset, before: LoaderState, group: list[LoaderState]) -> bool:
    """Whether states of other weights at one position may have come in another order, as after few draws either
    weights reach the same samples."""
    if not any(_have_other_weights(group[0], state) for state in group[1:]):
        return False
    firsts = [chain[0] for chain in _chains(dataset, group)]
    return any(_have_other_weights(group[0], first) and _leads_to(dataset, before, first, first) for first in firsts)


def _have_other_weights(state: LoaderState, other: LoaderState) -> bool:
    return any(state.fingerprint.get(name) != other.fingerprint.get(name) for name in _OF_WEIGHTS)


def section_to(dataset: LaneDataset, state: LoaderState) -> RunSection:
    """The section from the beginning of a run to a state of it, in which the lanes were never resharded.

    Raises:
        StateError: if it is of other data.
    """
    beginning = _beginning(dataset_of(dataset, state.fingerprint)[0], state.num_lanes)
    return section_between(dataset, dataclasses.replace(beginning, skips=state.skips), state, replay=False)


def _beginning(run: LaneDataset, num_lanes: int) -> LoaderState:
    lanes: dict[int, LaneState] = {lane: {} for lane in range(num_lanes)}
    return dataclasses.replace(run.new_state(num_lanes), lanes=lanes)


def _by_position(dataset: LaneDataset, states: Sequence[LoaderState]) -> list[list[LoaderState]]:
    """The different states by position; those at the same one each made from the one before, by a restore that changed
    lanes or weights.

    Raises:
        StateError: if those at the same position are not.
    """
    found: list[list[LoaderState]] = []
    ordered = sorted(states, key=lambda state: state.micro_batch_index)
    for _, group in itertools.groupby(ordered, key=lambda state: state.micro_batch_index):
        different: list[LoaderState] = []
        for state in group:
            if state not in different:
                different.append(state)
        chains = _chains(dataset, different)
        if not chains:
            raise StateError(
                f"{len(different)} states after {different[0].micro_batch_index} micro-batches, with "
                f"{' and '.join(str(state.num_lanes) for state in different)} lanes, are of different continuations of "
                "the run: none follows from the other. Give the states of one"
            )
        if len(chains) > 1 and found:  # other weights can be taken back: which came first, the samples before say
            last = found[-1][-1]
            chains.sort(key=lambda chain, last=last: not _leads_to(dataset, last, chain[0], chain[0]))  # type: ignore[misc]
        found.append(chains[0])
    return found


def _chains(dataset: LaneDataset, states: Sequence[LoaderState]) -> list[list[LoaderState]]:
    """The orders of states at one position in which each follows from the one before."""
    return [
        [*chain]
        for chain in itertools.permutations(states)
        if all(_is_changed_into(dataset, one, other) for one, other in itertools.pairwise(chain))
    ]


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
    names = ("draws", "cursors", "blend", "micro_batches", "pack_source")
    return (*(lane.get(name) or 0 for name in names), lane.get("inbox") or {}, lane.get("pending") or {})


def _converted(run: LaneDataset, state: LoaderState, num_lanes: int) -> LoaderState:
    """`state` as a restore in `run` with `num_lanes` lanes makes it."""
    if state.fingerprint != run.fingerprint():
        state = run.order.migrated(state, run.fingerprint())
    if num_lanes != state.num_lanes:
        state = run.resharded(state, num_lanes, range(num_lanes))
    return state


def section_between(dataset: LaneDataset, state: LoaderState, later: LoaderState | None, *, replay: bool) -> RunSection:
    """The section from `state` to `later`, a state of the same run; None: after the last state."""
    if later is None:
        run, numbers = dataset, range(len(dataset.plan.sources))
        converted = _converted(run, state, num_lanes_after(run.worker_config, state.num_lanes))
        return RunSection(run, converted, numbers, lists=[(0, forgotten_in(run))], replay=replay)
    ways = [one for one in (later, state) if _leads_to(dataset, state, one, later)]
    had, unknown = (ways[0], "") if ways else (None, _gap(state, later))
    if len(ways) > 1 and _have_other_weights(state, later):
        unknown = _UNKNOWN_WEIGHTS  # after few draws, either weights reach the same samples in another order
    run, numbers_of_sources = dataset_of(dataset, (had or later).fingerprint)
    converted = state if unknown else _converted(run, state, (had or later).num_lanes)
    history = history_of(later)
    make = functools.partial(ForgottenSamples.under, run.plan.sources, run.source_ids)
    lists = [(0, make(lists_at(history, state.micro_batch_index)))]
    lists += [
        (begin, make(one)) for begin, one in changes_between(history, state.micro_batch_index, later.micro_batch_index)
    ]
    if len(lists) > 1 and later.skips is not None:
        unknown = f"the list of forgotten samples changed at micro-batch {lists[1][0]} of a run that skips steps: also "
        unknown += "give the state that was saved there"
    run = with_forgotten(run, lists[0][1])
    made = functools.partial(RunSection, run, converted, numbers_of_sources, lists=lists, unknown=unknown)
    if unknown or replay or planned_of(dataset) is not None:
        return made(replay=replay)
    skipped = _has_skipped(made(replay=False), later)
    return made(replay=bool(skipped), is_proved=skipped is False)


def _leads_to(dataset: LaneDataset, state: LoaderState, had: LoaderState, later: LoaderState) -> bool:
    """Whether a run with the lanes and weights of `had`, which is one of both, gets from `state` to `later`."""
    run, _ = dataset_of(dataset, had.fingerprint)
    try:
        begin = _converted(run, state, had.num_lanes)
    except StateError:
        return False
    names = [name for name, _ in later.fingerprint["sources"]]
    slots = [names.index(name) for name in run.source_ids if name in names]
    if len(slots) < len(run.source_ids):
        return False
    same = [list(one) for one in begin.generations] == [list(one) for one in later.generations]
    if not same or begin.drawn_before != later.drawn_before:  # it was resharded before it was saved, and drew nothing
        was = [list(one) for one in begin.generations] == [list(one) for one in later.generations][:-1]
        return had is state and was and not any(lane.get("draws") for lane in later.lanes.values())
    if planned_of(run) is not None:
        return all(later.num_made(lane) >= begin.num_made(lane) for lane in later.lanes)
    ahead = later.skips is not None  # lanes may be behind the state, in steps that are skipped
    cursors = ((run.order.cursor(lane, begin), begin.lanes[lane], later.lanes[lane]) for lane in later.lanes)
    return all(_reaches(*one, slots) or (ahead and not one[2]) for one in cursors)


def _reaches(cursor: Cursor, before: LaneState, after: LaneState, slots: Sequence[int]) -> bool:
    """Whether a lane gets from `before` to `after` with the blend of the cursor; its sources have the numbers `slots`
    in `after`."""
    if before:
        cursor.seek(before)
    count = after.get("draws", 0) - before.get("draws", 0)
    if count < 0 or after.get("micro_batches", 0) < before.get("micro_batches", 0):
        return False
    with contextlib.suppress(StopIteration):
        cursor.skip(count)
    reached = {str(slots[int(source)]): position for source, position in cursor.state()["cursors"].items()}
    wanted: dict[str, Any] = after.get("cursors", {})
    return reached == wanted


_OF_WEIGHTS = ("sources", "weights", "schedule")
_UNKNOWN_WEIGHTS = (
    "weights changed here, and it is not known whether the run had those of the state before or after: give states of "
    "between; a run with a ledger (ledger_path) says so"
)


def _gap(state: LoaderState, later: LoaderState) -> str:
    return (
        f"micro-batches {state.micro_batch_index} to {later.micro_batch_index - 1} lie between two states, of "
        f"{state.num_lanes} and {later.num_lanes} lanes, of which the second does not follow from the first: give also "
        "the states of between, with which the lanes were resharded, or only those of one continuation"
    )


def _has_skipped(section: RunSection, later: LoaderState) -> bool | None:
    """Whether hooks skipped samples before `later`, or made several of one; None if the states do not show it."""
    begin = section.state
    if begin.num_lanes != later.num_lanes or begin.drawn_before != later.drawn_before:
        return None
    if any(lane.get("pending") for lane in later.lanes.values()):
        return True
    for lane, after in later.lanes.items():
        of_lane, before = section.lane(lane), begin.lanes[lane]
        count = later.num_made(lane) - begin.num_made(lane)
        draws = after.get("draws", 0) - before.get("draws", 0)
        if isinstance(of_lane, _LoaderLane):
            if of_lane.state_after(count).get("draws", 0) != after.get("draws", 0):
                return True
        elif isinstance(of_lane, _CursorLane) and draws != count * of_lane.size:
            return True
    return False


def skips_of(dataset: LaneDataset, states: Sequence[LoaderState]) -> StepSkips | None:
    """The steps that the run skips, by its settings and its states. Of a range within which it resumed, it has skipped
    what its states say.

    Raises:
        StateError: for a state after a range of which it has skipped nothing.
    """
    own = dataset.skips
    if own is not None and states:
        last = max(states, key=lambda state: state.micro_batch_index)
        for skip in own.without(last.skips):
            if skip in own.ranges and skip.stop <= last.micro_batch_index:
                raise _of_another_run(last, own)
        own = own.from_index(last.micro_batch_index)
    found = [skips for skips in (own, *(state.skips for state in states)) if skips is not None]
    return functools.reduce(StepSkips.joined, found) if found else None


def _with_skips(state: LoaderState, skips: StepSkips) -> LoaderState:
    if (
        not state.num_handed_out
    ):  # the beginning has what the settings say, also of a range within which the run resumed
        return dataclasses.replace(state, skips=skips, micro_batch_index=0)
    skipping = state.skipping(skips)
    if [*skips.without(skipping.skips)]:
        raise _of_another_run(state, skips)
    return skipping


def _of_another_run(state: LoaderState, skips: StepSkips) -> StateError:
    return StateError(
        f"the state after {state.micro_batch_index} micro-batches was saved by a run that did not {skips}: leave it out"
    )


def dataset_of(dataset: LaneDataset, fingerprint: dict[str, Any]) -> tuple[LaneDataset, Sequence[int]]:
    """The data set of the run under `fingerprint`, whose weights, sources and batch size may differ; and the numbers of
    its sources in `dataset`.

    Raises:
        StateError: if anything else differs.
    """
    number = {name: number for number, name in enumerate(dataset.source_ids)}
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
    order = dataset.order_of(plan, batching)
    changed = dataset.changed(plan=plan, batching=batching, order=order)
    if forgotten_in(dataset) is not None:
        changed = with_forgotten(changed, ForgottenSamples.of_data(plan.sources, order.source_ids))
    if (packs := planned_of(changed)) is not None:
        changed = packs.changed(changed, costs=costs_of_sources(changed))
    LoaderState(fingerprint, [], 0, {}).check(changed.fingerprint(), tolerated=("batch_size",))
    return changed, numbers


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunSample:
    """A sample in a micro-batch of a run. `part` is the number of a generator hook's output, else 0."""

    source: str
    """The name of its source, `photos/train`."""
    source_number: int
    """The number of the source in the blend."""
    index: int
    """Its number in the source."""
    epoch: int
    part: int
    step: int
    micro_batch: int
    """The number of the micro-batch in the job, in the order they are handed out."""
    lane: int
    rank: int
    """The data-parallel rank, unless micro-batches are balanced over the ranks."""
    place: int
    """The position in the micro-batch, of the sample or of its pack."""
    place_in_pack: int | None
    """The position in the pack; None without packing."""
    names: "SampleNames" = dataclasses.field(repr=False, compare=False)

    @property
    def shard(self) -> str:
        """The name of its shard. No shard is opened for it."""
        return self.names.shard(self.source_number, self.index)

    @property
    def key(self) -> str:
        """Its key, `shard/key`, as in batches; read from the index, or else from the shard."""
        return self.names.key(self.source_number, self.index)

    @property
    def restore_key(self) -> tuple[str, int, int, int]:
        """Its `__restore_key__`, for `restore_sample`."""
        return self.names.fingerprints[self.source_number], self.epoch, self.index, self.part

    def to_dict(self) -> dict[str, str | int | None]:
        """All fields as plain data; the key is looked up."""
        shown = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "names"}
        return {**shown, "shard": self.shard, "key": self.key}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RunStep:
    """The samples of a step, in the order of its micro-batches and positions. `num_replayed` samples were processed to
    find them; with `assumes_no_skips`, they are correct only if no hook skipped a sample before."""

    number: int
    micro_batches: range
    samples: Sequence[RunSample]
    num_replayed: int
    assumes_no_skips: bool


class MicroBatchRecords(Protocol):
    """A run's record of its micro-batches, such as a ledger."""

    def micro_batch(self, number: int) -> Sequence[SampleKey]:
        """The samples of a micro-batch of the job, in order; `ConfigError` if it is not recorded."""

    def __iter__(self) -> Iterator[tuple[int, Sequence[SampleKey]]]:
        """(number, samples) of each micro-batch."""


class RunOrder:
    """The order of the run of `dataset` (from `get_train_dataset`, with the run's current settings).

    `states` are those that the run saved, in any order; each must have all lanes. `schedule` is the global batch size
    of each step, by default one micro-batch for each rank. Steps are counted from 0. With `replay`, hooks are always
    run. Micro-batches in `records` are taken from there, without a replay; their packs are not distinguished.

    Raises:
        ConfigError: for a data set that is not shuffled.
        StateError: for states of other data, or of several continuations of a run.
    """

    def __init__(
        self,
        dataset: LaneDataset,
        *,
        schedule: BatchSchedule | None = None,
        states: Sequence[LoaderState] = (),
        replay: bool = False,
        records: MicroBatchRecords | None = None,
    ) -> None:
        if dataset.order.shuffle is None:
            raise ConfigError("RunOrder: expected a data set for training, from get_train_dataset")
        self.dataset = dataset
        size = dataset.batching.batch_size or 1
        self.world_size = dataset.worker_config.world_size
        self.schedule = schedule or BatchSchedule(size * self.world_size, size)
        self._names = SampleNames(dataset)
        self._records = records
        self._numbers = {name: number for number, name in enumerate(dataset.source_ids)}
        self.skips = skips_of(dataset, states)
        """The steps that the run skips."""
        self._sections = sections_of(dataset, states, replay=replay)
        self._begins = [section.begin for section in self._sections]

    @property
    def last_state(self) -> int:
        """The micro-batches that were handed out before the last state; 0 without one."""
        return self._num_handed_out(self._begins[-1])

    @property
    def num_lanes(self) -> int:
        """The current number of lanes of the job."""
        return self._sections[-1].num_lanes

    def micro_batches(self, step: int) -> range:
        """The micro-batches of the job in a step, as they are handed out."""
        if step < 0:
            raise ConfigError(f"step {step}: steps are counted from 0")
        return self.schedule.micro_batches(step)

    def step_of(self, micro_batch: int) -> int:
        """The step of a micro-batch of the job."""
        return self.schedule.step_after(micro_batch * self.schedule.micro_batch_size)

    def plain_steps(self, step: int) -> list[int]:
        """The steps of the run without skips that have the data of this step; usually one."""
        return sorted({self.step_of(index) for index in map(self._index, self.micro_batches(step))})

    def at(self, step: int, *, rank: int | None = None) -> RunStep:
        """The samples of the global batch of a step, or of one data-parallel rank in it.

        Raises:
            ConfigError: if the states begin after the step.
            FatalSampleError: from hooks that are run again.
        """
        if rank is not None and not 0 <= rank < self.world_size:
            raise ConfigError(f"rank={rank}: the run has {self.world_size} data-parallel ranks")
        numbers = self.micro_batches(step)
        before = self.num_replayed
        indices = map(self._index, numbers)
        mine = [index for index in indices if rank is None or index % self.world_size == rank]
        samples = [sample for index in mine for sample in self._samples(step, index)]
        assumes = any(self._section(n).assumes_no_skips for n in mine if self._recorded(n) is None)
        return RunStep(
            number=step,
            micro_batches=numbers,
            samples=samples,
            num_replayed=self.num_replayed - before,
            assumes_no_skips=assumes,
        )

    def micro_batch(self, number: int) -> list[RunSample]:
        """The samples of one micro-batch of the job, as they are handed out; none after the end of finite data."""
        return list(self._samples(self.step_of(number), self._index(number)))

    def when(
        self, key: str | None = None, *, source: str | int = "", index: int | None = None, steps: range
    ) -> list[RunSample]:
        """Where a sample comes in these steps: the one with this key (`KEY`, or `SHARD:KEY` or `SHARD/KEY` if several
        shards have it), or number `index` of `source`, by name or number. Steps that are `unknown` are left out.

        Raises:
            ConfigError: if there is no such sample, or several.
        """
        found = self._names.find(key, source, index)
        begin, end = (self._index(number) for number in self._bounds(steps))
        numbers = {number for number in self._recorded_with(found) if begin <= number < end}
        recorded = {number for number, _ in self._records or () if begin <= number < end}
        for section, stop in zip(self._sections, [*self._begins[1:], end], strict=True):
            here = self._between(max(begin, section.begin), min(end, stop))
            if here and not section.unknown and not recorded.issuperset(here):
                numbers |= {*section.find(*found, here)} - recorded
        return [
            one
            for index in sorted(numbers)
            for one in self._samples(self.step_of(self._num_handed_out(index)), index)
            if (one.source_number, one.index) == found
        ]

    def unknown(self, steps: range) -> list[tuple[range, str]]:
        """(steps, reason) of those of the steps that have micro-batches which neither states nor records tell."""
        begin, end = (self._index(number) for number in self._bounds(steps))
        spans = [(0, self._begins[0], self._before_first)]
        ends = [*self._begins[1:], end]
        spans += [(one.begin, stop, one.unknown) for one, stop in zip(self._sections, ends, strict=True)]
        found: list[tuple[range, str]] = []
        for first, stop, reason in spans:
            left = self._between(max(begin, first), min(stop, end)) if reason else ()
            if self._records is not None:
                left = [number for number in left if self._recorded(number) is None]
            if left:
                one, last = (self.step_of(self._num_handed_out(index)) for index in (left[0], left[-1]))
                found.append((range(one, last + 1), reason))
        return found

    def _bounds(self, steps: range) -> tuple[int, int]:
        """The first micro-batch of the steps, and the first after them."""
        return self.micro_batches(steps[0]).start, self.micro_batches(steps[-1]).stop

    @property
    def num_replayed(self) -> int:
        """The samples that hooks have processed so far."""
        return sum(section.num_replayed for section in self._sections)

    @property
    def assumes_no_skips(self) -> bool:
        """Whether some steps assume that no hook skipped a sample."""
        return any(section.assumes_no_skips for section in self._sections)

    @property
    def needs_encoder(self) -> bool:
        """Whether some steps are unknown for want of the run's own task encoder."""
        return any(section.unknown == NEEDS_ENCODER for section in self._sections)

    def _section(self, number: int) -> RunSection:
        """The section of the run with this micro-batch."""
        section = self._sections[max(0, bisect.bisect_right(self._begins, number) - 1)]
        reason = section.unknown if number >= self._begins[0] else self._before_first
        if reason and self._recorded(number) is None:
            raise ConfigError(f"micro-batch {number}: {reason}")
        return section

    @property
    def _before_first(self) -> str:
        return (
            f"comes before the first given state, after micro-batch {self._begins[0]}, and the lanes had been assigned "
            "again before it: give an earlier state"
        )

    def _index(self, num_handed_out: int) -> int:
        """The index of the micro-batch that comes after so many were handed out."""
        return num_handed_out if self.skips is None else self.skips.index_after(num_handed_out)

    def _num_handed_out(self, index: int) -> int:
        return index if self.skips is None else self.skips.num_handed_out(index)

    def is_recorded(self, number: int) -> bool:
        """Whether the records have a micro-batch, by how many were handed out before it."""
        return self._recorded(self._index(number)) is not None

    def _between(self, begin: int, stop: int) -> Sequence[int]:
        """The micro-batches from `begin` to `stop - 1` that are handed out."""
        between = range(begin, stop)
        return between if self.skips is None else [index for index in between if index not in self.skips]

    def _recorded(self, number: int) -> Sequence[SampleKey] | None:
        if self._records is None:
            return None
        try:
            return self._records.micro_batch(number)
        except ConfigError:
            return None

    def _recorded_with(self, found: tuple[int, int]) -> list[int]:
        """The micro-batches that contain a sample, by the records."""
        wanted = (self.dataset.source_ids[found[0]], found[1])
        return sorted(
            number
            for number, keys in self._records or ()
            if any((self._known(number, key).source, key.index) == wanted for key in keys)
        )

    def _samples(self, step: int, index: int) -> Iterator[RunSample]:
        section, number = self._section(index), self._num_handed_out(index)
        lane, rank = index % section.num_lanes, index % self.world_size
        made = functools.partial(RunSample, step=step, micro_batch=number, lane=lane, rank=rank, names=self._names)
        recorded = self._recorded(index)
        if recorded is not None:
            for place, key in enumerate(recorded):
                source = self._numbers[self._known(number, key).source]
                yield made(
                    source=self.dataset.plan.sources[source].name,
                    source_number=source,
                    index=key.index,
                    epoch=key.epoch,
                    part=max(0, key.output),
                    place=place,
                    place_in_pack=None,
                )
            return
        for place, unit in enumerate(section.units(index)):
            for place_in_pack, (source, epoch, index, part) in enumerate(unit):
                yield made(
                    source=section.source_labels[source],
                    source_number=section.source_numbers[source],
                    index=index,
                    epoch=epoch,
                    part=max(0, part),
                    place=place,
                    place_in_pack=place_in_pack if section.packs else None,
                )

    def _known(self, micro_batch: int, key: SampleKey) -> SampleKey:
        """A recorded sample, after a check that its source is one of the run.

        Raises:
            ConfigError: if it is not.
        """
        if key.source not in self._numbers:
            names = ", ".join(source.name for source in self.dataset.plan.sources)
            raise ConfigError(
                f"the records are of another run, or its data have changed: micro-batch {micro_batch} has a sample "
                f"of a source with fingerprint {key.source}, which is none of {names}"
            )
        return key


def steps_text(steps: range) -> str:
    """`step 3`, `steps 3 to 5`."""
    return f"step {steps[0]:,}" if len(steps) == 1 else f"steps {steps[0]:,} to {steps[-1]:,}"


class SampleNames:
    """Source and number of a sample from its key, shard and key from its number. A key is one look-up in the key index
    of each data set; a shard is opened only to read a key that no index has."""

    def __init__(self, dataset: LaneDataset) -> None:
        self.sources, self.fingerprints = dataset.plan.sources, dataset.source_ids
        self._ends: dict[int, list[int]] = {}
        self._readers: dict[int, RecordReader] = {}

    def shard(self, source: int, index: int) -> str:
        """The name of the shard of a sample."""
        records = self.sources[source].records
        if source not in self._ends:
            self._ends[source] = list(itertools.accumulate(counts_of(records)))
        return names_of(records)[bisect.bisect_right(self._ends[source], index)]

    def key(self, source: int, index: int) -> str:
        """The key of a sample, `shard/key`."""
        if source not in self._readers:
            self._readers[source] = self.sources[source].records.reader()
        return self._readers[source].read(index, ()).full_key

    def find(self, key: str | None, source: str | int, index: int | None) -> tuple[int, int]:
        """(number of the source, index) of the sample with a key, or of sample `index` of a source.

        Raises:
            ConfigError: if there is no such sample, or several.
        """
        if (key is None) == (index is None):
            raise ConfigError("give a key, or a source and an index")
        numbers = self._numbers(source)
        if index is not None:
            if len(numbers) != 1:
                names = ", ".join(self.sources[number].name for number in numbers)
                raise ConfigError(f"index={index}: give its source, too, one of {names}")
            size = self.sources[numbers[0]].num_samples
            if not 0 <= index < size:
                raise ConfigError(f"index={index}: {self.sources[numbers[0]].name} has {size:,} samples")
            return numbers[0], index
        assert key is not None
        found = find_sample([self.sources[number].records for number in numbers], key)
        if len(found) > 1:
            names = ", ".join(self.sources[numbers[one.records]].name for one in found)
            raise ConfigError(f"sample {found[0].name} is in several sources, {names}: say which one")
        return numbers[found[0].records], found[0].index

    def _numbers(self, source: str | int) -> list[int]:
        if source == "":
            return list(range(len(self.sources)))
        names = [one.name for one in self.sources]
        found = [number for number, name in enumerate(names) if source in (number, str(number), name)]
        if not found:
            raise ConfigError(f"source={source!r}: there is none of this name or number; there is {', '.join(names)}")
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class RunDifference:
    """`reasons` are differences of the settings, in words. `step` is the first compared step whose samples differ, or
    None; `first` and `second` are the samples of the two runs at the first position that differs, None if a run has no
    sample there."""

    reasons: list[str]
    step: int | None
    first: RunSample | None = None
    second: RunSample | None = None


def first_difference(one: RunOrder, other: RunOrder, *, steps: Sequence[int]) -> RunDifference:
    """The difference between two runs in these steps."""
    reasons = [
        text.replace("the state has", "the first has").replace("this run has", "the second")
        for _, text in LoaderState(one.dataset.fingerprint(), [], 0, {}).differences(other.dataset.fingerprint())
    ]
    settings = [
        ("num_lanes", one.num_lanes, other.num_lanes),
        ("global_batch_size", one.schedule.global_batch_size, other.schedule.global_batch_size),
        ("rampup_batch_size", one.schedule.rampup_batch_size, other.schedule.rampup_batch_size),
    ]
    reasons += [f"{name}: the first has {a}, the second {b}" for name, a, b in settings if a != b]
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


def _identity(run: RunOrder, sample: RunSample) -> tuple[Any, ...]:
    source = run.dataset.source_ids[sample.source_number]
    return source, sample.epoch, sample.index, sample.part, sample.place, sample.place_in_pack


_ROWS = 1 << 16
"""Rows of a row group of Parquet, at least."""


def write_order(run: RunOrder, steps: Sequence[int], file: Path | None) -> None:
    """Write the samples of `steps` to `file`, `.jsonl` or `.parquet`; None: as JSON lines to standard output.

    Raises:
        ConfigError: for another file name, a file that cannot be written, or for Parquet without pyarrow.
    """
    if file is None:
        _write_lines(run, steps, sys.stdout)
        return
    if file.suffix not in (".jsonl", ".parquet"):
        raise ConfigError(f"{file}: expected a file named .jsonl or .parquet")
    try:
        if file.suffix == ".parquet":
            _write_parquet(run, steps, file)
        else:
            with file.open("w", encoding="utf-8") as lines:
                _write_lines(run, steps, lines)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error}") from error


def _write_lines(run: RunOrder, steps: Sequence[int], lines: TextIO) -> None:
    for rows in _rows(run, steps):
        lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _rows(run: RunOrder, steps: Sequence[int]) -> Iterator[list[dict[str, Any]]]:
    """The rows of each step."""
    for step in steps:
        yield [sample.to_dict() for sample in run.at(step).samples]


def _write_parquet(run: RunOrder, steps: Sequence[int], file: Path) -> None:
    try:
        pyarrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(f"{file}: Parquet needs pyarrow: pip install pyarrow, or write .jsonl") from error
    numbers = ("source_number", "index", "epoch", "part", "step", "micro_batch", "lane", "rank", "place")
    fields = [("source", pyarrow.string()), *((name, pyarrow.int64()) for name in numbers)]
    texts = [("shard", pyarrow.string()), ("key", pyarrow.string())]
    schema = pyarrow.schema([*fields, ("place_in_pack", pyarrow.int64()), *texts])
    with parquet.ParquetWriter(file, schema) as writer:
        waiting: list[dict[str, Any]] = []
        for rows in _rows(run, steps):
            waiting += rows
            if len(waiting) >= _ROWS:
                writer.write_table(pyarrow.Table.from_pylist(waiting, schema))
                waiting = []
        if waiting:
            writer.write_table(pyarrow.Table.from_pylist(waiting, schema))
