"""The sections of a run: from each state that it saved to the next, the samples of each micro-batch.

Reads a training data set and states of its run. Returns `RunSection`s, which find the samples of a micro-batch as a
loader would get there from the state. If samples are neither packed nor grouped, the cursor of its lane passes over
what comes before, and no shard is opened: right if hooks skip no sample. If the next state shows that they did, and for
packs, groups and generators, the lane is run as the loader runs it. Planned packs are known from the cost index.

Between two states the run had the lanes, weights and batch size of the later one (or of the earlier one, if the later
was saved right after a restore), after the last one those of the data set; samples that are forgotten now are left out
there. Whether one state leads to the next is checked with the cursors; where it does not, the section is `unknown`.
Raises StateError for states of other data, or of several continuations of a run.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from bridge_data.errors import ConfigError, StateError
from bridge_data.lanes.lane import Lane
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.maker import Key, Maker, Unit
from bridge_data.lanes.maker_wrappers import LaneView
from bridge_data.order import Cursor, SampleRef
from bridge_data.order.extras import EXTRAS, LaneExtras, StateExtra
from bridge_data.order.plan_order import PlanOrder
from bridge_data.order.state import LaneState, LoaderState, num_lanes_after
from bridge_data.order.step_skips import StepSkips
from bridge_data.plan import Source
from bridge_data.runs.occurrences import can_tell, draws_of
from bridge_data.runs.training_run import OrderTaskEncoder

UnitRefs: TypeAlias = list[SampleRef]
"""The samples of a pack, or one sample."""

Extras: TypeAlias = Sequence[tuple[int, tuple[StateExtra, ...]]]
"""(first micro-batch, the extras from that one on, some of which leave out samples)."""

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

    def __init__(self, dataset: LaneDataset, state: LoaderState, lane: int, extras: Extras) -> None:
        self._packs = dataset.pack_sources.members(dataset, lane, state)
        self._index, self._num_lanes = state.num_made(lane) * state.num_lanes + lane, state.num_lanes
        self._size, self._drop_last = dataset.batching.batch_size or 1, dataset.batching.drop_last
        self._extras = [(begin, LaneExtras(own, lane, state)) for begin, own in extras]
        self._known: list[list[UnitRefs]] = []

    def units(self, first: int, count: int) -> list[list[UnitRefs]]:
        with contextlib.suppress(StopIteration):
            while len(self._known) < first + count:
                index = self._index + len(self._known) * self._num_lanes
                extras = next((own for begin, own in reversed(self._extras) if begin <= index), self._extras[0][1])
                units: list[UnitRefs] = []
                try:
                    while len(units) < self._size:
                        if left := [*extras.filter(next(self._packs))]:
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
    """The micro-batches of a lane, run as the loader runs it; opened again wherever its extras change.
    Without `reads`, no sample is read or made, as none is packed and no hook matters: only what lanes do is done."""

    def __init__(self, dataset: LaneDataset, state: LoaderState, lane: int, extras: Extras, *, reads: bool) -> None:
        self.num_replayed, self._reads = 0, reads
        self._dataset, self._state, self._number = dataset, state, lane
        done, num_lanes = state.num_made(lane), state.num_lanes
        places = [(max(0, -(-(begin - lane) // num_lanes) - done), own) for begin, own in extras]
        self._changes = collections.deque(places)
        self._lane = self._opened(state.lanes[lane])
        self._units: list[Unit] = []
        self._known: list[list[UnitRefs]] = []

    def _opened(self, own: LaneState) -> Lane:
        _, extras = self._changes.popleft()
        dataset = self._dataset
        if extras != dataset.extras:
            dataset = dataset.changed(extras=extras)
        batcher = dataset.batcher(watch=self._count if self._reads else None)
        make = batcher.batch
        # The lane calls it with what a batch is made of; all else is unchanged.
        batcher.batch = functools.partial(self._batch, make)  # type: ignore[method-assign]
        state = dataclasses.replace(self._state, lanes={self._number: own})
        wrappers = () if self._reads else (_unread,)
        return dataset.lane(self._number, state, batcher=batcher, wrappers=wrappers)

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
    `source_numbers` in the current run. `extras` may leave out samples. `unknown`: why its samples cannot be found;
    "" if they can. With `replay`, hooks are run; `is_proved` says that they skip nothing."""

    def __init__(
        self,
        dataset: LaneDataset,
        state: LoaderState,
        source_numbers: Sequence[int],
        *,
        extras: Extras,
        replay: bool,
        is_proved: bool = False,
        unknown: str = "",
    ) -> None:
        self.begin, self.num_lanes, self.unknown = state.micro_batch_index, state.num_lanes, unknown
        self.source_numbers, self.state = source_numbers, state
        self.source_labels, self.source_ids = [one.name for one in dataset.plan.sources], dataset.source_ids
        self.is_packing = dataset.is_packing
        batcher, is_planned = dataset.batcher(), dataset.pack_sources.are_planned
        waits = any(lane.get("pending") for lane in state.lanes.values())
        self.is_replayed = not is_planned and (replay or self.is_packing or batcher.may_multiply or waits)
        if self.is_replayed and isinstance(dataset.task_encoder, OrderTaskEncoder) and not unknown:
            self.unknown = NEEDS_ENCODER
        has_hooks = bool(batcher.does or dataset.task_encoder.cookers)
        self.assumes_no_skips = is_planned or (has_hooks and not (self.is_replayed or is_proved))
        self._inverse: Callable[[int, int, range], Iterator[int]] | None = None
        self._limit_of = functools.cache(functools.partial(dataset.passes.limit_of, state=state))
        if is_planned:
            self._open: Callable[[int], Any] = lambda lane: _PlannedLane(dataset, state, lane, extras)
        elif self.is_replayed or len(extras) > 1 or any(one.leaves_out for one in extras[0][1]):
            reads = self.is_replayed
            self._open = lambda lane: _LoaderLane(dataset, state, lane, extras, reads=reads)
        else:
            self._open = lambda lane: _CursorLane(dataset, state, lane)
            if can_tell(dataset.order, state):
                size = dataset.batching.batch_size or 1
                self._inverse = functools.partial(self._draws_in, dataset.order, size)
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

    def find(self, source: int, index: int, indices: range, on_progress: Callable[[int], None]) -> Iterator[int]:
        """Those of these micro-batches that have sample `index` of the source with this number in the run: by
        arithmetic, or else all are looked through; then `on_progress` gets how many more were."""
        if source not in self.source_numbers or not indices:
            return
        own = self.source_numbers.index(source)
        if self._inverse is not None:
            yield from self._inverse(own, index, indices)
            return
        for lane in range(self.num_lanes):
            made = self.state.num_made(lane)
            first, stop = (-((lane - edge) // self.num_lanes) for edge in (indices.start, indices.stop))
            stop = int(min(stop, self._limit_of(lane)))
            for begin in range(max(first, made), stop, _MANY):
                count = min(_MANY, stop - begin)
                for place, units in enumerate(self.lane(lane).units(begin - made, count), start=begin):
                    if any(ref.source == own and ref.index == index for unit in units for ref in unit):
                        yield place * self.num_lanes + lane
                on_progress(count)

    def _draws_in(self, order: PlanOrder, size: int, own: int, index: int, indices: range) -> Iterator[int]:
        """Those of these micro-batches, of `size` draws each, that have sample `index` of the own source."""
        made = [self.state.num_made(lane) for lane in range(self.num_lanes)]
        first = max(0, indices[0] // self.num_lanes - max(made))
        draws = range(first * size, max(0, indices[-1] // self.num_lanes + 1 - min(made)) * size)
        for lane, draw in draws_of(order, self.state, own, index, draws):
            place = made[lane] + draw // size
            if place * self.num_lanes + lane in indices and place < self._limit_of(lane):
                yield place * self.num_lanes + lane


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
        own = _beginning(dataset, dataset.worker_config.num_lanes) if first is None else _beginning_of(dataset, first)
        groups.insert(0, [dataclasses.replace(own, skips=skips, micro_batch_index=0)])
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
    return section_between(dataset, _beginning_of(dataset, state), state, replay=False)


def _beginning_of(dataset: LaneDataset, state: LoaderState) -> LoaderState:
    """The beginning of a run with the weights and lanes of `state`."""
    beginning = _beginning(dataset_of(dataset, state.fingerprint)[0], state.num_lanes)
    return dataclasses.replace(beginning, skips=state.skips, micro_batch_index=0)


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
        if len(chains) > 1:  # other weights can be taken back: which came first, the samples before say
            last = found[-1][-1] if found else None
            chains.sort(key=lambda chain, last=last: not _is_reached(dataset, last, chain[0]))  # type: ignore[misc]
        found.append(chains[0])
    return found


def _is_reached(dataset: LaneDataset, before: LoaderState | None, state: LoaderState) -> bool:
    """Whether a run with the weights of `state` gets there from the state `before`; None: from its beginning."""
    return _leads_to(dataset, _beginning_of(dataset, state) if before is None else before, state, state)


def _chains(dataset: LaneDataset, states: Sequence[LoaderState]) -> list[list[LoaderState]]:
    """The orders of states at one position in which each follows from the one before."""

    @functools.cache
    def follows(one: int, other: int) -> bool:
        return _is_changed_into(dataset, states[one], states[other])

    def chains_from(chain: list[int]) -> Iterator[list[int]]:
        if len(chain) == len(states):
            yield chain
        for number in range(len(states)):
            if number not in chain and (not chain or follows(chain[-1], number)):
                yield from chains_from([*chain, number])

    return [[states[number] for number in chain] for chain in chains_from([])]


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
        state = run.resharded_state(state, num_lanes, range(num_lanes))
    return state


def section_between(dataset: LaneDataset, state: LoaderState, later: LoaderState | None, *, replay: bool) -> RunSection:
    """The section from `state` to `later`, a state of the same run; None: after the last state."""
    if later is None:
        run, numbers = dataset, range(len(dataset.plan.sources))
        converted = _converted(run, state, num_lanes_after(run.worker_config, state.num_lanes))
        return RunSection(run, converted, numbers, extras=[(0, run.extras)], replay=replay)
    ways = [one for one in (later, state) if _leads_to(dataset, state, one, later)]
    had, unknown = (ways[0], "") if ways else (None, _gap(state, later))
    if len(ways) > 1 and _have_other_weights(state, later):
        unknown = _UNKNOWN_WEIGHTS  # after few draws, either weights reach the same samples in another order
    run, numbers_of_sources = dataset_of(dataset, (had or later).fingerprint)
    converted = state if unknown else _converted(run, state, (had or later).num_lanes)
    extras = extras_between(later, state.micro_batch_index, run.extras, run.plan.sources, run.source_ids)
    if len(extras) > 1 and later.skips is not None:
        unknown = f"what lanes leave out changed at micro-batch {extras[1][0]} of a run that skips steps: also give "
        unknown += "the state that was saved there"
    run = run.changed(extras=extras[0][1])
    made = functools.partial(RunSection, run, converted, numbers_of_sources, extras=extras, unknown=unknown)
    if unknown or replay or dataset.pack_sources.are_planned:
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
    if run.pack_sources.are_planned:
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
    if not state.num_handed_out:  # of a beginning the settings decide, also where the run resumed within a range
        return dataclasses.replace(state, skips=skips, micro_batch_index=0)
    skipping = state.skipping(skips)
    if [*skips.without(skipping.skips)]:
        raise _of_another_run(state, skips)
    return skipping


def _of_another_run(state: LoaderState, skips: StepSkips) -> StateError:
    return StateError(
        f"the state after {state.micro_batch_index} micro-batches was saved by a run that did not {skips}, as "
        "before it went back to an earlier checkpoint: move it out of the folder, or name its own states by --state"
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
    extras = tuple(
        type(own).of_data(plan.sources, order.source_ids) if own.leaves_out else own for own in dataset.extras
    )
    changed = dataset.changed(plan=plan, batching=batching, order=order, extras=extras)
    changed = changed.changed(pack_sources=changed.pack_sources.batched(changed))
    LoaderState(fingerprint, [], 0, {}).check(changed.fingerprint(), tolerated=("batch_size",))
    return changed, numbers


def extras_between(
    state: LoaderState, begin: int, extras: Sequence[StateExtra], sources: Sequence[Source], source_ids: Sequence[str]
) -> list[tuple[int, tuple[StateExtra, ...]]]:
    """(first micro-batch, the extras of the run from there on), from micro-batch `begin` to that of a `state` that it
    saved: `extras`, but for those that leave out samples, which were as the state says.

    Raises:
        StateError: if the sources, which states call by these ids, do not tell what was left out.
    """
    kinds = {extra.name: type(extra) for extra in extras} | {name: EXTRAS.get(name, "a state") for name in state.extras}
    histories = [(kind, kind.history(state)) for kind in kinds.values() if kind.leaves_out]
    changes = {index for _, history in histories for index, _ in history if begin < index < state.micro_batch_index}
    others, found = [extra for extra in extras if not extra.leaves_out], []
    for index in (begin, *sorted(changes)):
        then = [
            kind.under(sources, source_ids, next((data for first, data in reversed(history) if first <= index), None))
            for kind, history in histories
        ]
        found.append((index, (*others, *(extra for extra in then if extra is not None))))
    return found
