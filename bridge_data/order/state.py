"""The state of a loader: the position of each lane, and a fingerprint of the run that the positions belong to.

Reads lane states and the fingerprint, or a saved state as plain data. Returns one plain dict of int, float, str, list
and dict, for `json.dumps` or `torch.load(weights_only=True)`; or a `LoaderState`. Raises a `StateError` that names the
lane if a state is not as it was saved (whether a position exists in the data is checked later, when it is used), and
one that names the differences if a state is restored in a run where it would mean other samples.

What is in it: the fields of `LoaderState`, those of each lane in `lanes` (`LaneState`, which says what each means), and
those of its cursor (`CursorState`).

A state has `checksums`: `{"run": crc32, "0": crc32, ...}`, of the fields beside the lanes, and of each lane. That of a
lane is also of its number and of the checksum of the run, so it binds the lane to data, settings, seed, generation and
step: a lane of another step, rank or run is refused. What has its checksum is trusted.
"""

import dataclasses
import itertools
import json
import logging
import reprlib
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

from bridge_data.errors import DAMAGED_STATE, ConfigError, StateError
from bridge_data.order.cursor import CursorState
from bridge_data.order.row import Geometry
from bridge_data.order.step_skips import SkippedRange, StepSkips
from bridge_data.plan.source import multiplied, num_together
from bridge_data.topology import WorkerConfig

logger = logging.getLogger("bridge_data")

FORMAT = "bridge_data.loader"
VERSION = 4
"""The version of the state format; it also changes with the order."""


class LaneState(CursorState, total=False):
    """The state of one lane: the position of its cursor, and what it has made and kept. A lane that has not started has
    none of it, but maybe `extras`."""

    micro_batches: int
    """How many micro-batches it has made, also those that were skipped."""
    pending: dict[str, Any]
    """What it has drawn and not emitted, if anything: see `order.pending`; and its `base`, the `CursorState` from which
    draws are counted."""
    pack_source: Any
    """What the source of its packs keeps, if it keeps something: see `PackSource.state`."""
    extras: dict[str, Any]
    """What features keep in it, by their names: see `order.extras`."""


class Generation(NamedTuple):
    """One way of cutting and assigning the data: every reshard starts a new one."""

    num_lanes: int
    rows: list[list[int]]
    """Plain numbers, which states keep: of each source those of its `geometries`, without the lanes; of the validation
    order, which has one row for all sources, the `first_batch`."""

    def first_epoch(self, source: int) -> int:
        """Of a training order: the epoch with which the row of a source begins."""
        return self.rows[source][-1]

    @property
    def geometries(self) -> list[Geometry]:
        """Of a training order: that of each source."""
        return [Geometry(self.num_lanes, *numbers) for numbers in self.rows]

    @property
    def first_batch(self) -> int:
        """Of a validation order: the micro-batch with which its row begins."""
        return self.rows[0][0]


Differences: TypeAlias = Iterable[tuple[str, str]]
"""(item of the fingerprint, description) of what differs."""

_LESS_STRICT = (
    "\nTo continue with other weights, added data sets or another batch size: strict=False "
    "(of the DataModule: strict_restore=False)"
)


class Resharded(NamedTuple):
    """What lanes got at a reshard, by which a limit on micro-batches is divided among them."""

    num_handed_out: int
    """The micro-batches handed out before it."""
    num_given: list[int]
    """The samples that inboxes got, of each source of which they got some."""


def has_started(lane: LaneState) -> bool:
    """Whether a lane has a position: one that has none may have `extras`, of the pass before."""
    return "draws" in lane


