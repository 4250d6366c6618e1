"""What a data state says, in numbers for people: its lanes and its sources.

Enters: a state. Leaves: plain rows. *Pending* samples are those that a lane has drawn and not yet emitted; the *inbox*
is what an earlier deal left to it (in validation order, all that is to come), which it takes before its own.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bridge_data.errors import ConfigError
from bridge_data.order import Geometry, Row
from bridge_data.order.inbox import Entry, entry_size, is_slice
from bridge_data.pending import num_pending
from bridge_data.plan import Source, load_plan
from bridge_data.plan.epochs import multiplied, together
from bridge_data.state import LaneState, LoaderState


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
    """How far the lanes have come in one source: its part of the draws, chunks that a lane has taken (fewest and most),
    and the first and last epoch that a lane stands in; None for what is not known or does not apply."""

    label: str
    weight: float | None
    chunk_size: int | None
    chunks_taken: tuple[int, int] | None
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


def sources_of(state: LoaderState, data: Path | None = None, split_part: str = "train") -> list[SourceContents]:
    """How far each source has come; the epochs only where `data`, the data set or metadataset, is given.

    Raises:
        ConfigError: if `data` is other data than that of the state.
    """
    names = state.fingerprint["sources"]
    weights = _weights_now(state)
    is_shuffled = state.fingerprint["order"] == "shuffled"
    found = _matching(names, data, split_part) if data is not None and is_shuffled else {}
    contents = []
    for number, (name, label) in enumerate(names):
        taken = [lane["cursors"][number][0] for lane in state.lanes.values() if "cursors" in lane]
        inbox = [entry for lane in state.lanes.values() for source, entry in _inbox(lane) if source == number]
        contents.append(
            SourceContents(
                label=label,
                weight=weights[number] / math.fsum(weights) if weights else None,
                chunk_size=state.generations[-1][1][number][0] if is_shuffled else None,
                chunks_taken=_span(taken),
                epochs=_span(_epochs(state, number, found[name])) if name in found else None,
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


def _inbox(lane: LaneState) -> Iterator[tuple[int | None, Entry]]:
    """(number of the source, entry); in validation order the entries are of all sources."""
    inbox = lane.get("inbox", {})
    if isinstance(inbox, dict):
        yield from ((int(source), entry) for source, entries in inbox.items() for entry in entries)
    else:
        yield from ((None, entry) for entry in inbox)


def _matching(names: Sequence[Sequence[str]], data: Path, split_part: str) -> dict[str, Source]:
    """The sources of `data` under the names that the state has for them."""
    by_fingerprint = {
        source.fingerprint: source for source in load_plan(data, split_part=split_part, training=True).sources
    }
    missing = [label for name, label in names if name.partition("#")[0] not in by_fingerprint]
    if missing:
        raise ConfigError(
            f"--data {data}: has no {', '.join(missing)} as it was when the state was saved; its split part "
            f"{split_part!r} has {', '.join(source.name for source in by_fingerprint.values())}"
        )
    return {name: by_fingerprint[name.partition("#")[0]] for name, _ in names}


def _epochs(state: LoaderState, number: int, source: Source) -> Iterator[int]:
    """The epochs of the source that each lane has drawn from last, and that its inbox begins with."""
    name, _ = state.fingerprint["sources"][number]
    own = state.fingerprint.get("epochs_of_sources", {}).get(name, 1)
    epochs = together(multiplied(state.fingerprint.get("epochs_per_shuffle", 1), own))
    rows = [
        Row(source.records.counts, Geometry(num_lanes, *geometry[number]), 0, epochs_per_shuffle=epochs)
        for num_lanes, geometry in state.generations
    ]
    for lane, lane_state in state.lanes.items():
        taken, offset = lane_state["cursors"][number] if lane_state else (0, 0)
        places = [(rows[-1], lane, taken if offset else taken - 1)]
        for entry in (entry for source_number, entry in _inbox(lane_state) if source_number == number):
            if is_slice(entry):
                places.append((rows[entry[0]], entry[1], entry[2]))
            else:
                yield from (epoch for epoch, *_ in entry)
        for row, old_lane, chunk in places:
            if chunk >= 0:
                first = row.first_epoch_of(row.shuffle_of(old_lane, chunk))
                yield from (first, first + (epochs or 1) - 1)


def _span(numbers: Iterable[int]) -> tuple[int, int] | None:
    found = list(numbers)
    return (min(found), max(found)) if found else None
