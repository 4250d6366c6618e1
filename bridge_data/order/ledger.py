"""The ledger: sums over keyed hashes of all samples that a run was handed out, so that two runs can be compared.

Enters: the references of each micro-batch, and its number in the job. Leaves: two sums of 128 bits. `positioned` hashes
(micro-batch, position in it, source, epoch, index, part), and is equal on every topology that keeps the lanes;
`unpositioned` leaves out micro-batch and position, and is also equal after a re-deal. Guarantee: sums of parts add up
to the sum of the whole, in any order; sources count by their names (fingerprints), not by their numbers in the plan.

A state keeps the sums of each lane in the lane's `extras`, and those from before the last re-deal in its own:
`{"ledger": {"version": 1, "data": [since, samples, positioned, unpositioned]}}`, sums as 32 hexadecimal digits.
`since` is the first micro-batch that is counted (of a lane: the number of its own that are not), above 0 if the run
began with a release that kept no ledger.

References travel as bytes: int64, little-endian, first the numbers of the sources, then epochs, indices and parts.

A sum is two independent words mod 2^64. A sample's word is u = splitmix64(k + a * epoch + b * index + c * part) with
the key k of its source; the unpositioned sum adds u, the positioned one u * (splitmix64(micro-batch) + d * position),
with other constants for each word. A change that is no attack cancels out in both words with a probability below
2^-100; the ledger is no signature, and does not withstand forgery.

Source: splitmix64 (Steele, Lea, Flood 2014).
"""

import dataclasses
import functools
import hashlib
import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bridge_data.order.random_draws import MASK, U64Array, splitmix64

if TYPE_CHECKING:
    from bridge_data.order.state import LoaderState

logger = logging.getLogger("bridge_data")

NAME = "ledger"
"""The name of the extra."""
VERSION = 1

MicroBatch: TypeAlias = tuple[int, bytes]
"""(number in the job, references of its samples)."""

_REPETITION = 1 << 48
"""Above every number of a micro-batch: repetitions of finite data count on."""