@dataclasses.dataclass(slots=True)
class LoaderState:
    """The state of some or all lanes of a run."""

    fingerprint: dict[str, Any]
    """Data, weights and settings that determine which samples the positions mean. Of a value that is a dict by source
    ids, the sources that both runs have are compared."""
    generations: list[Generation]
    """Generations that some lane's inbox refers to, then the current one."""
    micro_batch_index: int
    """The first micro-batch of the job that not every rank has got yet, and that is not skipped."""
    lanes: dict[int, LaneState]
    drawn_before: int = 0
    """Samples drawn by the job before the last reshard, after which lanes count draws from 0; for schedules."""
    epoch_batches: int = 0
    """Batches per rank in the current virtual epoch."""
    ended: bool = False
    """Whether the pass over finite data is complete; a restore then starts the next pass."""
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What features keep: see `order.extras`."""
    repetition: int = 0
    """How often a pass that repeats finite data a fixed number of times has restarted it."""
    skips: StepSkips | None = None
    """The micro-batches that no rank gets, also those that are over; None if there are none."""
    resharded: Resharded | None = None
    """Of data that end: the last reshard of this pass, if there was one."""

    @property
    def num_lanes(self) -> int:
        """The number of lanes of the whole job."""
        return self.generations[-1].num_lanes

    @property
    def has_extras(self) -> bool:
        """Whether features keep something in it."""
        return bool(self.extras) or "extras" in itertools.chain.from_iterable(self.lanes.values())

    @property
    def is_whole(self) -> bool:
        """Whether it has every lane of the job."""
        return len(self.lanes) == self.num_lanes

    @property
    def num_handed_out(self) -> int:
        """The micro-batches of the job that all ranks have got: those before `micro_batch_index`, without skipped
        ones."""
        index = self.micro_batch_index
        return index if self.skips is None else self.skips.num_handed_out(index)

    def num_made(self, lane: int) -> int:
        """How many micro-batches a lane has made."""
        return self.lanes[lane].get("micro_batches", 0)

    def next_indexes(self, lanes: Iterable[int]) -> dict[int, int]:
        """The index of the micro-batch that each of these lanes makes next."""
        num_lanes = self.num_lanes
        return {lane: self.lanes[lane].get("micro_batches", 0) * num_lanes + lane for lane in lanes}

    def skipping(self, skips: StepSkips) -> Self:
        """This state with more micro-batches that are skipped: those of `skips` that come after it.

        Raises:
            ConfigError: if the data end.
        """
        if self.is_finite:
            raise ConfigError(
                f"{skips}: steps are skipped in endless training only, and these data end (validation, "
                "repeat=False, overfit_batches)"
            )
        ahead = skips.from_index(self.micro_batch_index)
        if ahead is None:
            return self
        all_skips = ahead.joined(self.skips)
        index = all_skips.index_after(all_skips.num_handed_out(self.micro_batch_index))
        return dataclasses.replace(self, skips=all_skips, micro_batch_index=index)

    @property
    def is_finite(self) -> bool:
        """Whether the data of the run comes to an end."""
        run = self.fingerprint
        return self.is_ordered or run.get("repeat") is False or run.get("max_micro_batches") is not None

    @property
    def is_ordered(self) -> bool:
        """Whether the samples come in the validation order."""
        return bool(self.fingerprint.get("order") == "ordered")

    def to_dict(self) -> dict[str, Any]:
        """The state as plain data, to save: with the checksums that `from_dict` verifies."""
        values = {name: getattr(self, name) for name in _FIELDS}
        saved = {name: value for name, value in values.items() if value or name in _ALWAYS_SAVED}
        for name in saved.keys() & _AS_PLAIN_DATA.keys():
            saved[name] = _AS_PLAIN_DATA[name].write(saved[name])
        return with_checksums({"format": FORMAT, "version": VERSION, **saved})

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The inverse of `to_dict`, if this is what was saved.

        Raises:
            StateError: for another format or version, or a lane that is not as it was saved, which is named.
        """
        if isinstance(data, dict) and isinstance(data.get(FORMAT), str):
            data = _of_one_value(data[FORMAT])
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = f"a dict with {sorted(map(str, data))[:6]}" if isinstance(data, dict) else type(data).__name__
            raise StateError(
                f"not a loader state of bridge_data, of format {FORMAT!r}: got {found}. Checkpoints of other loaders "
                "(such as Energon) cannot be restored; start the data from the beginning, ideally at an epoch "
                "boundary, or resume with that loader."
            )
        if data.get("version") != VERSION:
            raise StateError(
                f"the loader state is of version {data.get('version')}, this release reads version {VERSION}: the same "
                "cursors may mean other samples. Start the data from the beginning (restore the model without the "
                "state of its data), or resume with the release that wrote it."
            )
        _check_checksums(data)
        if missing := sorted(_ALWAYS_SAVED - data.keys()):
            raise StateError(f"the state lacks {', '.join(missing)}; {DAMAGED_STATE}")
        saved = {name: data[name] for name in _FIELDS if name in data}
        for name in saved.keys() & _AS_PLAIN_DATA.keys():
            saved[name] = _AS_PLAIN_DATA[name].read(saved[name])
        state = cls(**saved)
        state.check_counts()
        return state

    def check_counts(self) -> None:
        """Check that each lane has made what the job had got of it at this step; micro-batches that are skipped, it may
        have made or not. Of finite data, whose lanes end at different times, nobody can tell.

        Raises:
            StateError: naming the lane.
        """
        if self.is_finite:
            return
        skips, index, num_lanes = self.skips or (), self.micro_batch_index, self.num_lanes
        for lane, following in self.next_indexes(self.lanes).items():
            expected = index + (lane - index) % num_lanes
            first, stop = sorted((following, expected))
            if any(one not in skips for one in range(first, stop, num_lanes)):
                raise _damaged(
                    f"lanes.{lane}",
                    f"goes on with micro-batch {following}, expected {expected}, as {num_lanes} lanes have made "
                    f"all before {index}: it is of another step",
                )

    def check(self, fingerprint: dict[str, Any], tolerated: Collection[str] = ()) -> None:
        """Check that the state belongs to a run with `fingerprint`; items in `tolerated` may differ.

        Raises:
            StateError: naming every difference.
        """
        differences = [text for name, text in self.differences(fingerprint) if name not in tolerated]
        if differences:
            raise StateError(
                "the saved state belongs to other data or settings:\n  " + "\n  ".join(differences) + "\n"
                "Its cursors would point to other samples. Restore the settings, or start the data from the beginning."
                + (_LESS_STRICT if not tolerated else "")
            )

    def differences(self, fingerprint: dict[str, Any]) -> list[tuple[str, str]]:
        """(item, description) of each difference from `fingerprint`."""
        return [] if self.fingerprint == fingerprint else list(_differences(self.fingerprint, fingerprint))

    def check_complete(self) -> None:
        """Check that no lane of the job is missing."""
        missing = [lane for lane in range(self.num_lanes) if lane not in self.lanes]
        if missing:
            raise StateError(
                f"the state lacks lanes {missing[:16]} of {self.num_lanes}; merge the states of all data-parallel "
                "ranks (merge_states), or pass all of them"
            )

    def num_together(self, source: int) -> int:
        """The epochs of a source that are shuffled together; 1 without shuffling."""
        name, _ = self.fingerprint["sources"][source]
        own = self.fingerprint.get("epochs_of_sources", {}).get(name, 1)
        return num_together(multiplied(self.fingerprint.get("epochs_per_shuffle", 1), own)) or 1

    def of_rank(self, rank: int, world_size: int) -> Self:
        """The state with only the lanes of `rank`: every `world_size`-th one."""
        mine = range(rank, self.num_lanes, world_size)
        missing = [lane for lane in mine if lane not in self.lanes]
        if missing:
            raise StateError(
                f"data-parallel rank {rank} of {world_size} needs lanes {missing[:16]}, the state holds "
                f"{sorted(self.lanes)[:16]}: it was saved by one rank of another topology. Merge the states of all "
                "ranks (merge_states) and restore the result on each."
            )
        return dataclasses.replace(self, lanes={lane: self.lanes[lane] for lane in mine})


