"""The sections of a run: from its beginning or a saved state to the next state.

Reads the current data set of a run, and the states that it saved. Returns for each section the samples of its
micro-batches, and the micro-batches of a sample. Between two states the run had the lanes, weights and batch size of
the later one; after the last state, those of the data set. States are converted as in a restore. But a state may have
been saved right after a restore that changed them, before any micro-batch (as Lightning does): then the run had those
of the earlier state. The sections are a chain, each state made from the one before, and a section where that cannot be
is `unknown`, with the reason.

Contents are found by arithmetic if the lanes neither pack nor group and no hook skips samples; else with the run's own
lanes and hooks, opened again wherever the list of forgotten samples changed. Raises a StateError for states of other
data or of several continuations.
"""

import bisect
import collections
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, Literal, TypeAlias

from bridge_data.errors import ConfigError, StateError
from bridge_data.lanes.assembly import Assembly, Unit
from bridge_data.lanes.lane import Lane
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.maker import Key
from bridge_data.order import Cursor, SampleRef
from bridge_data.order.state import LaneState, LoaderState, num_lanes_after
from bridge_data.order.step_skips import StepSkips
from bridge_data.plugins.forget.forgotten import ForgottenSamples, forgotten_in, history_of, with_forgotten
from bridge_data.plugins.forget.forgotten_lists import ListVersions, changes_between, lists_at
from bridge_data.plugins.ledger.ledger import sums_of
from bridge_data.plugins.ledger.ledger_sums import LedgerSums, packed_references, tallies
from bridge_data.plugins.planned.planned import LanePacks
from bridge_data.plugins.planned.planned_sources import PlannedSources, costs_of_sources, planned_of
from bridge_data.tools.runs import OrderTaskEncoder
from bridge_data.tools.sample_numbers import NumberedLane, numbers_of

_FEW, _MANY = 64, 4096
"""Draws checked together for forgotten samples: initial number, maximum."""

Changes: TypeAlias = Sequence[tuple[int, ForgottenSamples | None]]
"""(first slot, the samples forgotten from that slot on)."""

UnitRefs = list[SampleRef]
"""The samples of a pack, or one sample."""


