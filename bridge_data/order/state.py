"""The state of a loader: the position of each lane, and a fingerprint of the run that the positions belong to.

Input: lane states, the fingerprint; or a saved state as plain data. Output: one plain dict of int, float, str, list and
dict, for `json.dumps` or `torch.load(weights_only=True)`; or a `LoaderState`. Guarantees: a state that is read has
every key, type and range that later code relies on, or is a `StateError` with the path of the wrong field, such as
`lanes.3.cursors.0` (whether a position exists in the data is checked later, when the position is used); and it is
restored only in a run where it means the same samples, or is a `StateError` that names the differences.

Ranges do not tell every edit: without one pack of `pending` a state is still valid, and loses samples. So a state is
saved with `checksums`, one of each lane and one of the other fields: `{"run": crc32, "0": crc32, ...}`. A state without
them, from an earlier release, is checked for structure only.
"""

import dataclasses
import json
import logging
import math
import re
import reprlib
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bridge_data.errors import DAMAGED_STATE, StateError
from bridge_data.order import forgotten_lists, ledger, step_skips
from bridge_data.order.ledger import LedgerSums, Uncounted
from bridge_data.order.step_skips import StepSkips
from bridge_data.topology import WorkerConfig

logger = logging.getLogger("bridge_data")

FORMAT = "bridge_data.loader"
VERSION = 2
"""The version of the state format and of the order; it changes with either."""

LaneState: TypeAlias = dict[str, Any]
"""The state of one lane: `draws`, `cursors`, `micro_batches`, and maybe `costs`, `inbox`, `planned`, `pending` and
`extras`;
`{}` if the lane has not started."""

Generation: TypeAlias = tuple[int, list[list[int]]]
"""(num_lanes, [chunk_size, block_size, window_size, first_epoch] of each source); in validation (num_lanes, [[first
block]]). Every re-deal starts a new generation."""


_LESS_STRICT = (
    "\nTo continue with other weights, added data sets or another batch size: strict=False "
    "(of the DataModule: strict_restore=False)"
)