class _PlainData(NamedTuple):
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


_FIELDS = [field.name for field in dataclasses.fields(LoaderState)]
"""Each is saved under its name, is read from there, and must be the same in states that are merged, but for these:"""

_ALWAYS_SAVED = frozenset({"fingerprint", "generations", "micro_batch_index", "lanes", "drawn_before"})
"""Others are left out of a saved state while they are empty."""

_AS_PLAIN_DATA = {
    "generations": _PlainData(
        lambda generations: [list(one) for one in generations],
        lambda saved: [Generation(*one) for one in saved],
    ),
    "lanes": _PlainData(
        lambda lanes: {str(lane): state for lane, state in lanes.items()},
        lambda saved: {int(lane): state for lane, state in saved.items()},
    ),
    "resharded": _PlainData(
        lambda resharded: resharded and [resharded.num_handed_out, *resharded.num_given],
        lambda saved: Resharded(saved[0], saved[1:]),
    ),
    "skips": _PlainData(
        lambda skips: [list(one) for one in skips.ranges],
        lambda saved: StepSkips.of([SkippedRange(*one) for one in saved]),
    ),
}
"""How fields that are not plain data are saved and read."""

_OF_A_RANK = frozenset({"fingerprint", "lanes", "ended"})
"""Fields that are merged, or compared in another way."""

