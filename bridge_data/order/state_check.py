"""The structure check of a saved state.

Input: a state as plain data. Output: nothing, or a `StateError` with the path of the wrong field, such as
`lanes.3.cursors.0`. Guarantee: a state that passes has every key, type and range that later code relies on. Whether a
position exists in the data is checked later, when the position is used.

Ranges do not tell every edit: without one pack of `pending` a state is still valid, and loses samples. So a state is
saved with `checksums`, one of each lane and one of the other fields: `{"run": crc32, "0": crc32, ...}`. A state without
them, from an earlier release, is checked for structure only.
"""

import json
import math
import re
import reprlib
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from bridge_data.errors import DAMAGED_STATE, StateError

STOP = 1 << 48
"""Upper bound of all integers, so that arithmetic with them stays within 64 bits."""

MAX_LANES = 1 << 24

_POSITION = "4 integers >= 0 (shuffle, window, offset, samples taken)"
_SLICE = "7 integers >= 0 (generation, lane, shuffle, window, offset, skip, count), the last one >= 1"
_GEOMETRY = "4 integers (chunk_size >= block_size >= 1, window_size >= 0, first_epoch >= 0)"
_ITEM = "an offset, [offset, part] or [source, epoch, index, part]"

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


def check_checksums(data: dict[str, Any]) -> None:
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


def check_structure(data: dict[str, Any]) -> None:
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
        self._sources = {str(number) for number in range(self._num_rows)}

    def lane(self, path: str, state: Any) -> None:
        """The state of one lane, `{}` if it has not started."""
        if state == {}:
            return
        if isinstance(state, dict) and "kept" in state:
            raise _repeats(f"{path}.kept", state["kept"])
        _check_keys(path, state, (*_CURSOR_KEYS, "micro_batches"), ("inbox", "pending", "extras"))
        self._check_cursor(path, state)
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
            _check_keys(f"{path}.base", base, _CURSOR_KEYS, ("inbox",))
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
    checks: dict[str, _Check] = {"ledger": _check_ledger, "step_edits": _check_skips, "forgotten": _check_lists}
    for name, check in checks.items():
        extra = extras.get(name)
        if isinstance(extra, dict) and extra.get("version") == 1:
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
            raise _repeats(f"{path}.{number}", skip)
        if not is_right or skip[2]:
            raise _wrong(f"{path}.{number}", skip, _SKIPS)
        end = skip[1]
    if not skips:
        raise _wrong(path, skips, "at least one range")


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


def _repeats(path: str, value: Any) -> StateError:
    return StateError(
        f"{path}: {reprlib.repr(value)}: the state is of a run that repeats steps, which this release does not: resume "
        "from a checkpoint that was saved before repeat_steps were set, or with the release that wrote it"
    )


def _wrong(path: str, value: Any, expected: str) -> StateError:
    return StateError(f"{path}: {reprlib.repr(value)}: expected {expected}; {DAMAGED_STATE}")
