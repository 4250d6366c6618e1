"""The contents of a data state as readable numbers: its lanes and its sources; and how two states differ.

Reads a state. Returns plain rows. *Pending* samples are drawn by a lane and not yet emitted; the *inbox* is what a
reshard gave to a lane from earlier generations, and the lane takes it first.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bridge_data.order import BEGINNING
from bridge_data.order.cursor import Entry, entry_size, is_slice
from bridge_data.order.pending import num_pending
from bridge_data.order.state import LaneState, LoaderState
from bridge_data.order.step_skips import SkippedRange
from bridge_data.plan.source import multiplied, together

_MAX_CHARACTERS = 40

_COUNTED = {"micro_batches", "draws", "cursors", "inbox", "pending"}


@dataclasses.dataclass(frozen=True, slots=True)
class LaneContents:
    """Numbers of one lane."""

    lane: int
    micro_batches: int
    draws: int
    pending: int
    inbox: int


@dataclasses.dataclass(frozen=True, slots=True)
class SourceContents:
    """The progress of the lanes in one source: its share of the draws, samples taken by a lane of its share of an epoch
    (fewest and most), and the first and last epoch of any lane; None if it does not apply."""

    label: str
    weight: float | None
    chunk_size: int | None
    samples_taken: tuple[int, int] | None
    epochs: tuple[int, int] | None
    inbox: int


def lanes_of(state: LoaderState) -> list[LaneContents]:
    """The numbers of each lane in the state."""
    return [
        LaneContents(
            lane,
            lane_state.get("micro_batches", 0),
            lane_state.get("draws", 0),
            num_pending(lane_state),
            num_in_inbox(lane_state),
        )
        for lane, lane_state in sorted(state.lanes.items())
    ]


def num_in_inbox(lane: LaneState) -> int:
    """Samples (or parts of samples) left to a lane from earlier generations."""
    return sum(entry_size(entry) for _, entry in _inbox(lane))


def sources_of(state: LoaderState) -> list[SourceContents]:
    """The progress of each source."""
    weights = _weights_now(state)
    is_shuffled = state.fingerprint["order"] == "shuffled"
    contents = []
    for number, (_, label) in enumerate(state.fingerprint["sources"]):
        inboxes = state.lanes.values() if is_shuffled else ()
        inbox = [entry for lane in inboxes for source, entry in _inbox(lane) if source == number]
        contents.append(
            SourceContents(
                label=label,
                weight=weights[number] / math.fsum(weights) if weights else None,
                chunk_size=state.generations[-1][1][number][0] if is_shuffled else None,
                samples_taken=_span(_cursor(lane, number)[3] for lane in state.lanes.values()) if is_shuffled else None,
                epochs=_span(_epochs(state, number)) if is_shuffled else None,
                inbox=sum(map(entry_size, inbox)),
            )
        )
    return contents


def _weights_now(state: LoaderState) -> list[float] | None:
    """The weights of the sources at the job's position; missing lanes are assumed to be where the others are."""
    weights: list[float] | None = state.fingerprint["weights"]
    lanes = state.lanes.values()
    if "weight_unit" in state.fingerprint:
        before, drawn = 0, sum(sum(lane.get("blend", {}).values()) for lane in lanes)
    else:
        before, drawn = state.drawn_before, sum(lane.get("draws", 0) for lane in lanes)
    drawn = before + drawn * state.num_lanes // max(1, len(lanes))
    for start, later in state.fingerprint.get("schedule", ()):
        weights = later if start <= drawn else weights
    return weights


def _inbox(lane: LaneState) -> Iterator[tuple[int, Entry]]:
    """(number of the source, entry); in validation order always 0, which means all sources."""
    yield from ((int(source), entry) for source, entries in lane.get("inbox", {}).items() for entry in entries)


def _epochs(state: LoaderState, number: int) -> Iterator[int]:
    """The epochs of a source that lanes are in, and the first epochs of their inboxes."""
    name, _ = state.fingerprint["sources"][number]
    own = state.fingerprint.get("epochs_of_sources", {}).get(name, 1)
    num_together = together(multiplied(state.fingerprint.get("epochs_per_shuffle", 1), own)) or 1
    for lane_state in state.lanes.values():
        positions = [(len(state.generations) - 1, _cursor(lane_state, number)[0])]
        for entry in (entry for source_number, entry in _inbox(lane_state) if source_number == number):
            if is_slice(entry):
                positions.append((entry[0], entry[2]))
            else:
                yield from (epoch for epoch, *_ in entry)
        for generation, shuffle in positions:
            first = state.generations[generation][1][number][-1] + shuffle * num_together
            yield from (first, first + num_together - 1)


def _cursor(lane: LaneState, number: int) -> Sequence[int]:
    position: Sequence[int] = lane.get("cursors", {}).get(str(number), BEGINNING)
    return position


def _span(numbers: Iterable[int]) -> tuple[int, int] | None:
    found = list(numbers)
    return (min(found), max(found)) if found else None


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


def skips_of(state: LoaderState) -> list[dict[str, int]] | None:
    """The ranges of micro-batches that the run skips (hands out 0 times); None if it does not."""
    return None if state.skips is None else [{**one._asdict(), "times": 0} for one in state.skips.ranges]


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