_OF_A_STEP = frozenset({"micro_batch_index", "epoch_batches"})
"""Fields that differ near the end of finite data, where ranks pass over lanes that have ended."""


def num_lanes_after(config: WorkerConfig, num_saved: int) -> int:
    """The lanes of a run restored from a state of `num_saved` lanes: the same number, unless the ranks cannot share
    them equally or `num_lanes` was given. If the number changes, a restore needs the state of all lanes."""
    return config.num_lanes if config.num_lanes_given or num_saved % config.world_size else num_saved


def _differences(saved: dict[str, Any], current: dict[str, Any]) -> Differences:
    was, now = dict(saved.get("sources") or []), dict(current.get("sources") or [])
    for name in [*saved, *(name for name in current if name not in saved)]:
        before, after = saved.get(name), current.get(name)
        if name == "sources":
            yield from _other_sources(was, now)
        elif name == "contents":
            yield from _other_contents(before, after, now)
        else:
            before, after = (_of_common(of, was, now) for of in (before, after))
            if before != after:
                yield name, f"{name}: the state has {before}, this run has {after}"


def _of_common(value: Any, was: Mapping[str, Any], now: Mapping[str, Any]) -> Any:
    """A value that is a dict by source ids, with the sources that both runs have: others are told as gone or new."""
    if isinstance(value, dict) and value.keys() <= was.keys() | now.keys():
        return {key: of for key, of in value.items() if key in was and key in now} or None
    return value


def _other_sources(was: Mapping[str, Any], now: Mapping[str, Any]) -> Differences:
    """Sources by their ids, with their labels."""
    gone = [f"{label} ({key})" for key, label in was.items() if key not in now]
    new = [f"{label} ({key})" for key, label in now.items() if key not in was]
    if gone or new:
        changed = sorted({str(label) for key, label in was.items() if key not in now} & {*now.values()})
        hint = f"; {', '.join(changed)}: the shards, the split, or which samples are chosen differ" if changed else ""
        yield "sources", f"sources: gone or changed: {', '.join(gone) or 'none'}; new: {', '.join(new) or 'none'}{hint}"
    elif [*was] != [*now]:
        yield "sources", "sources: the same, in another order"
    if exchanged := _exchanged(was, now):
        yield "places", f"sources: {exchanged} have changed places, and cannot be told apart but by their names"


def _other_contents(was: dict[str, str] | None, now: dict[str, str] | None, labels: Mapping[str, str]) -> Differences:
    """Sources of one identity with other contents, as far as both say the same of them."""
    was, now = was or {}, now or {}
    for name in was.keys() & now.keys():
        before, after = was[name].partition(":"), now[name].partition(":")
        if before[0] == after[0] and before[2] != after[2]:
            yield (
                "contents",
                f"contents: {labels[name]} ({name}) has other {before[0]} than the data set of the state that has the "
                "same names, sizes and first bytes of shards: places were exchanged, or the data replaced",
            )