@dataclasses.dataclass(slots=True)
class LoaderState:
    """The state of some or all lanes of a run."""

    fingerprint: dict[str, Any]
    """Data, weights and settings that determine which samples the positions mean."""
    generations: list[Generation]
    """Generations that some lane's inbox refers to, then the current one."""
    next_slot: int
    """The first micro-batch of the job that not every rank has emitted yet; with `skips`, its slot."""
    lanes: dict[int, LaneState]
    drawn_before: int = 0
    """Samples drawn by the job before the last re-deal, after which lanes count draws from 0; for schedules."""
    epoch_batches: int = 0
    """Batches per rank in the current virtual epoch."""
    ended: bool = False
    """Whether the pass over finite data is complete; a restore then starts the next pass."""
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)
    """See `EXTRAS`."""
    repetition: int = 0
    """How often a pass that repeats finite data a fixed number of times has restarted it."""
    uncounted: Uncounted | None = dataclasses.field(default=None, repr=False, compare=False)
    """The micro-batches that the ledgers of the lanes do not count yet; never in plain data."""

    @property
    def num_lanes(self) -> int:
        """The number of lanes of the whole job."""
        return self.generations[-1][0]

    @property
    def is_whole(self) -> bool:
        """Whether it has every lane of the job."""
        return len(self.lanes) == self.num_lanes

    @property
    def skips(self) -> StepSkips | None:
        """The steps that are skipped, also those that are over; None if there are none."""
        return StepSkips.of_extras(self.extras)

    @property
    def next_number(self) -> int:
        """The micro-batch that comes in `next_slot`, by its number in the run without skips."""
        return self.next_slot if (skips := self.skips) is None else skips.number(self.next_slot)

    def place_of(self, lane: int) -> int:
        """The next micro-batch of a lane, by its place: how many it has made."""
        place: int = self.lanes[lane].get("micro_batches", 0)
        return place

    def number_of(self, lane: int) -> int:
        """The next micro-batch of a lane, by its number in the run without skips."""
        return self.place_of(lane) * self.num_lanes + lane

    def slot_of(self, lane: int) -> int:
        """The slot in which a lane hands out its next micro-batch."""
        if (skips := self.skips) is None:
            return self.number_of(lane)
        return skips.slot_of_lane(lane, self.num_lanes, self.place_of(lane))

    @property
    def is_finite(self) -> bool:
        """Whether the data of the run comes to an end."""
        run = self.fingerprint
        return run.get("order") == "ordered" or run.get("repeat") is False or run.get("max_micro_batches") is not None

    def num_emitted(self, lane: int) -> int:
        """How many micro-batches of a lane the job has handed out."""
        place = self.place_of(lane)
        return place if (skips := self.skips) is None else skips.num_of_lane(lane, self.num_lanes, place)

    def settled(self) -> "LoaderState":
        """This state with everything in the lanes' ledgers."""
        if self.uncounted is None:
            return self
        lanes, names = dict(self.lanes), [name for name, _ in self.fingerprint["sources"]]
        for lane, count, own in ledger.sums_by_lane(self.uncounted, self._lanes_of, names, self.repetition):
            extras = lanes[lane].get("extras", {})
            before = LedgerSums.of_extras(extras) or LedgerSums(since=self.num_emitted(lane) - count)
            lanes[lane] = {**lanes[lane], "extras": before.plus(own).in_extras(extras)}
        return dataclasses.replace(self, lanes=lanes, uncounted=None)

    def _lanes_of(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """The lanes that made the micro-batches in some slots."""
        skips = self.skips
        numbers = slots if skips is None else np.array([*map(skips.number, slots.tolist())])
        return numbers % self.num_lanes

    def sums(self) -> LedgerSums:
        """The ledger: the sums over all that the lanes handed out, and all before the last re-deal."""
        state = self.settled()
        before = LedgerSums.of_extras(state.extras)
        found, since = before or LedgerSums(), 0
        for lane, lane_state in state.lanes.items():
            own = LedgerSums.of_extras(lane_state.get("extras", {})) or LedgerSums(since=state.num_emitted(lane))
            found = found.plus(own)
            if own.since:
                since = max(since, (own.since - 1) * state.num_lanes + lane + 1)
        return found if before else dataclasses.replace(found, since=since)

    def with_sums_of(self, last: "LoaderState") -> "LoaderState":
        """This state, the beginning of finite data, with the ledger of `last`, which it continues."""
        if self.num_lanes != last.num_lanes:
            return dataclasses.replace(self, extras={**last.sums().in_extras(last.extras), **self.extras})
        last, lanes = last.settled(), dict(self.lanes)
        for lane in lanes:
            if extras := last.lanes[lane].get("extras"):
                lanes[lane] = {"draws": 0, "cursors": {}, "micro_batches": 0, "extras": extras}
        return dataclasses.replace(self, lanes=lanes, extras={**last.extras, **self.extras})

    def ledger_line(self) -> str:
        """The ledger of a whole state as one line: equal lines, equal data."""
        return f"data ledger at micro-batch {self.next_slot}: {self.sums()}"

    def to_dict(self) -> dict[str, Any]:
        """The state as plain data, to save: with the checksums that `from_dict` verifies."""
        lanes = self.settled().lanes
        data = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "generations": [list(generation) for generation in self.generations],
            "next_slot": self.next_slot,
            "drawn_before": self.drawn_before,
            **({"epoch_batches": self.epoch_batches} if self.epoch_batches else {}),
            **({"ended": True} if self.ended else {}),
            **({"repetition": self.repetition} if self.repetition else {}),
            "lanes": {str(lane): state for lane, state in lanes.items()},
            **({"extras": self.extras} if self.extras else {}),
        }
        return with_checksums(data)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """The inverse of `to_dict`, with a full check of the structure.

        Raises:
            StateError: for another format or version, an unknown extra, or a damaged field, which is named; naming the
                lane, if it is not as it was saved.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = f"a dict with {sorted(map(str, data))[:6]}" if isinstance(data, dict) else type(data).__name__
            raise StateError(
                f"not a loader state of bridge_data, of format {FORMAT!r}: got {found}. Checkpoints of other loaders "
                "(such as Energon) cannot be restored; start the data from the beginning, ideally at an epoch "
                "boundary, or resume with that loader."
            )
        if data.get("version") != VERSION:
            raise StateError(
                f"the loader state has order format {data.get('version')}, this release reads format "
                f"{VERSION}: the same cursors mean other samples. Start the data from the beginning (restore the model "
                "without the state of its data), or resume with the release that wrote it."
            )
        _check_structure(data)
        _check_checksums(data)
        generations = [(num_lanes, geometry) for num_lanes, geometry in data["generations"]]
        return cls(
            fingerprint=data["fingerprint"],
            generations=generations,
            next_slot=data["next_slot"],
            lanes={int(lane): state for lane, state in data["lanes"].items()},
            drawn_before=data["drawn_before"],
            epoch_batches=data.get("epoch_batches", 0),
            ended=data.get("ended", False),
            extras=data.get("extras", {}),
            repetition=data.get("repetition", 0),
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
        return list(_differences(self.fingerprint, fingerprint))

    def check_complete(self) -> None:
        """Check that no lane of the job is missing."""
        missing = [lane for lane in range(self.num_lanes) if lane not in self.lanes]
        if missing:
            raise StateError(
                f"the state lacks lanes {missing[:16]} of {self.num_lanes}; merge the states of all data-parallel "
                "ranks (merge_states), or pass all of them"
            )

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


def num_lanes_after(config: WorkerConfig, num_saved: int) -> int:
    """The lanes of a run restored from a state of `num_saved` lanes: the same number, unless the ranks cannot share
    them equally or `num_lanes` was given. If the number changes, a restore needs the state of all lanes."""
    return config.num_lanes if config.num_lanes_given or num_saved % config.world_size else num_saved


def _differences(saved: dict[str, Any], current: dict[str, Any]) -> Iterable[tuple[str, str]]:
    common = dict(saved.get("sources") or []).keys() & dict(current.get("sources") or []).keys()
    for name in [*saved, *(name for name in current if name not in saved)]:
        was, now = saved.get(name), current.get(name)
        if name in ("epochs_of_sources", "costs"):  # an added or missing source is already reported under "sources"
            was, now = ({key: value for key, value in (of or {}).items() if key in common} for of in (was, now))
        if name != "sources":
            if was != now:
                yield name, f"{name}: the state has {was}, this run has {now}"
            continue
        was_keys, now_keys = dict(was or []), dict(now or [])
        gone = [f"{label} ({key})" for key, label in was_keys.items() if key not in now_keys]
        new = [f"{label} ({key})" for key, label in now_keys.items() if key not in was_keys]
        if gone or new:
            changed = sorted(
                {str(label) for key, label in was_keys.items() if key not in now_keys} & {*now_keys.values()}
            )
            hint = (
                f"; {', '.join(changed)}: the shards, the split, `subset:` or what `where:` chooses differ"
                if changed
                else ""
            )
            yield name, f"sources: gone or changed: {', '.join(gone) or 'none'}; new: {', '.join(new) or 'none'}{hint}"
        elif list(was_keys) != list(now_keys):
            yield name, "sources: the same, in another order"


_OTHER_STEPS = (
    "they were not saved at the same step of one run: save on all ranks after the same number of batches, and keep no "
    "files of other steps beside them"
)

_UNEVEN_REPETITIONS = (
    ". Or ranks with fewer batches have started the next repetition of a RepeatDataset before the others: with "
    'ends="even" the loader starts it on all ranks at the same step'
)


_OTHER_LISTS = (
    ". If they differ in `forgotten`: a list of forgotten samples was written while the ranks started, and only some "
    "of them saw it; restart all of them from the last checkpoint"
)


def parse_state(data: LoaderState | dict[str, Any]) -> LoaderState:
    """`data` as a state, checked in full if it is plain data.

    Raises:
        StateError: as `LoaderState.from_dict`.
    """
    return data if isinstance(data, LoaderState) else LoaderState.from_dict(data)


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge the states that the ranks of a job saved at the same step, in any order.

    TP, CP and PP ranks of one data-parallel rank hold equal copies of the same lanes; one copy is enough.

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
    same = ["generations", "drawn_before", "extras", "repetition", "next_slot", "epoch_batches"]
    if merged.is_finite:  # near the end, ranks skip lanes that have ended
        same = ["generations", "drawn_before", "extras", "repetition"]
        slots = [part.next_slot for part in parts if not part.ended]
        merged.next_slot = min(slots) if slots else max(part.next_slot for part in parts)
        merged.epoch_batches = max(part.epoch_batches for part in parts)
    for of, part in zip(names, parts, strict=True):
        part.check(merged.fingerprint)
        for name in same:
            if getattr(part, name) != getattr(merged, name):
                raise StateError(
                    f"{of} has {name} {getattr(part, name)}, {names[0]} has {getattr(merged, name)}: {_OTHER_STEPS}"
                    + (_UNEVEN_REPETITIONS if name == "repetition" else _OTHER_LISTS if name == "extras" else "")
                )
        for lane, state in part.lanes.items():
            if merged.lanes.setdefault(lane, state) != state:
                raise StateError(f"{of} and one before it have different states of lane {lane}: {_OTHER_STEPS}")
    if merged.is_finite:
        _check_finite(parts, names)
    merged.check_complete()
    merged.lanes = dict(sorted(merged.lanes.items()))
    return merged


def _check_finite(parts: Sequence[LoaderState], names: Sequence[str]) -> None:
    """Check that the states of finite data are of one step: as ranks skip lanes that have ended, their slots may
    differ, but those that go on have handed out equally many micro-batches (one more or less after a re-deal)."""
    going_on = [(of, part) for of, part in zip(names, parts, strict=True) if not part.ended]
    for of, part in going_on[1:]:
        first_of, first = going_on[0]
        if part.next_slot == first.next_slot or len(part.lanes) != len(first.lanes):
            continue
        here, there = (sum(map(state.num_emitted, state.lanes)) for state in (part, first))
        if abs(here - there) > 1:
            raise StateError(f"{of} has handed out {here} micro-batches, {first_of} {there}: {_OTHER_STEPS}")


class LedgerLog:
    """Logs the line of a saved state, once."""

    def __init__(self) -> None:
        self._last = ""

    def note(self, state: LoaderState) -> None:
        """Log the line of a whole state, unless it equals the previous one."""
        if logger.isEnabledFor(logging.INFO) and (line := state.ledger_line()) != self._last:
            logger.info("%s", line)
            self._last = line


ledger_log = LedgerLog()
"""The one of this process."""

STOP = 1 << 48
"""Upper bound of all integers, so that arithmetic with them stays within 64 bits."""

MAX_LANES = 1 << 24

_POSITION = "4 integers >= 0 (shuffle, window, offset, samples taken)"
_SLICE = "7 integers >= 0 (generation, lane, shuffle, window, offset, skip, count), the last one >= 1"
_GEOMETRY = "4 integers (chunk_size >= block_size >= 1, window_size >= 0, first_epoch >= 0)"
_ITEM = "an offset, [offset, part] or [source, epoch, index, part]"

_PLANNED = "8 integers >= 0 (see lanes.planned), and numbers of packs"
_SKIPS = "[first, stop, 0] of ranges in order that do not overlap, each with first < stop"
_LEDGER = "[since, samples, positioned sum, unpositioned sum], two integers >= 0 and two of 32 hexadecimal digits"
_LISTS = "[slot, {source: [[version, digest], ...]}] with ascending slots, a version being an integer >= 0"
_SUM = re.compile("[0-9a-f]{32}")

_STATE_KEYS = ("format", "version", "fingerprint", "generations", "next_slot", "drawn_before", "lanes")
_CURSOR_KEYS = ("draws", "cursors")
_RUN = "run"
_NOT_SHOWN = ("format", "version", "lanes", "checksums")
_PLAIN = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_INT = {int}

_Check = Callable[[str, Any], None]


def with_checksums(data: dict[str, Any]) -> dict[str, Any]:
    """A state with the checksums of its lanes and of the rest."""
    rest = {name: value for name, value in data.items() if name not in ("lanes", "checksums")}
    sums = {_RUN: _checksum(_RUN, rest)}
    sums |= {lane: _checksum(lane, state) for lane, state in data["lanes"].items()}
    return {**data, "checksums": sums}


def _check_checksums(data: dict[str, Any]) -> None:
    """Check that a state whose structure is right is as it was saved, if it has checksums.

    Raises:
        StateError: naming the lane, or the fields beside the lanes, that were changed.
    """
    if "checksums" not in data:
        return
    saved, found = data["checksums"], with_checksums(data)["checksums"]
    if not isinstance(saved, dict):
        raise _wrong("checksums", saved, "a dict")
    for name in sorted(saved.keys() | found.keys(), key=str):
        if name not in found:
            raise _missing(f"lanes.{name}")
        if name not in saved:
            raise _missing(f"checksums.{name}")
        if saved[name] == found[name]:
            continue
        fields = data if name == _RUN else data["lanes"][name]
        shown = [f"{field} {reprlib.repr(fields[field])}" for field in fields if field not in _NOT_SHOWN]
        raise StateError(
            f"{'the fields beside lanes' if name == _RUN else f'lanes.{name}'}: not as saved: the checksum of "
            f"{', '.join(shown) or 'no position'} is {found[name]}, and checksums.{name} is "
            f"{reprlib.repr(saved[name])}; {DAMAGED_STATE}"
        )


def _checksum(name: str, value: Any) -> int:
    return zlib.crc32(_PLAIN.encode([name, value]).encode())


def _check_structure(data: dict[str, Any]) -> None:
    """Check every field of a state.

    Raises:
        StateError: naming the path of a wrong field, its value and what was expected.
    """
    _check_keys("", data, _STATE_KEYS, ("epoch_batches", "ended", "extras", "repetition", "checksums"))
    fingerprint = data["fingerprint"]
    _check_fingerprint(fingerprint)
    for name in ("next_slot", "drawn_before", "epoch_batches", "repetition"):
        _check_number(name, data.get(name, 0))
    if not isinstance(data.get("ended", False), bool):
        raise _wrong("ended", data["ended"], "true or false")
    _check_extras("extras", data)
    _check_generations(data["generations"], fingerprint)
    check = _LaneCheck(data["generations"], fingerprint)
    for path, state in check.numbered("lanes", data["lanes"], data["generations"][-1][0]):
        check.lane(path, state)


def _check_fingerprint(fingerprint: Any) -> None:
    if not isinstance(fingerprint, dict):
        raise _wrong("fingerprint", fingerprint, "a dict")
    for name in ("sources", "weights", "order"):
        if name not in fingerprint:
            raise _missing(f"fingerprint.{name}")
    if fingerprint["order"] not in ("shuffled", "ordered"):
        raise _wrong("fingerprint.order", fingerprint["order"], "'shuffled' or 'ordered'")
    sources = fingerprint["sources"]
    if not isinstance(sources, list) or not sources:
        raise _wrong("fingerprint.sources", sources, "a list with a [name, label] of each source")
    for number, source in enumerate(sources):
        if not isinstance(source, list) or len(source) != 2 or {*map(type, source)} != {str}:
            raise _wrong(f"fingerprint.sources.{number}", source, "[name, label], two strings")
    if len(dict(sources)) < len(sources):
        raise _wrong("fingerprint.sources", sources, "unique names of sources")
    if fingerprint["weights"] is not None or (fingerprint["order"] == "shuffled" and len(sources) > 1):
        _check_weights("fingerprint.weights", fingerprint["weights"], len(sources))
    schedule = fingerprint.get("schedule", [])
    _check_list("fingerprint.schedule", schedule)
    for number, phase in enumerate(schedule):
        path = f"fingerprint.schedule.{number}"
        if not isinstance(phase, list) or len(phase) != 2:
            raise _wrong(path, phase, "[first sample, weights]")
        _check_number(f"{path}.0", phase[0])
        _check_weights(f"{path}.1", phase[1], len(sources))
    epochs = fingerprint.get("epochs_of_sources", {})
    if not isinstance(epochs, dict):
        raise _wrong("fingerprint.epochs_of_sources", epochs, "a dict of numbers of epochs by source")
    measured = fingerprint.get("costs", {})
    if not isinstance(measured, dict) or not {*map(type, measured.values())} <= {str}:
        raise _wrong("fingerprint.costs", measured, "a dict of digests by source")
    if type(fingerprint.get("weight_unit", "")) is not str:
        raise _wrong("fingerprint.weight_unit", fingerprint["weight_unit"], "the name of a cost")
    shuffled = {f"epochs_of_sources.{name}": number for name, number in epochs.items()}
    for name, value in (shuffled | {"epochs_per_shuffle": fingerprint.get("epochs_per_shuffle")}).items():
        if value is not None and type(value) is not int:
            raise _wrong(f"fingerprint.{name}", value, "an integer or null")


def _check_weights(path: str, weights: Any, num_sources: int) -> None:
    _check_list(path, weights)
    if len(weights) != num_sources:
        raise _wrong(path, weights, f"{num_sources} weights, as many as sources")
    for number, weight in enumerate(weights):
        if type(weight) not in (int, float) or not 0 <= weight < math.inf:
            raise _wrong(f"{path}.{number}", weight, "a finite number >= 0")
    if not any(weights):
        raise _wrong(path, weights, "a weight above 0")


def _check_generations(generations: Any, fingerprint: dict[str, Any]) -> None:
    is_shuffled, num_sources = fingerprint["order"] == "shuffled", len(fingerprint["sources"])
    _check_list("generations", generations)
    if not generations:
        raise _wrong("generations", generations, "at least one [number of lanes, geometries]")
    begins: list[int] = []
    for number, generation in enumerate(generations):
        path = f"generations.{number}"
        if not isinstance(generation, list) or len(generation) != 2:
            raise _wrong(path, generation, "[number of lanes, geometries]")
        _check_number(f"{path}.0", generation[0], least=1, stop=MAX_LANES)
        geometries = generation[1]
        _check_list(f"{path}.1", geometries)
        if len(geometries) != (num_sources if is_shuffled else 1):
            what = f"the geometries of {num_sources} sources" if is_shuffled else "[[first block]]"
            raise _wrong(f"{path}.1", geometries, what)
        for source, geometry in enumerate(geometries):
            right = _are_numbers(geometry, 4 if is_shuffled else 1)
            if not right or (is_shuffled and not geometry[0] >= geometry[1] >= 1):
                raise _wrong(f"{path}.1.{source}", geometry, _GEOMETRY if is_shuffled else "[first block]")
            if begins and geometry[-1] < begins[source]:
                what = f"a last number of at least {begins[source]}, where the previous generation starts"
                raise _wrong(f"{path}.1.{source}", geometry, what)
        begins = [geometry[-1] for geometry in geometries]


class _LaneCheck:
    """Checks lanes of a state with the given generations and fingerprint."""

    def __init__(self, generations: list[Any], fingerprint: dict[str, Any]) -> None:
        self._lanes_of_earlier = [num_lanes for num_lanes, _ in generations[:-1]]
        self._num_sources = len(fingerprint["sources"])
        self._num_rows = len(generations[-1][1])
        self._packs = fingerprint.get("packing_buffer_size") is not None
        self._is_planned = "planned" in fingerprint
        self._of_cursor = ("costs", "inbox") if "weight_unit" in fingerprint else ("inbox",)
        self._sources = {str(number) for number in range(self._num_rows)}

    def lane(self, path: str, state: Any) -> None:
        """The state of one lane, `{}` if it has not started."""
        if state == {}:
            return
        needed = (*_CURSOR_KEYS, "micro_batches", *(("planned",) if self._is_planned else ()))
        _check_keys(path, state, needed, (*self._of_cursor, "pending", "extras"))
        self._check_cursor(path, state)
        planned = state.get("planned", [0] * 8)
        if not isinstance(planned, list) or len(planned) < 8 or not _are_numbers(planned, len(planned)):
            raise _wrong(f"{path}.planned", planned, _PLANNED)
        _check_number(f"{path}.micro_batches", state["micro_batches"])
        _check_extras(f"{path}.extras", state)
        if "pending" in state:
            self._check_pending(f"{path}.pending", state["pending"], state["draws"])

    def numbered(self, path: str, values: Any, stop: int) -> Iterable[tuple[str, Any]]:
        """(path, value) of a dict whose keys are numbers below `stop`, as strings."""
        if not isinstance(values, dict):
            raise _wrong(path, values, "a dict")
        for name, value in values.items():
            is_number = isinstance(name, str) and name.isdecimal() and len(name) < 10 and str(int(name)) == name
            if not is_number or int(name) >= stop:
                raise StateError(
                    f"{path}.{name}: unknown name, expected a number from 0 to {stop - 1}; {DAMAGED_STATE}"
                )
            yield f"{path}.{name}", value

    def _check_cursor(self, path: str, state: dict[str, Any]) -> None:
        _check_number(f"{path}.draws", state["draws"])
        cursors = state["cursors"]
        if not isinstance(cursors, dict) or not cursors.keys() <= self._sources:
            for _ in self.numbered(f"{path}.cursors", cursors, self._num_rows):
                pass
        for source, position in cursors.items():
            if not _are_numbers(position, 4):
                raise _wrong(f"{path}.cursors.{source}", position, _POSITION)
        costs = state.get("costs", {})
        for name, cost in self.numbered(f"{path}.costs", costs, self._num_rows):
            _check_number(name, cost)
        if "costs" in self._of_cursor and not cursors.keys() <= costs.keys():
            raise _missing(f"{path}.costs.{min(cursors.keys() - costs.keys())}")
        for inbox, entries in self.numbered(f"{path}.inbox", state.get("inbox", {}), self._num_rows):
            _check_list(inbox, entries)
            for number, entry in enumerate(entries):
                if fault := self._fault_of_entry(entry):
                    raise _wrong(f"{inbox}.{number}", entry, fault)

    def _fault_of_entry(self, entry: Any) -> str | None:
        """What was expected instead of an inbox entry; None if the entry is valid."""
        if isinstance(entry, list) and entry and isinstance(entry[0], list):
            return None if all(_are_numbers(part, 3) for part in entry) else "lists of [epoch, index, part]"
        if not _are_numbers(entry, 7) or entry[-1] < 1:
            return _SLICE + ", or a list of [epoch, index, part]"
        if entry[0] >= len(self._lanes_of_earlier):
            return f"a slice of a generation before the last, of which there are {len(self._lanes_of_earlier)}"
        if entry[1] >= self._lanes_of_earlier[entry[0]]:
            return f"a slice of a lane below {self._lanes_of_earlier[entry[0]]}, as many as its generation has"
        return None

    def _check_pending(self, path: str, pending: Any, draws: int) -> None:
        of_packs = ("carried", "packs", "base") if self._packs else ()
        _check_keys(path, pending, (), ("queue", "buckets", "open", *of_packs))
        num_replayed = 0
        if "base" in pending:
            base = pending["base"]
            _check_keys(f"{path}.base", base, _CURSOR_KEYS, self._of_cursor)
            self._check_cursor(f"{path}.base", base)
            num_replayed = draws - base["draws"]
            if num_replayed < 0:
                raise _wrong(f"{path}.base.draws", base["draws"], f"at most the {draws} draws of the lane")
        check = _PendingCheck(self._packs, self._num_sources, num_replayed)
        for name, check_value in (
            ("queue", check.item),
            ("carried", check.item),
            ("packs", check.pack),
            ("open", check.batch),
        ):
            check.each(check_value, f"{path}.{name}", pending.get(name, []))
        buckets = pending.get("buckets", {})
        if not isinstance(buckets, dict) or not all(isinstance(name, str) for name in buckets):
            raise _wrong(f"{path}.buckets", buckets, "a dict of members by group")
        for name, bucket in buckets.items():
            check.each(check.pack, f"{path}.buckets.{name}", bucket)


class _PendingCheck:
    """Checks the pending items of a lane, of which `num_replayed` draws can be replayed from the base cursor."""

    def __init__(self, packs: bool, num_sources: int, num_replayed: int) -> None:
        self._packs, self._num_sources, self._num_replayed = packs, num_sources, num_replayed
        self._seen: set[Any] = set()

    def each(self, check: _Check, path: str, values: Any) -> None:
        """Check a list of values."""
        _check_list(path, values)
        for number, value in enumerate(values):
            check(f"{path}.{number}", value)

    def item(self, path: str, value: Any) -> None:
        """A sample, or a part of one, that no other item is."""
        if isinstance(value, list):
            is_right = (_are_numbers(value, 4) and value[0] < self._num_sources) or (
                _are_numbers(value, 2) and value[0] < self._num_replayed
            )
        else:
            is_right = type(value) is int and 0 <= value < self._num_replayed
        if not is_right:
            known = f"offsets below {self._num_replayed}, the draws since the base; sources below {self._num_sources}"
            raise _wrong(path, value, f"{_ITEM} ({known})")
        item = value if isinstance(value, int) else tuple(value)
        if item in self._seen:
            raise _wrong(path, value, "an item that is pending once")
        self._seen.add(item)

    def pack(self, path: str, value: Any) -> None:
        """The items of a pack; a single item if the run has no packing."""
        self.each(self.item, path, value)
        if not value or (len(value) > 1 and not self._packs):
            raise _wrong(path, value, "the items of a pack" if self._packs else "one item, as there are no packs")

    def batch(self, path: str, value: Any) -> None:
        """A partly emitted micro-batch."""
        if not isinstance(value, list) or len(value) != 2:
            raise _wrong(path, value, "[members, number of batches already emitted]")
        self.each(self.pack, f"{path}.0", value[0])
        _check_number(f"{path}.1", value[1])


def _check_keys(path: str, value: Any, needed: Iterable[str], optional: Iterable[str]) -> None:
    if not isinstance(value, dict):
        raise _wrong(path, value, "a dict")
    known = {*needed, *optional}
    for name in needed:
        if name not in value:
            raise _missing(_join(path, name))
    if not value.keys() <= known:
        unknown = min(map(str, value.keys() - known))
        raise StateError(
            f"{_join(path, unknown)}: unknown, this release would lose it (it knows {', '.join(sorted(known))}); "
            "resume with the release that wrote it. If this one did, " + DAMAGED_STATE
        )


def _check_extras(path: str, state: dict[str, Any]) -> None:
    extras = state.get("extras", {})
    if not isinstance(extras, dict):
        raise _wrong(path, extras, "a dict")
    for name, extra in extras.items():
        version = extra.get("version") if isinstance(extra, dict) else None
        known, check = EXTRAS.get(name, (None, None))
        if check is None or type(version) is not int or version != known:
            raise StateError(
                f"{path}.{name}: version {version!r}, which this release does not know (it knows "
                f"{', '.join(f'{one} {number}' for one, (number, _) in EXTRAS.items())}); resume with the release that "
                "wrote it, or a later one"
            )
        _check_keys(f"{path}.{name}", extra, ("version", "data"), ())
        check(f"{path}.{name}.data", extra["data"])


def _check_ledger(path: str, data: Any) -> None:
    if not (isinstance(data, list) and len(data) == 4 and _are_numbers(data[:2], 2) and _are_sums(data[2:])):
        raise _wrong(path, data, _LEDGER)


def _check_lists(path: str, history: Any) -> None:
    if not isinstance(history, list) or not history:
        raise _wrong(path, history, _LISTS)
    least = 0
    for number, entry in enumerate(history):
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], dict):
            raise _wrong(f"{path}.{number}", entry, _LISTS)
        _check_number(f"{path}.{number}.0", entry[0], least=least)
        least = entry[0] + 1
        for name, versions in entry[1].items():
            if not isinstance(versions, list) or not all(map(_is_list_version, versions)):
                raise _wrong(f"{path}.{number}.1.{name}", versions, _LISTS)


def _is_list_version(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _are_numbers(value[:1], 1) and isinstance(value[1], str)


def _check_skips(path: str, skips: Any) -> None:
    _check_list(path, skips)
    end = 0
    for number, skip in enumerate(skips):
        is_right = _are_numbers(skip, 3) and end <= skip[0] < skip[1]
        if is_right and skip[2] == 2:
            raise StateError(
                f"{path}.{number}: {skip}: the state is of a run that repeats steps, which this release does not: "
                "resume from a checkpoint that was saved before repeat_steps were set, or with the release that wrote "
                "it"
            )
        if not is_right or skip[2]:
            raise _wrong(f"{path}.{number}", skip, _SKIPS)
        end = skip[1]
    if not skips:
        raise _wrong(path, skips, "at least one range")


EXTRAS: Mapping[str, tuple[int, _Check]] = {
    ledger.NAME: (ledger.VERSION, _check_ledger),
    step_skips.NAME: (step_skips.VERSION, _check_skips),
    forgotten_lists.NAME: (forgotten_lists.VERSION, _check_lists),
}
"""The extras that this release can read: the version of each, and the check of its data.

An extra is an optional part of the state, or of a lane's state: `{name: {"version": int, "data": ...}}` under `extras`.
A release that does not know the name or the version refuses the state instead of losing the data.
"""


def _are_sums(values: list[Any]) -> bool:
    return all(isinstance(value, str) and _SUM.fullmatch(value) for value in values)


def _check_list(path: str, value: Any) -> None:
    if not isinstance(value, list):
        raise _wrong(path, value, "a list")


def _check_number(path: str, value: Any, *, least: int = 0, stop: int = STOP) -> None:
    if type(value) is not int or not least <= value < stop:
        raise _wrong(path, value, f"an integer from {least} to {stop - 1}")


def _are_numbers(values: Any, count: int) -> bool:
    """Whether `values` is a list of `count` integers from 0 to `STOP` - 1."""
    return (
        isinstance(values, list)
        and len(values) == count
        and set(map(type, values)) == _INT
        and min(values) >= 0
        and max(values) < STOP
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _missing(path: str) -> StateError:
    return StateError(f"{path}: missing from the state; {DAMAGED_STATE}")


def _wrong(path: str, value: Any, expected: str) -> StateError:
    return StateError(f"{path}: {reprlib.repr(value)}: expected {expected}; {DAMAGED_STATE}")
