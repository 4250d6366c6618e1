"""What a lane counts: how many samples pass the filters, and what its batches hold and cost.

`LaneTally` counts samples, tokens, images, bytes and time, for metrics. `Survival` says when a source is empty.

Enters: what stayed and what was left out, one after the other, and by which hook. Leaves: a warning, once; much later
an error. Guarantee: where 1 in 1,000 samples of a source stays, or any of up to 1,000, the probability of the error is
less than 1e-12 in a whole run.

**The bound.** A run is taken as 1e9 draws, over all lanes and sources, and each draw may raise a false alarm with a
probability of e^-50 = 2e-22: together less than 1e-12. An alarm takes all that applies of:

- *As many consecutive skips as `skips_of_empty` says.* An epoch permutes a source's chunks, so each draw of a lane is a
  given sample with probability 1/n. A filter that decides by the sample leaves out k draws in a row with probability
  (1 - 1/n)^k at most, which is below e^-50 after 50 n draws. (Two epochs prove nothing but with one lane: epochs are
  dealt again; a lane of 8 misses a single survivor of an epoch 7 times out of 8.) Where some samples have stayed, it
  takes those 50 n; over 20,000 samples 1,000,000 are enough, which are safe where 1 in 20,000 samples stays, and they
  are not all in a few chunks. Where none has, the encoder is most likely wrong, and waiting costs more: then 50,000
  draws and two epochs are enough, which are safe where 1 in 1,000 samples stays, or any of up to 1,000.
- *A streak that the survival rate seen so far rules out*, for filters that draw random numbers. Where s of M draws
  stayed, the last of them at draw N, any order of the M draws is as likely as any other; that all s are among the first
  N has the probability C(N, s) / C(M, s) <= (N / M)^s. This needs no estimate of the rate. Draws without replacement
  only make long streaks rarer. The alarm is at s ln(M / N) > 50: about 50 / rate skips where s is large. With fewer
  than 11 survivors that takes too long; then a streak of 100 times all that was before is enough.

Counts start at zero with each lane, also after a restore: each of the bounds holds for any starting point.
"""

import collections
import functools
import logging
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from bridge_data.errors import FatalSampleError
from bridge_data.order import SampleRef
from bridge_data.process_counts import COUNTS

logger = logging.getLogger("bridge_data")

T = TypeVar("T")

FEWEST_SKIPS = 10_000
"""Consecutive skips that are never an error. For packs and micro-batches, of which there is no number to go by, these
many are an error if none had stayed: filters of which 1 in 200 stays (0.995^10,000 < e^-50) are safe."""

SKIPS_TO_WARN = 1_000
"""Consecutive skips that are never a warning."""

_MOST_SKIPS = 1_000_000
"""Consecutive skips that are enough for large sources, but for two epochs of the lane's share."""

_EVIDENCE = 50.0
"""-ln of the probability of a false alarm, at each draw."""