_SAMPLE_FACTORS = np.array(
    [
        [0xD1342543DE82EF95, 0xAF251AF3B0F025B5, 0x8CB92BA72F3D8DD7],
        [0xC2B2AE3D27D4EB4F, 0x9FB21C651E98DF25, 0xF1357AEA2E62A9C5],
    ],
    dtype=np.uint64,
)
"""By word: of epoch, index and part."""
_POSITION_FACTORS = np.array([[0xA0761D6478BD642F], [0xE7037ED1A0B428DB]], dtype=np.uint64)
_NUMBER_KEYS = np.array([[0x8EBC6AF09C88C6E3], [0x589965CC75374CC3]], dtype=np.uint64)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerSums:
    """The sums over some samples; `since` as in states."""

    since: int = 0
    samples: int = 0
    positioned: tuple[int, int] = (0, 0)
    unpositioned: tuple[int, int] = (0, 0)

    def plus(self, other: "LedgerSums") -> "LedgerSums":
        """The sums over both, with the `since` of this one."""
        return LedgerSums(
            self.since,
            self.samples + other.samples,
            _added(self.positioned, other.positioned),
            _added(self.unpositioned, other.unpositioned),
        )

    @classmethod
    def of_extras(cls, extras: Mapping[str, Any]) -> Self | None:
        """The sums in the checked `extras` of a state or a lane; None if they have none."""
        if NAME not in extras:
            return None
        since, samples, positioned, unpositioned = extras[NAME]["data"]
        return cls(since, samples, _words(positioned), _words(unpositioned))

    def in_extras(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """`extras` with these sums."""
        data = [self.since, self.samples, _hex(self.positioned), _hex(self.unpositioned)]
        return {**extras, NAME: {"version": VERSION, "data": data}}

    def __str__(self) -> str:
        since = f" (counted from micro-batch {self.since} on)" if self.since else ""
        sums = f"positioned {_hex(self.positioned)}, unpositioned {_hex(self.unpositioned)}"
        return f"samples {self.samples}, {sums}{since}"


def tallies(batches: Sequence[MicroBatch], source_names: Sequence[str], repetition: int = 0) -> list[LedgerSums]:
    """The sums over each of some micro-batches; `source_names` are the fingerprints that the references number."""
    found: dict[int, LedgerSums] = {}
    by_size = sorted(range(len(batches)), key=lambda at: len(batches[at][1]))
    for size, same in itertools.groupby(by_size, key=lambda at: len(batches[at][1])):
        group = list(same)
        if size == 0:
            found |= dict.fromkeys(group, LedgerSums())
            continue
        numbers = np.array([batches[at][0] + repetition * _REPETITION for at in group], dtype=np.uint64)
        columns = np.frombuffer(b"".join(batches[at][1] for at in group), dtype="<i8").astype(np.uint64, copy=False)
        sums = _sums(columns.reshape(len(group), 4, -1), numbers, _source_keys(tuple(source_names)))
        for at, (p0, p1, u0, u1) in zip(group, sums.tolist(), strict=True):
            found[at] = LedgerSums(0, size // 32, (p0, p1), (u0, u1))
    return [found[at] for at in range(len(batches))]


def _sums(columns: U64Array, numbers: U64Array, keys: U64Array) -> U64Array:
    """The words of both sums, (micro-batches, 4), of references (micro-batches, 4, samples)."""
    sources, epochs, indices, parts = (columns[:, column] for column in range(4))
    result = np.empty((len(columns), 4), dtype=np.uint64)
    positions = np.arange(columns.shape[2], dtype=np.uint64)
    for word, (of_epoch, of_index, of_part) in enumerate(_SAMPLE_FACTORS):
        mixed = indices * of_index
        mixed += epochs * of_epoch
        mixed += parts * of_part
        mixed += keys[word, 0] if keys.shape[1] == 1 else keys[word][sources.astype(np.int64)]
        hashed = splitmix64(mixed)
        of_number = splitmix64((numbers + np.uint64(1)) * _GOLDEN ^ _NUMBER_KEYS[word])
        result[:, 2 + word] = hashed.sum(axis=1, dtype=np.uint64)
        hashed *= of_number[:, None] + positions * _POSITION_FACTORS[word]
        result[:, word] = hashed.sum(axis=1, dtype=np.uint64)
    return result


@functools.lru_cache(maxsize=4)
def _source_keys(names: tuple[str, ...]) -> U64Array:
    """Two keys of each source, (2, sources)."""
    digests = b"".join(hashlib.blake2b(name.encode(), digest_size=16).digest() for name in names)
    return np.ascontiguousarray(np.frombuffer(digests, dtype="<u8").astype(np.uint64).reshape(-1, 2).T)


def columns_of(references: bytes) -> NDArray[np.int64]:
    """References as (4, samples): source, epoch, index, part."""
    return np.frombuffer(references, dtype="<i8").reshape(4, -1).astype(np.int64, copy=False)


def settled(state: "LoaderState") -> "LoaderState":
    """`state` with all that was handed out in the ledgers of its lanes."""
    batches = [batch for lane in state.uncounted for batch in uncounted_of(lane, state)]
    each = iter(tallies(batches, [name for name, _ in state.fingerprint["sources"]], state.repetition))
    lanes = dict(state.lanes)
    for lane, chunks in state.uncounted.items():
        extras = lanes[lane].get("extras", {})
        tally = LedgerSums.of_extras(extras) or LedgerSums(since=num_emitted(lane, state) - len(chunks))
        for one in itertools.islice(each, len(chunks)):
            tally = tally.plus(one)
        lanes[lane] = {**lanes[lane], "extras": tally.in_extras(extras)}
    return dataclasses.replace(state, lanes=lanes, uncounted={})


def uncounted_of(lane: int, state: "LoaderState") -> list[MicroBatch]:
    """The micro-batches of a lane that its ledger does not count yet; with `edits`, by their slots."""
    chunks, edits = state.uncounted[lane], state.edits
    if edits is not None:
        slots = edits.slots_before(lane, state.num_lanes, state.next_slot, len(chunks))
        return list(zip(slots, chunks, strict=True))
    first = state.lanes[lane]["micro_batches"] - len(chunks)
    return [(number * state.num_lanes + lane, chunk) for number, chunk in enumerate(chunks, first)]


def num_emitted(lane: int, state: "LoaderState") -> int:
    """How many micro-batches of a lane the job has handed out."""
    if state.edits is not None:
        return state.edits.num_slots(lane, state.num_lanes, state.next_slot)
    number: int = state.lanes[lane].get("micro_batches", 0)
    return number


def total(state: "LoaderState") -> LedgerSums:
    """The sums over all that the lanes of `state` were handed out, and all before the last re-deal."""
    state = state.settled()
    before = LedgerSums.of_extras(state.extras)
    found, since = before or LedgerSums(), 0
    for lane, lane_state in state.lanes.items():
        own = LedgerSums.of_extras(lane_state.get("extras", {})) or LedgerSums(since=num_emitted(lane, state))
        found = found.plus(own)
        if own.since:
            since = max(since, (own.since - 1) * state.num_lanes + lane + 1)
    return found if before else dataclasses.replace(found, since=since)


def carried(state: "LoaderState") -> dict[str, Any]:
    """The extras of a state that goes on from the whole `state` with other lanes."""
    return total(state).in_extras(state.extras)


def repeated(first: "LoaderState", last: "LoaderState") -> "LoaderState":
    """`first`, the beginning of finite data, with the ledger of `last`, which it goes on from."""
    if first.num_lanes != last.num_lanes:
        return dataclasses.replace(first, extras=carried(last))
    last = last.settled()
    lanes = dict(first.lanes)
    for lane in lanes:
        if extras := last.lanes[lane].get("extras"):
            lanes[lane] = {"draws": 0, "cursors": {}, "micro_batches": 0, "extras": extras}
    return dataclasses.replace(first, lanes=lanes, extras=last.extras)


def line_of(state: "LoaderState") -> str:
    """The ledger of a whole state as one line: equal lines, equal data."""
    return f"data ledger at micro-batch {state.next_slot}: {total(state)}"


class LedgerLog:
    """Writes the line of a state that is saved to the log, once."""

    def __init__(self) -> None:
        self._last = ""

    def note(self, state: "LoaderState") -> None:
        """Log the line of a whole state, unless it is that of the state before."""
        if logger.isEnabledFor(logging.INFO) and (line := line_of(state)) != self._last:
            logger.info("%s", line)
            self._last = line


ledger_log = LedgerLog()
"""That of this process."""


def _added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return (one[0] + other[0]) & MASK, (one[1] + other[1]) & MASK


def _hex(words: tuple[int, int]) -> str:
    return f"{words[0]:016x}{words[1]:016x}"


def _words(text: str) -> tuple[int, int]:
    return int(text[:16], 16), int(text[16:], 16)