def _exchanged(was: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The labels of sources with equal data that have each other's place."""
    places: dict[tuple[str, str], list[str]] = {}  # data in several branches of a blend have one label
    for name, label in was.items():
        places.setdefault((name.partition("#")[0], label), []).append(name)
    return ", ".join(
        label for name, label in now.items() if name not in places.get((name.partition("#")[0], label), [name])
    )


_OTHER_STEPS = (
    "they were not saved at the same step of one run: save on all ranks after the same number of batches, and keep no "
    "files of other steps beside them"
)

_UNEVEN_REPETITIONS = (
    ". Or ranks with fewer batches have started the next repetition of a RepeatDataset before the others: with "
    'ends="even" the loader starts it on all ranks at the same step'
)


def as_one_value(state: dict[str, Any]) -> dict[str, str]:
    """A saved state as one text, for `state_dict` of a loader: of dicts, `torch.distributed.checkpoint` loads only the
    entries that the state of the new loader has, and that has no positions yet. `from_dict` takes both."""
    return {FORMAT: json.dumps(state)}


def _of_one_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged("the state", f"not JSON: {error}") from None


def parse_state(data: LoaderState | dict[str, Any]) -> LoaderState:
    """`data` as a state, checked in full if it is plain data.

    Raises:
        StateError: as `LoaderState.from_dict`.
    """
    return data if isinstance(data, LoaderState) else LoaderState.from_dict(data)


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the states that the ranks of a job saved at the same step, in any order.

    TP, CP and PP ranks of one data-parallel rank hold equal copies of the same lanes; one copy is enough.

    >>> from bridge_data import TextSample, WorkerConfig, get_savable_loader, get_val_dataset
    >>> def state_of(rank):
    ...     texts = {"val": [TextSample(__key__=str(number), text="a") for number in range(100)]}
    ...     config = WorkerConfig(rank=rank, world_size=2, num_workers=0)
    ...     loader = get_savable_loader(get_val_dataset(texts, worker_config=config, batch_size=4))
    ...     next(iter(loader))
    ...     return loader.save_state_rank()
    >>> len(merge_states([state_of(0), state_of(1)])["lanes"])
    16

    Raises:
        StateError: if the states are of different runs or steps, or a lane is missing.
    """
    return merge([LoaderState.from_dict(state) for state in states]).to_dict()


def merge(parts: Sequence[LoaderState], names: Sequence[str] | None = None) -> LoaderState:
    """`merge_states` of states that are parsed already; errors call them by `names`."""
    if not parts:
        raise StateError("merge_states: got no state; expected one of every data-parallel rank")
    names = names or [f"state number {number}" for number in range(len(parts))]
    merged = dataclasses.replace(parts[0], lanes={}, ended=all(part.ended for part in parts))
    same = [name for name in _FIELDS if name not in _OF_A_RANK]
    if merged.is_finite:
        same = [name for name in same if name not in _OF_A_STEP]
        indices = [part.micro_batch_index for part in parts if not part.ended]
        merged.micro_batch_index = min(indices) if indices else max(part.micro_batch_index for part in parts)
        merged.epoch_batches = max(part.epoch_batches for part in parts)
    for of, part in zip(names, parts, strict=True):
        check_same_run(part.fingerprint, merged.fingerprint, of, names[0])
        for name in same:
            if getattr(part, name) != getattr(merged, name):
                raise StateError(
                    f"{of} has {name} {getattr(part, name)}, {names[0]} has {getattr(merged, name)}: {_OTHER_STEPS}"
                    + (_UNEVEN_REPETITIONS if name == "repetition" else "")
                )
        for lane, state in part.lanes.items():
            if merged.lanes.setdefault(lane, state) != state:
                raise StateError(f"{of} and one before it have different states of lane {lane}: {_OTHER_STEPS}")
    if merged.is_finite:
        _check_finite(parts, names)
    merged.check_complete()
    merged.lanes = dict(sorted(merged.lanes.items()))
    return merged


def check_same_run(fingerprint: dict[str, Any], first: dict[str, Any], name: str, name_of_first: str) -> None:
    """Check that two ranks, or what they saved, are of one run.

    Raises:
        StateError: naming every difference of their fingerprints.
    """
    if differences := LoaderState(fingerprint, [], 0, {}).differences(first):
        told = "\n  ".join(text for _, text in differences)
        raise StateError(
            f"{name} ('the state' below) is of other data or settings than {name_of_first} ('this run'):\n  {told}\n"
            "All ranks of a job need the same data, settings and seed: start them with the same, or name the "
            "states of one run."
        )


def _check_finite(parts: Sequence[LoaderState], names: Sequence[str]) -> None:
    """Check that the states of finite data are of one step: as ranks skip lanes that have ended, their indices may
    differ, but those that go on have handed out equally many micro-batches (one more or less after a reshard)."""
    going_on = [(of, part) for of, part in zip(names, parts, strict=True) if not part.ended]
    for of, part in going_on[1:]:
        first_of, first = going_on[0]
        if part.micro_batch_index == first.micro_batch_index or len(part.lanes) != len(first.lanes):
            continue
        here, there = (sum(map(state.num_made, state.lanes)) for state in (part, first))
        if abs(here - there) > 1:
            raise StateError(f"{of} has handed out {here} micro-batches, {first_of} {there}: {_OTHER_STEPS}")


_RUN = "run"
_NOT_SHOWN = ("format", "version", "lanes", "checksums")
_PLAIN = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def with_checksums(data: dict[str, Any]) -> dict[str, Any]:
    """A state with the checksums of its lanes and of the rest."""
    rest = {name: value for name, value in data.items() if name not in ("lanes", "checksums")}
    run = _checksum(_RUN, rest)
    return {
        **data,
        "checksums": {_RUN: run} | {lane: _checksum(lane, run, state) for lane, state in data["lanes"].items()},
    }


def _checksum(*values: Any) -> int:
    return zlib.crc32(_PLAIN.encode(values).encode())


def _check_checksums(data: dict[str, Any]) -> None:
    """Check that a state is as it was saved.

    Raises:
        StateError: naming the lane, or the fields beside the lanes, that were changed.
    """
    for name in ("lanes", "checksums"):
        if not isinstance(found := data.get(name), dict) or not {*map(type, found)} <= {str}:
            raise _damaged(name, f"{reprlib.repr(found)}: expected a dict with a value of each lane")
    saved = data["checksums"]
    try:
        found = with_checksums(data)["checksums"]
    except (TypeError, ValueError, RecursionError) as error:
        raise _damaged("the state", f"not plain data: {error}") from None
    if saved.get(_RUN) != found[_RUN]:
        raise _changed("the fields beside lanes", data, saved.get(_RUN), found[_RUN])
    for name in sorted(saved.keys() | found.keys()):
        if name not in found:
            raise _damaged(f"lanes.{name}", "missing from the state")
        if saved.get(name) != found[name]:
            if name in saved and not data["lanes"][name]:
                raise StateError(
                    f"lanes.{name}: has a checksum, and no position that it is of. If torch.distributed.checkpoint has "
                    "loaded it: of a dict it loads only entries that the state of the new loader has, too, so save and "
                    "load the loader itself, or its state_dict(). What it has saved is whole: dcp_to_torch_save of "
                    f"torch.distributed.checkpoint.format_utils writes it to a file. Else {DAMAGED_STATE}"
                )
            raise _changed(f"lanes.{name}", data["lanes"][name], saved.get(name), found[name])


def _changed(what: str, fields: Any, saved: Any, found: int) -> StateError:
    names = [name for name in fields if name not in _NOT_SHOWN] if isinstance(fields, dict) else []
    shown = ", ".join(f"{name} {reprlib.repr(fields[name])}" for name in names)
    return _damaged(
        what,
        f"not as saved with this run, at this step: the checksum of {shown or 'no position'} is {found}, and the "
        f"saved one is {reprlib.repr(saved)}",
    )


def _damaged(what: str, fault: str) -> StateError:
    return StateError(f"{what}: {fault}; {DAMAGED_STATE}")