def skips_of_empty(num_samples: int, num_lanes: int) -> tuple[int, int]:
    """Consecutive skips of a source before a lane may call it empty: if nothing of it has stayed, and if some has."""
    share_twice = 2 * -(-num_samples // num_lanes)
    two_epochs = max(share_twice, min(2 * num_samples, _MOST_SKIPS))
    none_stayed = max(FEWEST_SKIPS, 50 * min(num_samples, 1_000), two_epochs)
    some_stayed = max(FEWEST_SKIPS, min(50 * num_samples, _MOST_SKIPS), share_twice)
    return none_stayed, max(none_stayed, some_stayed)


class Survival:
    """What stayed and what was left out of a source, or of a lane's packs or micro-batches.

    `kept` is for the lane to count; `what` names them in messages; `limits` are the consecutive skips that may be an
    error, if none has stayed and if some have.
    """

    __slots__ = ("_kept_then", "_lane", "_left_out", "_limits", "_reason", "_seen_then", "_warned", "_what", "kept")

    def __init__(self, what: str, lane: int, limits: tuple[int, int] = (FEWEST_SKIPS, FEWEST_SKIPS)) -> None:
        self.kept = 0
        self._what, self._lane, self._limits = what, lane, limits
        self._left_out: collections.Counter[str] = collections.Counter()
        self._kept_then = self._seen_then = 0  # up to the last that stayed
        self._reason = ""
        self._warned = False

    def leave_out(self, hook: str, reason: str) -> None:
        """Count one that `hook` left out.

        Raises:
            FatalSampleError: if nothing stays any more.
        """
        if self.kept != self._kept_then:
            self._kept_then, self._seen_then = self.kept, self._seen()
        self._left_out[hook] += 1
        self._reason = reason
        streak = self._seen() - self._seen_then
        if streak < SKIPS_TO_WARN:
            return
        limit, evidence = self._limits[bool(self.kept)], self._evidence(streak)
        if not self._warned and (evidence > _EVIDENCE / 2 or streak >= limit):
            self._warned = True
            logger.warning(
                "%s. The run goes on; if none stays for %d in a row or more, it stops",
                self._facts(streak),
                limit,
            )
        if streak >= limit and evidence > _EVIDENCE:
            raise FatalSampleError(
                f"{self._facts(streak)}: this data does not fit this task encoder. "
                "Check the encoder's conditions for SkipSample, and the errors logged before."
            )

    def _seen(self) -> int:
        return self.kept + self._left_out.total()

    def _evidence(self, streak: int) -> float:
        """-ln of the probability of such a streak at the survival rate seen so far."""
        if not self.kept or streak > 100 * (self._seen_then + self._limits[1]):
            return math.inf
        return self.kept * math.log1p(streak / self._seen_then)

    def _facts(self, streak: int) -> str:
        counts = ", ".join(f"{count} in {hook}" for hook, count in self._left_out.items())
        because = f"; the last because {self._reason}" if self._reason else ""
        return (
            f"the last {streak} {self._what} were all left out ({counts}{because}); "
            f"lane {self._lane} has seen {self._seen()}, of which {self.kept} stayed"
        )


_NONE_SLOWEST = (0, 0, 0, 0)


class Counts(NamedTuple):
    """What a micro-batch holds, and what its process did for it since the one before, of any lane; or sums of these.

    `samples` in it (of a generator, each part). `tokens` without padding, and the `token_slots` that they fill; 0 where
    it has none, see `tokens_of`. Images decoded, bytes read, reads tried again. `slowest` is the work that took longer
    than any before in its lane: nanoseconds, source, epoch, index; 0 nanoseconds if none did. Of its worker,
    `ready_batches` were ready when the trainer asked for this one, of `ready_slots` that could have been; 0 and 0 if
    the trainer made it.
    """

    samples: int = 0
    tokens: int = 0
    token_slots: int = 0
    images: int = 0
    bytes_read: int = 0
    retries: int = 0
    slowest: tuple[int, int, int, int] = _NONE_SLOWEST
    ready_batches: int = 0
    ready_slots: int = 0


NO_COUNTS = Counts()
as_counts = functools.partial(tuple.__new__, Counts)  # `Counts._make`, twice as fast

CountValues: TypeAlias = tuple[int, int, int, int, int, int, tuple[int, int, int, int], int, int]
"""The values of a `Counts`: to make a plain tuple of each batch costs less."""


def sums_of(several: Sequence[CountValues]) -> Counts:
    """All of them in one, with the slowest sample of all."""
    columns = dict(zip(Counts._fields, zip(*several, strict=True), strict=True))
    return Counts(**{name: max(column) if name == "slowest" else sum(column) for name, column in columns.items()})


def tokens_of(batch: Any) -> tuple[int, int]:
    """(tokens without padding, tokens with it) of a batch's `tokens` or `input_ids`, a tensor (rows, length).

    What is no padding is known by its `cu_seqlens` (rows, bounds), by `cu_seqlens_q` (bounds,), or by an
    `attention_mask` (rows, length); without any of them nothing is.
    """
    is_dict = isinstance(batch, dict)  # not by `_field`: of plain samples, these two are most of what counting costs
    tokens = batch.get("tokens") if is_dict else getattr(batch, "tokens", None)
    if tokens is None:
        tokens = batch.get("input_ids") if is_dict else getattr(batch, "input_ids", None)
    if tokens is None or not hasattr(tokens, "numel") or not (slots := tokens.numel()):
        return 0, 0
    for name in ("cu_seqlens", "cu_seqlens_q"):
        if hasattr(bounds := _field(batch, name), "numel"):
            return int(bounds[..., -1].sum()), slots
    mask = _field(batch, "attention_mask")
    return int(mask.sum()) if getattr(mask, "shape", None) == tokens.shape else slots, slots


def _field(batch: Any, name: str) -> Any:
    return batch.get(name) if isinstance(batch, dict) else getattr(batch, name, None)


TIMED_NS = 200_000
"""Samples that are drawn together and take less than this are not timed one by one, which would cost a part of it."""
_TRIED_DRAWS = 4


class LaneTally:
    """Counts what the work of one lane does between two batches, and remembers its slowest sample."""

    def __init__(self) -> None:
        self.slowest_ns = 0
        self.longest_ns: float = -1  # draws that took longer are to be noted
        self.times_each = False  # samples that are drawn together
        self._slowest: SampleRef | None = None  # since the last batch
        self._num_draws, self._least_ns = 0, math.inf

    def note(self, ref: SampleRef, took_ns: int) -> None:
        """Note how long the work on a sample took."""
        if took_ns > self.slowest_ns:
            self.slowest_ns, self._slowest = took_ns, ref

    def each(self, refs: Sequence[SampleRef], samples: Iterator[T]) -> Iterator[T]:
        """The same samples, each of them timed."""
        began_ns = time.perf_counter_ns()
        for ref, sample in zip(refs, samples, strict=True):
            self.note(ref, time.perf_counter_ns() - began_ns)
            yield sample
            began_ns = time.perf_counter_ns()

    def note_draw(self, refs: Sequence[tuple[int, SampleRef]], took_ns: int) -> None:
        """Note what samples drawn together took, under the first; the mean if they are worth being timed each."""
        self._num_draws += 1
        self._least_ns = min(self._least_ns, took_ns / len(refs))
        is_cheap = self._least_ns <= TIMED_NS
        self.times_each = self._num_draws >= _TRIED_DRAWS and len(refs) > 1 and not is_cheap
        self.note(refs[0][1], took_ns if is_cheap else took_ns // len(refs))
        if self._num_draws >= _TRIED_DRAWS:
            self.longest_ns = math.inf if self.times_each else self.slowest_ns

    def take(self, batch: Any, num_samples: int) -> CountValues:
        """The counts of a batch of `num_samples` that has just been made: takes those of the process."""
        slowest = _NONE_SLOWEST
        if self._slowest is not None:
            source, epoch, index, _ = self._slowest
            slowest, self._slowest = (self.slowest_ns, source, epoch, index), None
        if images := COUNTS.num_images:
            COUNTS.num_images -= images
        if bytes_read := COUNTS.num_bytes:
            COUNTS.num_bytes -= bytes_read
        if retries := COUNTS.num_retries:
            COUNTS.num_retries -= retries
        tokens, slots = tokens_of(batch)
        return num_samples, tokens, slots, images, bytes_read, retries, slowest, 0, 0
