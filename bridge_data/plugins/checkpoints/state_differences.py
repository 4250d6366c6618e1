"""How two data states differ: rows of what they are of, for a table or for JSON."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from bridge_data.order import BEGINNING
from bridge_data.order.pending import num_pending
from bridge_data.order.state import LaneState, LoaderState
from bridge_data.order.step_skips import SkippedRange
from bridge_data.runs.state_contents import num_in_inbox, skips_of

_MAX_CHARACTERS = 40

_COUNTED = {"micro_batches", "draws", "cursors", "inbox", "pending"}


_HEADINGS = {
    "source": "source {source}",
    "source_sequence": "sequence of the sources",
    "weight": "weight of {source}",
    "num_micro_batches": "micro-batches handed out",
    "drawn_before": "samples drawn before the last reshard",
    "edits": "skipped",
    "lanes_of_generations": "lanes of each generation",
    "geometry_of_generations": "geometry of each generation",
    "is_here": "state",
    "micro_batches": "micro-batches",
    "cursor": "{source}",
}
"""How tables call an item, if not by its name."""


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """An item in which two states differ, and the value in each, None if it has none; `source` and `lane` say which of
    them it is of."""

    item: str
    first: Any
    second: Any
    source: str | None = dataclasses.field(default=None, kw_only=True)
    lane: int | None = dataclasses.field(default=None, kw_only=True)

    @property
    def heading(self) -> str:
        """What it is, for a table."""
        lane = "" if self.lane is None else f"lane {self.lane}: "
        return lane + (_HEADINGS[self.item].format(source=self.source) if self.item in _HEADINGS else self.item)

    @property
    def texts(self) -> tuple[str, str]:
        """Both values, for a table."""
        first, second = (self._text(value) for value in (self.first, self.second))
        is_of_others = self.item in ("inbox", "pending") and self.first == self.second
        return first, second.replace("samples", "others") if is_of_others else second

    def _text(self, value: Any) -> str:
        if value is None:
            return "–"
        match self.item:
            case "weight":
                return f"{value:.3%}"
            case "num_micro_batches" | "micro_batches" | "drawn_before" | "draws":
                return f"{value:,}"
            case "inbox" | "pending":
                return f"{value:,} samples"
            case "is_here":
                return "here" if value else "–"
            case "cursor":
                return f"shuffle {value['shuffle']:,}, {value['samples_taken']:,} samples taken"
            case "edits":
                return ", ".join(str(SkippedRange(one["first"], one["stop"])) for one in value)
        return _shown(value)

    def to_dict(self) -> dict[str, Any]:
        """The difference as plain data for JSON."""
        return dataclasses.asdict(self)


def differences(first: LoaderState, second: LoaderState) -> tuple[list[Difference], dict[int, list[Difference]]]:
    """(differences of the whole, differences by lane)."""
    of_all = list(_setting_differences(first.fingerprint, second.fingerprint))
    if first.num_handed_out != second.num_handed_out:
        of_all.append(Difference("num_micro_batches", first.num_handed_out, second.num_handed_out))
    if first.drawn_before != second.drawn_before:
        of_all.append(Difference("drawn_before", first.drawn_before, second.drawn_before))
    if first.skips != second.skips:
        of_all.append(Difference("edits", skips_of(first), skips_of(second)))
    assigns = [list(zip(*state.generations, strict=True)) for state in (first, second)]
    for item, was, now in zip(("lanes_of_generations", "geometry_of_generations"), *assigns, strict=True):
        if was != now:
            of_all.append(Difference(item, list(was), list(now)))
    labels = [label for _, label in first.fingerprint["sources"]]
    of_lanes = {}
    for lane in sorted(first.lanes.keys() | second.lanes.keys()):
        found = list(_lane_differences(first.lanes.get(lane), second.lanes.get(lane), labels))
        if found:
            of_lanes[lane] = [dataclasses.replace(one, lane=lane) for one in found]
    return of_all, of_lanes


def _setting_differences(first: dict[str, Any], second: dict[str, Any]) -> Iterator[Difference]:
    names = [dict(fingerprint["sources"]) for fingerprint in (first, second)]
    for name, label in (names[0] | names[1]).items():
        if name not in names[0] or name not in names[1]:
            yield Difference("source", *(name if name in found else None for found in names), source=label)
    if names[0].keys() == names[1].keys() and [*names[0]] != [*names[1]]:
        yield Difference("source_sequence", *([*found.values()] for found in names))
    for item in [*first, *(item for item in second if item not in first)]:
        if item == "sources" or first.get(item) == second.get(item):
            continue
        if item == "weights" and None not in (first[item], second[item]):
            weights = [_weights(fingerprint) for fingerprint in (first, second)]
            for name, label in (names[0] | names[1]).items():
                if weights[0].get(name) != weights[1].get(name):
                    yield Difference("weight", *(found.get(name) for found in weights), source=label)
        else:
            yield Difference(item, first.get(item), second.get(item))


def _weights(fingerprint: dict[str, Any]) -> dict[str, float]:
    weights = fingerprint["weights"]
    total = math.fsum(weights)
    return {name: weight / total for (name, _), weight in zip(fingerprint["sources"], weights, strict=True)}


def _lane_differences(first: LaneState | None, second: LaneState | None, labels: Sequence[str]) -> Iterator[Difference]:
    if first is None or second is None:
        yield Difference("is_here", first is not None, second is not None)
        return
    for name in ("micro_batches", "draws"):
        if first.get(name, 0) != second.get(name, 0):
            yield Difference(name, first.get(name, 0), second.get(name, 0))
    cursors = [lane.get("cursors", {}) for lane in (first, second)]
    for number in sorted(map(int, cursors[0].keys() | cursors[1].keys())):
        positions = [found.get(str(number), BEGINNING) for found in cursors]
        if positions[0] != positions[1]:
            label = labels[number] if number < len(labels) else f"source {number}"
            yield Difference("cursor", *({"shuffle": at[0], "samples_taken": at[3]} for at in positions), source=label)
    for name in sorted((first.keys() | second.keys()) - _COUNTED):
        if first.get(name) != second.get(name):
            yield Difference(name, first.get(name), second.get(name))
    for name, sizes in (
        ("inbox", [num_in_inbox(lane) for lane in (first, second)]),
        ("pending", [num_pending(lane) for lane in (first, second)]),
    ):
        if first.get(name, {}) != second.get(name, {}):
            yield Difference(name, *sizes)


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 2]} …"