class LanesFrom:
    """What the lanes make from `state` on, by micro-batch number."""

    def __init__(self, dataset: LaneDataset, state: LoaderState, changes: Changes, *, is_replayed: bool) -> None:
        self.is_replayed, self.num_replayed = is_replayed, 0
        self._lists: Changes = [(0, forgotten_in(dataset)), *changes]
        self._forgets, self._kept = any(forgotten for _, forgotten in self._lists), dict[int, KeptDraws]()
        self._dataset, self._state, self._num_lanes = dataset, state, state.num_lanes
        self._size = dataset.batching.batch_size or 1
        self._numbers = None if is_replayed else numbers_of(dataset.order, state)
        self._lanes: dict[int, _Replayed] = {}
        self._datasets: dict[int, LaneDataset] = {}

    def units(self, lane: int, places: range) -> list[list[UnitRefs]]:
        """The packs or samples of the micro-batches of a lane at these places; none after the end of finite data."""
        done, size = self._state.num_made(lane), self._size
        if places.start < done:
            number = places.start * self._num_lanes + lane
            raise StateError(f"micro-batch {number}: lane {lane} of the state has emitted {done} already")
        if self._numbers is None:
            made = [self._replayed(lane).units(place - done) for place in places]
        else:
            numbers = self._kept_draws(lane) if self._forgets else self._numbers.lane(lane)
            refs = numbers.take((places.start - done) * size, len(places) * size)
            made = [[[ref] for ref in refs[first : first + size]] for first in range(0, len(places) * size, size)]
        limit = self._dataset.limit_of(lane, self._state)
        is_whole = 0 if self._numbers is None or not self._dataset.batching.drop_last else size
        return [
            units if place < limit and len(units) >= is_whole else [] for place, units in zip(places, made, strict=True)
        ]

    def find(self, source: int, index: int, stop: int) -> set[int]:
        """The micro-batches before `stop` that have a sample, by arithmetic."""
        assert self._numbers is not None
        drawn = self._numbers.find(source, index, lambda lane, number: self._micro_batch(lane, number, stop) >= stop)
        return {
            self._micro_batch(lane, number, stop)
            for lane, number, _ in drawn
            if not (self._forgets and self._kept_draws(lane).is_gone(number))
        }

    def num_gone(self, lane: int, num_draws: int) -> int:
        """How many of the next draws of a lane are forgotten samples."""
        return self._kept_draws(lane).num_gone(num_draws) if self._forgets else 0

    def _kept_draws(self, lane: int) -> "KeptDraws":
        assert self._numbers is not None
        if lane not in self._kept:
            lists = [(place * self._size, forgotten or ()) for place, forgotten in self._lists_of(lane)]
            self._kept[lane] = KeptDraws(self._numbers.lane(lane), lists)
        return self._kept[lane]

    def _lists_of(self, lane: int) -> Changes:
        """The forgotten samples, by the lane's first micro-batch that lacks them, counted from the state."""
        done = self._state.num_made(lane)
        return [(max(0, -(-(slot - lane) // self._num_lanes) - done), forgotten) for slot, forgotten in self._lists]

    def _dataset_with(self, forgotten: ForgottenSamples | None) -> LaneDataset:
        """The data set with these forgotten samples, the same for all lanes, which share its readers."""
        if forgotten is forgotten_in(self._dataset):
            return self._dataset
        if id(forgotten) not in self._datasets:
            self._datasets[id(forgotten)] = with_forgotten(self._dataset, forgotten)
        return self._datasets[id(forgotten)]

    def _micro_batch(self, lane: int, number: int, stop: int) -> int:
        """The micro-batch of a draw; some number >= `stop` if that is not below `stop`."""
        if self._forgets:
            num_batches = max(0, -(-(stop - lane) // self._num_lanes) - self._state.num_made(lane))
            number = self._kept_draws(lane).number_of(number, num_batches * self._size)
        return (self._state.num_made(lane) + number // self._size) * self._num_lanes + lane

    def _replayed(self, lane: int) -> "_Replayed":
        if lane not in self._lanes:

            def count(_: SampleRef) -> None:
                self.num_replayed += 1

            def opened(lane_state: LaneState, forgotten: ForgottenSamples | None) -> tuple[Lane, _NotedWork]:
                dataset = self._dataset_with(forgotten)
                work = _NotedWork(dataset.work(watch=count))
                state = dataclasses.replace(self._state, lanes={lane: lane_state})
                return dataset.lane(lane, state, work=work.work), work

            self._lanes[lane] = _Replayed(opened, self._state.lanes[lane], self._lists_of(lane))
        return self._lanes[lane]


class _NotedWork:
    """`work` that also records the units of its last batches."""

    def __init__(self, work: Assembly) -> None:
        self.work = work
        self.batches: list[Any] = []
        self.units: list[Unit] = []
        self._make = work.batch
        work.batch = self._batch  # type: ignore[method-assign]  # the lane calls it; all else is unchanged

    def _batch(self, units: list[Unit], keys: list[Key], *, collate: bool) -> list[Any]:
        self.batches, self.units = self._make(units, keys, collate=collate), units
        return self.batches


class _Replayed:
    """A lane that is replayed, with the units of each micro-batch so far. `opened` opens it at a state; `lists` are
    those of `LanesFrom`, by the lane's micro-batches."""

    def __init__(
        self,
        opened: Callable[[LaneState, ForgottenSamples | None], tuple[Lane, _NotedWork]],
        state: LaneState,
        lists: Changes,
    ) -> None:
        self._opened, self._changes = opened, collections.deque(lists)
        self._lane, self._work = opened(state, self._changes.popleft()[1])
        self._known: list[list[UnitRefs]] = []

    def units(self, number: int) -> list[UnitRefs]:
        """The units of the lane's micro-batch `number` from the state on; none after the end."""
        while len(self._known) <= number:
            while self._changes and self._changes[0][0] <= len(self._known):
                self._lane, self._work = self._opened(self._lane.state(), self._changes.popleft()[1])
            try:
                self._lane.next()
            except StopIteration:
                return []
            units = [[item.ref._replace(output=item.output) for item in unit.items] for unit in self._work.units]
            self._known.append(units)
        return self._known[number]


class KeptDraws:
    """The draws of the lane `numbers` without forgotten samples, as the lane hands them out. Each draw is counted only
    once, when first needed. `lists` are (number of the first kept sample, the samples forgotten from there on), in
    ascending order, the first from 0 on."""

    def __init__(self, numbers: NumberedLane, lists: Sequence[tuple[int, Container[SampleRef]]]) -> None:
        self._numbers, self._lists = numbers, lists
        self._gone: list[int] = []
        """The forgotten draws among the first `_num_seen`."""
        self._num_seen, self._is_ended, self._list = 0, False, 0

    @property
    def _num_kept(self) -> int:
        return self._num_seen - len(self._gone)

    def take(self, number: int, count: int) -> list[SampleRef]:
        """The kept samples `number` to `number + count - 1`; fewer at the end of the data."""
        while not self._is_ended and self._num_kept < number + count:
            self._look()
        first, end = self._draw_of(number), self._draw_of(number + count)
        refs = self._numbers.take(first, end - first)
        gone = {*self._gone[bisect.bisect_left(self._gone, first) : bisect.bisect_left(self._gone, end)]}
        return [ref for draw, ref in enumerate(refs, start=first) if draw not in gone][:count]

    def number_of(self, draw: int, stop: int) -> int:
        """How many kept samples come before a draw; at most `stop`."""
        while not self._is_ended and self._num_seen <= draw and self._num_kept < stop:
            self._look()
        return min(stop, draw - bisect.bisect_left(self._gone, draw))

    def is_gone(self, draw: int) -> bool:
        """Whether a draw is a forgotten sample, after `number_of` was called for it."""
        at = bisect.bisect_left(self._gone, draw)
        return at < len(self._gone) and self._gone[at] == draw

    def num_gone(self, num_draws: int) -> int:
        """How many of the first `num_draws` are forgotten."""
        return num_draws - self.number_of(num_draws, num_draws)

    def _draw_of(self, number: int) -> int:
        """The draw of kept sample `number`; one after the last if there are fewer."""
        draw = number
        while (later := number + bisect.bisect_right(self._gone, draw)) > draw:
            draw = later
        return draw

    def _look(self) -> None:
        count = min(_MANY, max(_FEW, self._num_seen))
        refs = self._numbers.take(self._num_seen, count)
        self._is_ended = len(refs) < count
        for ref in refs:
            while self._list + 1 < len(self._lists) and self._num_kept >= self._lists[self._list + 1][0]:
                self._list += 1
            if ref in self._lists[self._list][1]:
                self._gone.append(self._num_seen)
            self._num_seen += 1


class PlannedLanes:
    """What the lanes of a run with planned packs make from `state` on: by the plan, without running hooks."""

    num_replayed = 0

    def __init__(self, dataset: LaneDataset, planned: PlannedSources, state: LoaderState, changes: Changes) -> None:
        self._dataset, self._planned, self._state = dataset, planned, state
        self._lists: Changes = [(0, forgotten_in(dataset)), *changes]
        self._lanes: dict[int, tuple[LanePacks, list[list[UnitRefs]]]] = {}

    def units(self, lane: int, places: range) -> list[list[UnitRefs]]:
        """The packs of the micro-batches of a lane at these places; none after the end of finite data.

        Raises:
            StateError: if the state comes after them.
        """
        done, size = self._state.num_made(lane), self._dataset.batching.batch_size or 1
        if places.start < done:
            raise StateError(
                f"micro-batch {places.start * self._state.num_lanes + lane}: lane {lane} of the state has emitted "
                f"{done} already"
            )
        if lane not in self._lanes:
            self._lanes[lane] = self._planned.lane_packs(self._dataset, lane, self._state), []
        packs, known = self._lanes[lane]
        with contextlib.suppress(StopIteration):
            while len(known) < places.stop - done:
                slot = (done + len(known)) * self._state.num_lanes + lane
                forgotten = next(lists for first, lists in reversed(self._lists) if first <= slot) or ()
                units: list[UnitRefs] = []
                try:
                    while len(units) < size:
                        if left := [ref for ref in packs.next().members if ref not in forgotten]:
                            units.append(left)
                finally:
                    if len(units) == size or (units and not self._dataset.batching.drop_last):
                        known.append(units)
        found = known[places.start - done : places.stop - done]
        return [*found, *([] for _ in range(len(places) - len(found)))]


ListsOfRun: TypeAlias = Literal["now", "then"]
"""Which lists of forgotten samples a run has after its last state."""

NEEDS_ENCODER = (
    "samples were left out, grouped, packed or made of others here, as the states show: only the task encoder of the "
    "run says which; name it (--task-encoder package.module:Name, bridge_data:DefaultTaskEncoder if it has no own one)"
)
"""Why a section is unknown without the task encoder."""

_MANY_DRAWS = 1 << 16
"""Draws of a lane that are processed together."""

_MANY_MICRO_BATCHES = 1_000
"""Micro-batches of a lane whose sums are made together."""


class RunSection:
    """The micro-batches of the job from that of `state` on, over `dataset`, whose sources have the numbers
    `source_numbers` in the current run. `changes` are the later changes of the forgotten samples. `unknown`: why its
    samples cannot be found; "" if they can."""

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
        self.begin, self.num_lanes, self.unknown = state.micro_batch_index, state.num_lanes, unknown
        self.source_numbers = source_numbers
        self.source_labels = [source.name for source in dataset.plan.sources]
        self.fingerprints = dataset.source_ids
        self.packs = dataset.batching.packing_buffer_size is not None
        self._state, self._skips = state, state.skips or ()
        work = dataset.work()
        waits = any(lane.get("pending") for lane in state.lanes.values())
        is_replayed = replay or self.packs or work.may_multiply or waits
        is_unnamed = isinstance(dataset.task_encoder, OrderTaskEncoder)
        has_hooks = bool(work.does or dataset.task_encoder.cookers)
        if is_replayed and is_unnamed and not self.unknown:
            self.unknown = NEEDS_ENCODER
        self.assumes_no_skips = has_hooks and not (is_replayed or is_proved)
        self._lanes: LanesFrom | PlannedLanes
        if (planned := planned_of(dataset)) is not None:
            self.assumes_no_skips = True
            self._lanes = PlannedLanes(dataset, planned, state, changes)
        else:
            self._lanes = LanesFrom(dataset, state, changes, is_replayed=is_replayed)

    @property
    def num_replayed(self) -> int:
        """The samples that hooks have worked on so far."""
        return self._lanes.num_replayed

    def units(self, index: int) -> list[UnitRefs]:
        """The packs of a micro-batch, or its samples; none after the end of finite data."""
        place, lane = divmod(index, self.num_lanes)
        return self._lanes.units(lane, range(place, place + 1))[0]

    def sums(self, later: LoaderState) -> LedgerSums:
        """The sums of the ledger over the samples that the run handed out before `later`, a state in this section."""
        found = sums_of(self._state) or LedgerSums()
        for lane in later.lanes:
            places = range(self._state.num_made(lane), later.num_made(lane))
            while places:
                some, places = places[:_MANY_MICRO_BATCHES], places[_MANY_MICRO_BATCHES:]
                batches = []
                for place, units in zip(some, self._lanes.units(lane, some), strict=True):
                    number = place * self.num_lanes + lane
                    refs = [ref._replace(output=max(0, ref.output)) for unit in units for ref in unit]
                    if number not in self._skips:
                        batches.append((number, packed_references(refs)))
                for one in tallies(batches, self.fingerprints):
                    found = found.plus(one)
        return found

    def find(self, source: int, index: int, stop: int) -> Iterator[int]:
        """The micro-batches before `stop`, but those that are skipped, that have sample `index` of the source with this
        number in the run, in ascending order."""
        if source not in self.source_numbers:
            return
        own = self.source_numbers.index(source)
        if isinstance(self._lanes, PlannedLanes) or self._lanes.is_replayed:
            for one in range(self.begin, stop):
                has = any((ref.source, ref.index) == (own, index) for unit in self.units(one) for ref in unit)
                if has and one not in self._skips:
                    yield one
            return
        yield from sorted(one for one in self._lanes.find(own, index, stop) if one not in self._skips)


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
    if skips is not None:
        states = [_with_skips(state, skips) for state in states]
    positions = _positions(dataset, states)
    first = positions[0][0] if positions else None
    if first is None or (len(first.generations) == 1 and not first.drawn_before):
        run, _ = (dataset, None) if first is None else dataset_of(dataset, first.fingerprint)
        if first is None or first.num_handed_out:
            lanes = dataset.worker_config.num_lanes if first is None else first.num_lanes
            positions.insert(0, [dataclasses.replace(_beginning(run, lanes), skips=skips, micro_batch_index=0)])
    found: list[RunSection] = []
    for group, following in zip(positions, [*positions[1:], None], strict=True):
        later = None if following is None else following[0]
        section = _section(dataset, group[-1], later, replay=replay, lists=lists if states else "now")
        if following is not None and not section.unknown and _may_begin_otherwise(dataset, group[-1], following):
            section.unknown = _UNKNOWN_WEIGHTS
        found.append(section)
    return found


def _may_begin_otherwise(dataset: LaneDataset, before: LoaderState, group: list[LoaderState]) -> bool:
    """Whether the states at one position may have come in another order, as after few draws either weights reach the
    same samples."""
    return any(
        _is_run_to(dataset, before, state) and _chains(dataset, group, first=number)
        for number, state in enumerate(group[1:], 1)
    )


def section_to(dataset: LaneDataset, state: LoaderState) -> RunSection:
    """The section from the beginning of a run to a state of it, in which the lanes were never resharded.

    Raises:
        StateError: if it is of other data.
    """
    beginning = _beginning(dataset_of(dataset, state.fingerprint)[0], state.num_lanes)
    beginning = dataclasses.replace(beginning, skips=state.skips)
    return _section(dataset, beginning, state, replay=False, lists=None)


def _beginning(run: LaneDataset, num_lanes: int) -> LoaderState:
    lanes: dict[int, LaneState] = {lane: {} for lane in range(num_lanes)}
    return dataclasses.replace(run.new_state(num_lanes), lanes=lanes)


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
    if planned_of(dataset) is not None:
        return make(later)
    if later is None or not _was_changed_last(dataset, state, later):
        return make(later)
    found = make(state)
    if found.unknown or _was_assigned_between(state, later) or not _is_run_to(dataset, state, later):
        return found
    # After few draws, either weights reach the same samples in another order: the sums in the states say which it was.
    if (then := sums_of(later)) is None:
        found.unknown = _UNKNOWN_WEIGHTS
        return found
    sums = found.sums(later)
    return found if sums == dataclasses.replace(then, since=sums.since) else make(later)


_UNKNOWN_WEIGHTS = (
    "weights changed here, and it is not known whether the run had those of the state before or after: give states of "
    "between; a run with a ledger (ledger_path) says so"
)


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
    is_shown = later is not None and not unknown and planned_of(dataset) is None
    skipped = _has_skipped(run, converted, later, changes) if is_shown and later is not None else None
    return RunSection(
        run,
        converted,
        numbers or range(len(dataset.plan.sources)),
        replay=replay or bool(skipped),
        is_proved=skipped is False,
        changes=changes,
        unknown=unknown,
    )


def _positions(dataset: LaneDataset, states: Sequence[LoaderState]) -> list[list[LoaderState]]:
    """The states by position; those at the same one each made from the one before.

    Raises:
        StateError: if those at the same position are not.
    """
    found: list[list[LoaderState]] = []
    for _, group in itertools.groupby(sorted(states, key=_index), key=_index):
        different: list[LoaderState] = []
        for state in group:
            if state not in different:
                different.append(state)
        found.append(_chained(dataset, different, found[-1][-1] if found else None))
    return found


def _index(state: LoaderState) -> int:
    return state.micro_batch_index


def _chained(dataset: LaneDataset, states: list[LoaderState], before: LoaderState | None) -> list[LoaderState]:
    """Different states at one position, as lanes or weights were changed there: each follows from the one before, and
    the first from a run that began in `before`, None for the beginning."""
    if len(states) == 1:
        return states

    chains = _chains(dataset, states)
    if not chains:
        raise StateError(
            f"{len(states)} states after {states[0].micro_batch_index} micro-batches, with "
            f"{' and '.join(str(state.num_lanes) for state in states)} lanes, are of different continuations of the "
            "run: none follows from the other. Give the states of one"
        )
    if len(chains) > 1:  # other weights can be taken back: which came first, the samples before say
        chains.sort(key=lambda chain: not _is_run_to(dataset, before, states[chain[0]]))
    return [states[number] for number in chains[0]]


def _chains(dataset: LaneDataset, states: list[LoaderState], first: int | None = None) -> list[list[int]]:
    """The orders of states at one position in which each follows from the one before; those that begin with `first`."""

    @functools.cache
    def follows(one: int, other: int) -> bool:
        return _is_changed_into(dataset, states[one], states[other])

    def chains_from(chain: list[int]) -> Iterator[list[int]]:
        if len(chain) == len(states):
            yield chain
        for number in range(len(states)):
            if number not in chain and (not chain or follows(chain[-1], number)):
                yield from chains_from([*chain, number])

    return [*chains_from([] if first is None else [first])]


def _is_run_to(dataset: LaneDataset, before: LoaderState | None, state: LoaderState) -> bool:
    """Whether a run with the lanes and weights of `state` gets there from `before`."""
    run, numbers = dataset_of(dataset, state.fingerprint)
    if before is None:
        before = _beginning(run, state.num_lanes)
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
    names = ("draws", "cursors", "blend", "micro_batches", "pack_source")
    return (*(lane.get(name) or 0 for name in names), lane.get("inbox") or {}, lane.get("pending") or {})


def _converted(run: LaneDataset, state: LoaderState, num_lanes: int) -> LoaderState:
    """`state` as a restore in `run` with `num_lanes` lanes makes it."""
    if state.fingerprint != run.fingerprint():
        state = run.order.migrated(state, run.fingerprint())
    if num_lanes != state.num_lanes:
        state = run.resharded(state, num_lanes, range(num_lanes))
    return state


def _gap(state: LoaderState, converted: LoaderState, later: LoaderState, *, is_changed_last: bool) -> str:
    """Why the run cannot have gone from `state` to `later`, as `converted` or (`is_changed_last`) before a change; ""
    if it can. Then there was another state between them, or they are of different continuations of a run."""
    where = f"micro-batches {state.micro_batch_index} to {later.micro_batch_index - 1} lie between two states, of "
    where += f"{state.num_lanes} and {later.num_lanes} lanes, of which the second does not follow from the first: give "
    if is_changed_last:
        known = [list(generation) for generation in state.generations]
        if _was_assigned_between(state, later) and any(list(one) not in known for one in later.generations[:-1]):
            return where + "also the states of between, with which the lanes were resharded"
        return ""
    is_later = later.skips is not None or all(
        after.get("draws", 0) >= before.get("draws", 0)
        and after.get("micro_batches", 0) >= before.get("micro_batches", 0)
        for after, before in ((after, converted.lanes[lane]) for lane, after in later.lanes.items())
    )
    same = [list(one) for one in converted.generations] == [list(one) for one in later.generations]
    if same and is_later and converted.drawn_before == later.drawn_before:
        return ""
    return where + "also the states of between, with which the lanes were resharded, or only those of one continuation"


def _other_lists(dataset: LaneDataset, state: LoaderState) -> str:
    """Why samples after the last state are not known: the lists of forgotten samples have changed since; "" if not."""
    then = lists_at(history_of(state), state.micro_batch_index)
    now: ListVersions = {} if (forgotten := forgotten_in(dataset)) is None else forgotten.lists
    if then == now:
        return ""
    return (
        f"the last state, after {state.micro_batch_index} micro-batches, is of version "
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


def _with_lists(
    run: LaneDataset, state: LoaderState, later: LoaderState | None, lists: ListsOfRun | None
) -> tuple[LaneDataset, Changes]:
    """(`run` with the samples forgotten at `state`, the changes up to `later`). After the last state, `lists` says
    which they are.

    Raises:
        StateError: if the data sets do not have these lists.
        ConfigError: if they changed while steps are skipped.
    """
    history = history_of(state if later is None else later)
    if (later is None and lists != "then") or not (forgotten_in(run) or history):
        return run, ()
    sources, names = run.plan.sources, run.source_ids
    then = ForgottenSamples.under(sources, names, lists_at(history, state.micro_batch_index))
    changed = with_forgotten(run, then)
    if later is None:
        return changed, ()
    found = changes_between(history, state.micro_batch_index, later.micro_batch_index)
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


def _was_changed_last(dataset: LaneDataset, state: LoaderState, later: LoaderState) -> bool:
    """Whether the run continued from `state` unchanged, and lanes or weights changed just before `later` was saved."""
    if _was_assigned_between(state, later):
        return _is_just_assigned(later)
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
    for left in range(after.get("draws", 0) - before.get("draws", 0), 0, -_MANY_DRAWS):
        cursor.take(min(left, _MANY_DRAWS))
    reached = {str(slots[int(source)]): position for source, position in cursor.state()["cursors"].items()}
    wanted: dict[str, Any] = after.get("cursors", {})
    return reached == wanted


def _was_assigned_between(state: LoaderState, later: LoaderState) -> bool:
    return state.num_lanes != later.num_lanes or state.drawn_before != later.drawn_before


def _is_just_assigned(state: LoaderState) -> bool:
    return not any(lane.get("draws") for lane in state.lanes.values())


def _has_skipped(run: LaneDataset, state: LoaderState, later: LoaderState, changes: Changes) -> bool | None:
    """Whether hooks skipped samples between `state` and `later`, or made several of one; None if the states do not show
    it."""
    batch_size, forgets = run.batching.batch_size or 1, bool(forgotten_in(run) or changes)
    if not _was_assigned_between(state, later):
        lanes = LanesFrom(run, state, changes, is_replayed=False) if forgets else None

        def num_extra(lane: int) -> int:
            before, after = state.lanes[lane], later.lanes[lane]
            num_draws = after.get("draws", 0) - before.get("draws", 0)
            return _num_extra(before, after, batch_size) - (lanes.num_gone(lane, num_draws) if lanes else 0)

        return any(after.get("pending") or num_extra(lane) for lane, after in later.lanes.items())
    if forgets or not _is_just_assigned(later):
        return None
    drawn: int = state.drawn_before + sum(lane.get("draws", 0) for lane in state.lanes.values())
    return later.drawn_before - drawn != (later.micro_batch_index - state.micro_batch_index) * batch_size


def _num_extra(before: LaneState, after: LaneState, batch_size: int) -> int:
    """The number of draws of a lane that are not in its micro-batches."""
    num_batches: int = after.get("micro_batches", 0) - before.get("micro_batches", 0)
    draws: int = after.get("draws", 0) - before.get("draws", 0)
    return draws - num_batches * batch_size
