"""What a data state says, in numbers for people: its lanes and its sources.

Enters: a state. Leaves: plain rows. *Pending* samples are those that a lane has drawn and not yet emitted; the *inbox*
is what an earlier deal left to it, which it takes before its own.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

from bridge_data.order import BEGINNING
from bridge_data.order.pending import num_pending
from bridge_data.order.state import LaneState, LoaderState
from bridge_data.order.stream import Entry, entry_size, is_slice
from bridge_data.plan.epochs import multiplied, together


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
    """How far the lanes have come in one source: its part of the draws, samples that a lane has taken of its share of
    an epoch (fewest and most), and the first and last epoch that a lane stands in; None for what does not apply."""

    label: str
    weight: float | None
    chunk_size: int | None
    samples_taken: tuple[int, int] | None
    epochs: tuple[int, int] | None
    inbox: int


def lanes_of(state: LoaderState) -> list[LaneContents]:
    """The numbers of each lane that is here."""
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
    """Samples (or parts of samples) that are left to a lane of earlier deals."""
    return sum(entry_size(entry) for _, entry in _inbox(lane))


def sources_of(state: LoaderState) -> list[SourceContents]:
    """How far each source has come."""
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
    """The weights by which the sources are drawn where the job stands; lanes that are not here are taken to stand where
    the others do."""
    weights: list[float] | None = state.fingerprint["weights"]
    draws = sum(lane.get("draws", 0) for lane in state.lanes.values())
    drawn = state.drawn_before + draws * state.num_lanes // max(1, len(state.lanes))
    for start, later in state.fingerprint.get("schedule", ()):
        weights = later if start <= drawn else weights
    return weights


def _inbox(lane: LaneState) -> Iterator[tuple[int, Entry]]:
    """(number of the source, entry); in validation order all are of number 0, which stands for all sources."""
    yield from ((int(source), entry) for source, entries in lane.get("inbox", {}).items() for entry in entries)


def _epochs(state: LoaderState, number: int) -> Iterator[int]:
    """The epochs of a source in which lanes stand, and with which their inboxes begin."""
    name, _ = state.fingerprint["sources"][number]
    own = state.fingerprint.get("epochs_of_sources", {}).get(name, 1)
    num_together = together(multiplied(state.fingerprint.get("epochs_per_shuffle", 1), own)) or 1
    for lane_state in state.lanes.values():
        places = [(len(state.generations) - 1, _cursor(lane_state, number)[0])]
        for entry in (entry for source_number, entry in _inbox(lane_state) if source_number == number):
            if is_slice(entry):
                places.append((entry[0], entry[2]))
            else:
                yield from (epoch for epoch, *_ in entry)
        for generation, shuffle in places:
            first = state.generations[generation][1][number][-1] + shuffle * num_together
            yield from (first, first + num_together - 1)


def _cursor(lane: LaneState, number: int) -> Sequence[int]:
    position: Sequence[int] = lane.get("cursors", {}).get(str(number), BEGINNING)
    return position


def _span(numbers: Iterable[int]) -> tuple[int, int] | None:
    found = list(numbers)
    return (min(found), max(found)) if found else None
