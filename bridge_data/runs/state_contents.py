"""The contents of a data state as readable numbers: its lanes and its sources.

Reads a state. Returns plain rows. *Pending* samples are drawn by a lane and not yet emitted; the *inbox* is what a
reshard gave to a lane from earlier generations, and the lane takes it first.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

from bridge_data.order import BEGINNING
from bridge_data.order.cursor import Entry, entry_size, is_slice
from bridge_data.order.pending import num_pending
from bridge_data.order.state import LaneState, LoaderState


@dataclasses.dataclass(frozen=True, slots=True)
class LaneContents:
    """Numbers of one lane; None for draws that the state does not say (of packs whose source keeps a position of its
    own, as planned ones do)."""

    lane: int
    micro_batches: int
    draws: int | None
    pending: int
    inbox: int


@dataclasses.dataclass(frozen=True, slots=True)
class SourceContents:
    """The progress of the lanes in one source: its share of the draws, samples taken by a lane of its share of an epoch
    (fewest and most), and the first and last epoch of any lane; None if it does not apply, or the state does not say it
    (of packs whose source keeps a position of its own)."""

    label: str
    weight: float | None
    chunk_size: int | None
    samples_taken: tuple[int, int] | None
    epochs: tuple[int, int] | None
    inbox: int


def lanes_of(state: LoaderState) -> list[LaneContents]:
    """The numbers of each lane in the state."""
    tells_draws = _tells_draws(state)
    return [
        LaneContents(
            lane,
            lane_state.get("micro_batches", 0),
            lane_state.get("draws", 0) if tells_draws else None,
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
    tells_draws = is_shuffled and _tells_draws(state)
    contents = []
    for number, (_, label) in enumerate(state.fingerprint["sources"]):
        inboxes = state.lanes.values() if is_shuffled else ()
        inbox = [entry for lane in inboxes for source, entry in _inbox(lane) if source == number]
        contents.append(
            SourceContents(
                label=label,
                weight=weights[number] / math.fsum(weights) if weights else None,
                chunk_size=state.generations[-1][1][number][0] if is_shuffled else None,
                samples_taken=_span(_cursor(lane, number)[3] for lane in state.lanes.values()) if tells_draws else None,
                epochs=_span(_epochs(state, number)) if tells_draws else None,
                inbox=sum(map(entry_size, inbox)),
            )
        )
    return contents


def _tells_draws(state: LoaderState) -> bool:
    """Whether lanes count what they draw."""
    return not any("pack_source" in lane and not lane["draws"] for lane in state.lanes.values())


def _weights_now(state: LoaderState) -> list[float] | None:
    """The weights of the sources at the job's position; missing lanes are assumed to be where the others are. None: all
    sources alike, or it is not known which ones hold now."""
    weights: list[float] | None = state.fingerprint["weights"]
    if state.fingerprint.get("schedule") and not _tells_draws(state):
        return None
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
    num_together = state.num_together(number)
    for lane_state in state.lanes.values():
        positions = [(len(state.generations) - 1, _cursor(lane_state, number)[0])]
        for entry in (entry for source_number, entry in _inbox(lane_state) if source_number == number):
            if is_slice(entry):
                positions.append((entry[0], entry[2]))
            else:
                yield from (epoch for epoch, *_ in entry)
        for generation, shuffle in positions:
            first = state.generations[generation].first_epoch(number) + shuffle * num_together
            yield from (first, first + num_together - 1)


def _cursor(lane: LaneState, number: int) -> Sequence[int]:
    position: Sequence[int] = lane.get("cursors", {}).get(str(number), BEGINNING)
    return position


def _span(numbers: Iterable[int]) -> tuple[int, int] | None:
    found = list(numbers)
    return (min(found), max(found)) if found else None


def skips_of(state: LoaderState) -> list[dict[str, int]] | None:
    """The ranges of micro-batches that the run skips (hands out 0 times); None if it does not."""
    return None if state.skips is None else [{**one._asdict(), "times": 0} for one in state.skips.ranges]
