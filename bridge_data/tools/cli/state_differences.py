"""How two data states differ, item by item.

Enters: two states. Leaves: rows of what each of them has. Guarantee: no row means that they are the same.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from bridge_data.order import BEGINNING
from bridge_data.order.pending import num_pending
from bridge_data.order.state import LaneState, LoaderState
from bridge_data.tools.cli.state_contents import num_in_inbox

_MAX_CHARACTERS = 40
_COUNTED = {"micro_batches", "draws", "cursors", "inbox", "pending"}


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """An item in which two states differ, and what each has."""

    item: str
    first: str
    second: str


def differences(first: LoaderState, second: LoaderState) -> tuple[list[Difference], dict[int, list[Difference]]]:
    """(what differs of the whole, what differs by lane)."""
    of_all = list(_setting_differences(first.fingerprint, second.fingerprint))
    states = (first, second)
    if first.next_slot != second.next_slot:
        of_all.append(Difference("micro-batches handed out", *(f"{state.next_slot:,}" for state in states)))
    if first.drawn_before != second.drawn_before:
        of_all.append(Difference("samples drawn before the last deal", *(f"{s.drawn_before:,}" for s in states)))
    deals = [list(zip(*state.generations, strict=True)) for state in states]
    for item, was, now in zip(("lanes of each deal", "geometry of each deal"), *deals, strict=True):
        if was != now:
            of_all.append(Difference(item, _shown(was), _shown(now)))
    labels = [label for _, label in first.fingerprint["sources"]]
    of_lanes = {}
    for lane in sorted(first.lanes.keys() | second.lanes.keys()):
        found = list(_lane_differences(first.lanes.get(lane), second.lanes.get(lane), labels))
        if found:
            of_lanes[lane] = [dataclasses.replace(one, item=f"lane {lane}: {one.item}") for one in found]
    return of_all, of_lanes


def _setting_differences(first: dict[str, Any], second: dict[str, Any]) -> Iterator[Difference]:
    names = [dict(fingerprint["sources"]) for fingerprint in (first, second)]
    for name, label in (names[0] | names[1]).items():
        if name not in names[0] or name not in names[1]:
            yield Difference(f"source {label}", *(name if name in found else "–" for found in names))
    if names[0].keys() == names[1].keys() and [*names[0]] != [*names[1]]:
        yield Difference("sequence of the sources", *(_shown([*found.values()]) for found in names))
    for item in [*first, *(item for item in second if item not in first)]:
        if item == "sources" or first.get(item) == second.get(item):
            continue
        if item == "weights" and None not in (first[item], second[item]):
            weights = [_weights(fingerprint) for fingerprint in (first, second)]
            for name, label in (names[0] | names[1]).items():
                if weights[0].get(name) != weights[1].get(name):
                    shown = (f"{found[name]:.3%}" if name in found else "–" for found in weights)
                    yield Difference(f"weight of {label}", *shown)
        else:
            yield Difference(item, *(_shown(fingerprint.get(item, "–")) for fingerprint in (first, second)))


def _weights(fingerprint: dict[str, Any]) -> dict[str, float]:
    weights = fingerprint["weights"]
    total = math.fsum(weights)
    return {name: weight / total for (name, _), weight in zip(fingerprint["sources"], weights, strict=True)}


def _lane_differences(first: LaneState | None, second: LaneState | None, labels: Sequence[str]) -> Iterator[Difference]:
    if first is None or second is None:
        yield Difference("state", *("–" if lane is None else "here" for lane in (first, second)))
        return
    for name in ("micro_batches", "draws"):
        if first.get(name, 0) != second.get(name, 0):
            yield Difference(name.replace("_", "-"), *(f"{lane.get(name, 0):,}" for lane in (first, second)))
    cursors = [lane.get("cursors", {}) for lane in (first, second)]
    for number in sorted(map(int, cursors[0].keys() | cursors[1].keys())):
        places = [found.get(str(number), BEGINNING) for found in cursors]
        if places[0] != places[1]:
            label = labels[number] if number < len(labels) else f"source {number}"
            yield Difference(label, *(f"shuffle {place[0]:,}, {place[3]:,} samples taken" for place in places))
    for name in sorted((first.keys() | second.keys()) - _COUNTED):
        if first.get(name) != second.get(name):
            yield Difference(name, _shown(first.get(name, "–")), _shown(second.get(name, "–")))
    for name, sizes in (
        ("inbox", [num_in_inbox(lane) for lane in (first, second)]),
        ("pending", [num_pending(lane) for lane in (first, second)]),
    ):
        if first.get(name, {}) != second.get(name, {}):
            others = "others" if sizes[0] == sizes[1] else "samples"
            yield Difference(name, f"{sizes[0]:,} samples", f"{sizes[1]:,} {others}")


def _shown(value: Any) -> str:
    text = str(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 2]} …"
