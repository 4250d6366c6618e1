"""The ledger: sums over keyed hashes of all samples that a run received, so that two runs can be compared.

Reads the references of each micro-batch, and its number in the job. Returns two sums of 128 bits. `positioned` hashes
(micro-batch, position in it, source, epoch, index, output), and is equal on every topology that keeps the lanes;
`unpositioned` ignores micro-batch and position, and is also equal after a reshard. Sums of parts add up to the sum of
the whole, in any order; sources count by their ids (fingerprints), not by their numbers in the plan.

References travel as bytes: four int64, little-endian, of each sample, number of its source, epoch, index and output.

A sum is two independent words mod 2^64. A sample's word is u = splitmix64(k + a * epoch + b * index + c * output) with
the key k of its source; the unpositioned sum adds u, the positioned one u * (splitmix64(micro-batch) + d * position),
with other constants for each word. An accidental change cancels out in both words with a probability below
2^-100; the ledger is not a signature, and does not withstand forgery.

Source: splitmix64 (Steele, Lea, Flood 2014).
"""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bridge_data.order.random_draws import MASK, U64Array, splitmix64
from bridge_data.order.row import Ints

MicroBatch: TypeAlias = tuple[int, bytes]
"""(index in the job; references of its samples)."""

_REPETITION = 1 << 48
"""Above every number of a micro-batch: repetitions of finite data count on."""

_SAMPLE_FACTORS = np.array(
    [
        [0xD1342543DE82EF95, 0xAF251AF3B0F025B5, 0x8CB92BA72F3D8DD7],
        [0xC2B2AE3D27D4EB4F, 0x9FB21C651E98DF25, 0xF1357AEA2E62A9C5],
    ],
    dtype=np.uint64,
)
"""By word: factors of epoch, index and output."""
_POSITION_FACTORS = np.array([0xA0761D6478BD642F, 0xE7037ED1A0B428DB], dtype=np.uint64)
_NUMBER_KEYS = np.array([0x8EBC6AF09C88C6E3, 0x589965CC75374CC3], dtype=np.uint64)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SAMPLE_BYTES = 32
"""Size of the references of one sample."""


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
    def of_words(cls, data: Sequence[Any]) -> Self:
        """The inverse of `words`, with or without `since`."""
        *since, samples, positioned, unpositioned = data
        return cls(since[0] if since else 0, samples, _words(positioned), _words(unpositioned))

    def words(self) -> list[Any]:
        """The sums as plain JSON, as states keep them."""
        return [self.since, self.samples, _hex(self.positioned), _hex(self.unpositioned)]

    def to_dict(self) -> dict[str, Any]:
        """The sums as plain data: the counts as numbers, the sums as 32 hex digits."""
        words = {"positioned": _hex(self.positioned), "unpositioned": _hex(self.unpositioned)}
        return {"since": self.since, "samples": self.samples, **words}

    def __str__(self) -> str:
        since = f" (counted from micro-batch {self.since} on)" if self.since else ""
        sums = f"positioned {_hex(self.positioned)}, unpositioned {_hex(self.unpositioned)}"
        return f"samples {self.samples}, {sums}{since}"


def columns_of(references: bytes) -> NDArray[np.int64]:
    """References as (4, samples): source, epoch, index, output."""
    return np.frombuffer(references, dtype="<i8").reshape(-1, 4).T.astype(np.int64, order="C")


def tallies(batches: Sequence[MicroBatch], source_ids: Sequence[str], repetition: int = 0) -> list[LedgerSums]:
    """The sums over each of some micro-batches; `source_ids` are of the sources that the references number."""
    columns = Columns.of(batches)
    words = _words_of(columns, source_ids, repetition)
    return [_as_sums(size, row) for size, row in zip(columns.sizes.tolist(), words.tolist(), strict=True)]


class Columns(NamedTuple):
    """Micro-batches together: their numbers and sizes in samples, and the references of all samples one after another,
    (4, samples): source, epoch, index, output."""

    numbers: NDArray[np.int64]
    sizes: NDArray[np.int64]
    samples: NDArray[np.int64]

    @classmethod
    def of(cls, batches: Sequence[MicroBatch]) -> Self:
        """The numbers, sizes and samples of some micro-batches."""
        numbers = np.array([number for number, _ in batches], dtype=np.int64)
        sizes = np.array([len(references) // SAMPLE_BYTES for _, references in batches], dtype=np.int64)
        return cls(numbers, sizes, columns_of(b"".join([references for _, references in batches])))


def _words_of(columns: Columns, source_ids: Sequence[str], repetition: int) -> U64Array:
    """The words of both sums of each micro-batch, (micro-batches, 4): two of `positioned`, two of `unpositioned`."""
    numbers, sizes, samples = columns
    keys, in_run = _source_keys(tuple(source_ids)), (numbers + repetition * _REPETITION).view(np.uint64)
    starts, is_filled = np.cumsum(sizes) - sizes, sizes > 0
    positions = (np.arange(samples.shape[1]) - np.repeat(starts, sizes)).view(np.uint64)
    starts = starts[is_filled]  # for an empty one, `reduceat` would return the first of the next
    hashed = splitmix64(_SAMPLE_FACTORS @ samples[1:].view(np.uint64) + keys[:, samples[0]])
    words = np.zeros((2, 2, len(sizes)), dtype=np.uint64)
    if len(starts):
        words[1][:, is_filled] = np.add.reduceat(hashed, starts, axis=1)
        words[0][:, is_filled] = np.add.reduceat(hashed * positions, starts, axis=1) * _POSITION_FACTORS[:, None]
    words[0] += words[1] * splitmix64((in_run + np.uint64(1)) * _GOLDEN ^ _NUMBER_KEYS[:, None])
    return words.reshape(4, -1).T


def _as_sums(num_samples: int, words: Sequence[int]) -> LedgerSums:
    p0, p1, u0, u1 = words
    return LedgerSums(0, num_samples, (p0, p1), (u0, u1))


@functools.lru_cache(maxsize=4)
def _source_keys(source_ids: tuple[str, ...]) -> U64Array:
    """Two keys of each source, (2, sources)."""
    digests = b"".join(hashlib.blake2b(name.encode(), digest_size=16).digest() for name in source_ids)
    return np.ascontiguousarray(np.frombuffer(digests, dtype="<u8").astype(np.uint64).reshape(-1, 2).T)


def sums_of_batch(index: int, samples: Ints, source_ids: Sequence[str], repetition: int) -> LedgerSums:
    """The sums over one micro-batch, whose references are (samples, 4)."""
    columns = Columns(np.array([index]), np.array([len(samples)]), np.ascontiguousarray(samples.T))
    [words] = _words_of(columns, source_ids, repetition).tolist()
    return _as_sums(len(samples), words)


def packed_references(refs: Sequence[Sequence[int]] | Ints) -> bytes:
    """The references of samples as bytes."""
    return np.array(refs, dtype="<i8").reshape(-1, 4).tobytes()


def _added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return (one[0] + other[0]) & MASK, (one[1] + other[1]) & MASK


def _hex(words: tuple[int, int]) -> str:
    return f"{words[0]:016x}{words[1]:016x}"


def _words(text: str) -> tuple[int, int]:
    return int(text[:16], 16), int(text[16:], 16)
