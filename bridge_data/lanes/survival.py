"""When nothing is left of what a lane draws: after how many skips in a row it warns, and stops the run.

Reads what a lane kept and skipped of each source, of its packs and of its micro-batches. Logs one warning, and much
later raises `FatalSampleError`, if nothing is left: see `Survival` for the bound.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import math
from collections.abc import Sequence

from bridge_data.errors import FatalSampleError

logger = logging.getLogger("bridge_data")

FEWEST_SKIPS = 10_000
"""Consecutive skips that are never an error. For packs and micro-batches, whose total is unknown, this many are an
error if none was kept: filters that keep 1 in 200 (0.995^10,000 < e^-50) are safe."""

SKIPS_TO_WARN = 1_000
"""Consecutive skips that are never a warning."""

_MOST_SKIPS = 1_000_000
"""Consecutive skips that are enough for large sources, besides two epochs of the lane's share."""

_EVIDENCE = 50.0
"""-ln of the probability of a false alarm, at each draw."""


def skips_of_empty(num_samples: int, num_lanes: int) -> tuple[int, int]:
    """Consecutive skips before a lane may call a source empty: if none of its samples was kept, and if some were."""
    share_twice = 2 * -(-num_samples // num_lanes)
    two_epochs = max(share_twice, min(2 * num_samples, _MOST_SKIPS))
    none_stayed = max(FEWEST_SKIPS, 50 * min(num_samples, 1_000), two_epochs)
    some_stayed = max(FEWEST_SKIPS, min(50 * num_samples, _MOST_SKIPS), share_twice)
    return none_stayed, max(none_stayed, some_stayed)


class Survival:
    """What was kept and skipped of a source, or of a lane's packs or micro-batches.

    The lane counts `kept`; `what` names them in messages; `limits` are the consecutive skips that may be an
    error, if none was kept and if some were.

    **The bound.** A run is taken as 1e9 draws, over all lanes and sources, and each draw may raise a false alarm with a
    probability of e^-50 = 2e-22: together less than 1e-12. So a run never stops if 1 in 1,000 samples of a source is
    kept, or any of up to 1,000. An alarm needs every condition that applies:

    - *As many consecutive skips as `skips_of_empty` says.* An epoch permutes a source's chunks, so each draw of a lane
      is a given sample with probability 1/n. A filter that decides by the sample skips k consecutive draws with
      probability (1 - 1/n)^k at most, which is below e^-50 after 50 n draws. (Two epochs prove something only with one
      lane: epochs are resharded; a lane of 8 misses a single survivor of an epoch 7 times out of 8.) If some samples
      were kept, it takes those 50 n; over 20,000 samples 1,000,000 are enough, which is safe if 1 in 20,000 samples is
      kept, and they are not all in a few chunks. If none was, the encoder is most likely wrong, and waiting costs more:
      then 50,000 draws and two epochs are enough, which is safe if 1 in 1,000 samples is kept, or any of up to 1,000.
    - *A streak that the survival rate seen so far rules out*, for filters that draw random numbers. If s of M draws
      were kept, the last of them at draw N, any order of the M draws is equally likely; that all s are among the first
      N has the probability C(N, s) / C(M, s) <= (N / M)^s. This needs no estimate of the rate. Draws without
      replacement only make long streaks rarer. The alarm is at s ln(M / N) > 50: about 50 / rate skips if s is large.
      With fewer than 11 survivors that takes too long; then a streak 100 times as long as everything before it is
      enough.

    Counts start at zero with each lane, also after a restore: the bounds hold for any starting point.
    """

    __slots__ = ("_kept_then", "_lane", "_left_out", "_limits", "_reason", "_seen_then", "_warned", "_what", "kept")

    def __init__(self, what: str, lane: int, limits: tuple[int, int] = (FEWEST_SKIPS, FEWEST_SKIPS)) -> None:
        self.kept = 0
        self._what, self._lane, self._limits = what, lane, limits
        self._left_out: collections.Counter[str] = collections.Counter()
        self._kept_then = self._seen_then = 0  # up to the last one kept
        self._reason = ""
        self._warned = False

    def count_skip(self, hook: str, reason: str) -> None:
        """Count one that `hook` skipped.

        Raises:
            FatalSampleError: if nothing is kept any more.
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


@dataclasses.dataclass(slots=True, eq=False)
class Survivals:
    """The `Survival` of each source of a lane, by its number, and of its packs or micro-batches, by their name.

    A `Survival` is made at the first skip: other lanes only count what they `kept`. `sources` are name and number of
    samples of each.
    """

    lane: int
    num_lanes: int
    sources: Sequence[tuple[str, int]]
    kept: dict[int | str, int] = dataclasses.field(default_factory=functools.partial(collections.defaultdict, int))
    """What each kept, counted by the lane."""
    _made: dict[int | str, Survival] = dataclasses.field(default_factory=dict, init=False)

    def __getitem__(self, what: int | str) -> Survival:
        if what not in self._made:
            if isinstance(what, str):
                self._made[what] = Survival(what, self.lane)
            else:
                name, size = self.sources[what]
                limits = skips_of_empty(size, self.num_lanes)
                self._made[what] = Survival(f"samples of {name}", self.lane, limits)
        survival = self._made[what]
        survival.kept = self.kept[what]
        return survival
