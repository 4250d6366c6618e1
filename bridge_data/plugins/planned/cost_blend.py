"""The blend by cost: weights are shares of tokens, or of another cost of samples, instead of shares of the samples.

Reads weights, also scheduled ones; the costs of the samples of each source, which are known ahead; what a lane has
drawn so far. Returns from which source the lane draws next. It is integer arithmetic, the same everywhere. The state is
one integer for each source that the lane has drawn from: the cost drawn of it.

The rule. If a lane could divide samples, it would draw from all sources at once: after the cost V in all, the cost
w * V from a source of weight w (of weights that sum to 1; with a schedule, the sum over its phases). A sample of cost
c, before which the lane has drawn cost C from the source, would come while that grows from C to C + c. It is drawn at
one position of that interval, and the lane draws in the order of the V that belong to these positions. So each source
is ahead of its share, or behind it, by less than the cost of the one sample that it would be dividing.

The position is the middle, shifted by up to half the smaller of c and the source's mean cost. Lanes whose samples have
one cost draw in lockstep: there the shifts are spread evenly over the lanes, so that their errors cancel, and random
along a lane, so that no source comes at regular intervals. Large samples, whose errors are large, stay in the middle,
where they are smallest. A lane's first sample of a source comes at a part of the mean cost, spread over the lanes in
the same way: that needs no sample, so a source is opened when it is first drawn from. The shift is a function of C:
a lane that is restored, or gets the share of other lanes in a reshard, needs nothing besides C.

Samples that cost nothing (those that the encoder skips) come as soon as the sample before them. Outputs of a sample
that a reshard left cost nothing, too: their sample was counted when it was first drawn.

Source: weighted fair queueing (Demers, Keshav and Shenker, 1989).
"""

import bisect
import heapq
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bridge_data.errors import ConfigError
from bridge_data.order.blends import Phase
from bridge_data.order.random_draws import MASK, key64, uniform64
from bridge_data.order.row import Ints

_STAGE = 5
_POSITION_BITS, _WEIGHT_BITS = 16, 64
"""Binary places of a position, and of 1 / weight; times have those of both."""
_TIME_BITS = _POSITION_BITS + _WEIGHT_BITS


class Costs(Protocol):
    """The costs of the samples of a source, such as a `CostTable`."""

    def take(self, indices: Ints, name: str) -> Ints:
        """The cost `name` of each of these samples; 0 for those that are skipped."""

    def total(self, name: str) -> int:
        """The sum of it over all samples."""


class _Line(NamedTuple):
    """What a source is due over time, in phases in which its weight is above 0: where each begins, as a position (the
    cost that is due before it) and as a time, and 1 / weight. `end` is the position after which it is never drawn."""

    positions: list[int]
    times: list[int]
    inverses: list[int]
    end: int | None

    def time(self, position: int) -> int | None:
        """When `position` is due; None if never."""
        if self.end is not None and position >= self.end:
            return None
        at = max(0, bisect.bisect_right(self.positions, position) - 1)
        return self.times[at] + (position - self.positions[at]) * self.inverses[at]


class CostBlend:
    """The blend of sources by shares of the cost `unit`. `phases` are weights from a cost of the whole job on.

    Raises:
        ConfigError: naming a source whose samples cost nothing, although it has a weight.
    """

    def __init__(
        self,
        phases: Sequence[Phase],
        unit: str,
        costs: Sequence[Costs],
        sizes: Sequence[int],
        keys: Sequence[int],
        names: Sequence[str],
    ) -> None:
        self.unit, self.costs = unit, costs
        self._starts = [start for start, _ in phases]
        totals = [sum(map(Fraction, weights)) for _, weights in phases]
        self._shares = [
            [Fraction(weights[source]) / total for (_, weights), total in zip(phases, totals, strict=True)]
            for source in range(len(costs))
        ]
        self.keys = [key64(key, _STAGE) for key in keys]
        self._lines: dict[tuple[int, int], _Line] = {}
        self.means: list[int] = []
        for name, shares, table, size in zip(names, self._shares, costs, sizes, strict=True):
            total = table.total(unit)
            if not total and any(shares):
                raise ConfigError(
                    f"weight_unit: {unit}: the samples of {name} cost no {unit}, so no number of them is a share; "
                    "leave it out, or give it weight 0"
                )
            self.means.append(max(1, total // size))

    def line(self, source: int, num_lanes: int) -> _Line:
        """What a source is due in each of `num_lanes` lanes."""
        name = source, num_lanes
        if name not in self._lines:
            self._lines[name] = self._line(source, num_lanes)
        return self._lines[name]

    def _line(self, source: int, num_lanes: int) -> _Line:
        found = _Line([], [], [], None)
        position, time = 0, 0
        for number, share in enumerate(self._shares[source]):
            if share:
                found.positions.append(position)
                found.times.append(time)
                found.inverses.append((share.denominator << _WEIGHT_BITS) // share.numerator)
            if number + 1 == len(self._starts):
                return found if share else found._replace(end=position)
            after = (self._starts[number + 1] << _TIME_BITS) // num_lanes
            position, time = position + _due(after - time, share), after
        raise AssertionError("there are no phases")

    def due(self, source: int, cost: int, num_lanes: int) -> int:
        """The cost that is due of a source when a lane has drawn `cost` in all, rounded down."""
        now, total = cost << _TIME_BITS, 0
        begins = [(start << _TIME_BITS) // num_lanes for start in self._starts]
        for share, begin, end in zip(self._shares[source], begins, [*begins[1:], now], strict=True):
            total += _due(min(end, now) - begin, share) if begin < now else 0
        return total >> _POSITION_BITS

    def lane(self, lane: int, num_lanes: int, state: Any) -> "LaneDraws":
        """See `SampleBlend`: a state is what the lane has drawn of each source that it has drawn from."""
        return LaneDraws(self, lane, num_lanes, state or {})

    def resharded(self, states: Sequence[Mapping[str, int]], lane: int, num_lanes: int) -> dict[str, int]:
        """The share of `lane` in what the old lanes have drawn: together the new ones have drawn exactly as much, so
        the job goes on towards its weights."""
        totals: dict[str, int] = {}
        for of_lane in states:
            for source, cost in of_lane.items():
                totals[source] = totals.get(source, 0) + cost
        return {
            source: (lane + 1) * total // num_lanes - lane * total // num_lanes
            for source, total in sorted(totals.items())
        }

    def migrated(self, state: Any, after: "CostBlend", numbers: Sequence[int], num_lanes: int) -> dict[str, int]:
        """What a lane that has drawn `state` has drawn in the blend `after`: what is due there by now, and what each
        source was ahead here, or behind; at least 0."""
        drawn: Mapping[str, int] = state or {}
        cost, before = sum(drawn.values()), dict(zip(numbers, range(len(numbers)), strict=True))
        found = {}
        for source in range(len(after.costs)):
            old = before.get(source)
            was = 0 if old is None else drawn.get(str(old), 0) - self.due(old, cost, num_lanes)
            now = max(0, was + after.due(source, cost, num_lanes))
            if now or (old is not None and str(old) in drawn):
                found[str(source)] = now
        return found


def _due(time: int, share: Fraction) -> int:
    """The position that is due after `time`."""
    return time * share.numerator // (share.denominator << _WEIGHT_BITS)


class LaneDraws:
    """The draws of one lane that has drawn the costs `drawn`, by source: which source is next.

    The first draw of a source is at the lane's own part of its mean cost. A source whose next sample is not known yet
    waits where it could come at the earliest; `put` says then what comes.
    """

    def __init__(self, blend: CostBlend, lane: int, num_lanes: int, drawn: Mapping[str, int]) -> None:
        self.drawn = dict(drawn)
        self._blend = blend
        self._lines = [blend.line(source, num_lanes) for source in range(len(blend.costs))]
        self._offsets = [(key + lane * key64(key)) & MASK for key in blend.keys]
        self._known: dict[int, list[tuple[int | None, int]]] = {}
        """(time, cost) of the next samples of a source, in reverse order."""
        self._heap: list[tuple[int, int]] = []
        for source, (offset, mean) in enumerate(zip(self._offsets, blend.means, strict=True)):
            cost = self.drawn.get(str(source))
            position = (offset >> (64 - _POSITION_BITS)) * mean if cost is None else cost << _POSITION_BITS
            time = self._lines[source].time(position)
            if time is not None:
                self._heap.append((time, source))
        heapq.heapify(self._heap)

    def first(self) -> int | None:
        """The source that is drawn next, or that must be `put` first if its samples are not known; None at the end."""
        return self._heap[0][1] if self._heap else None

    def put(self, source: int, indices: Ints, is_whole: "NDArray[np.bool_]") -> None:
        """Note the next samples of the `first` source; none if it has ended. Those that are not whole cost nothing."""
        if not len(indices):
            heapq.heappop(self._heap)
            return
        name, mean = str(source), self._blend.means[source]
        costs = np.where(is_whole, self._blend.costs[source].take(indices, self._blend.unit), 0)
        before = self.drawn.get(name, 0) + np.cumsum(costs) - costs
        spread = (uniform64(before, self._blend.keys[source]) + np.uint64(self._offsets[source])) >> np.uint64(
            64 - _POSITION_BITS
        )
        half = 1 << (_POSITION_BITS - 1)
        within = (costs * half + (spread.astype(np.int64) - half) * np.minimum(costs, mean)).tolist()
        time = self._lines[source].time
        times = [time((cost << _POSITION_BITS) + more) for cost, more in zip(before.tolist(), within, strict=True)]
        if name not in self.drawn:
            times[0] = self._heap[0][0]
        self._known[source] = [*zip(times, costs.tolist(), strict=True)][::-1]
        self._wait(source, times[0])

    def state(self) -> dict[str, int]:
        """The cost drawn of each source, by its number."""
        return dict(self.drawn)

    def note_drawn(self) -> None:
        """Note that the next sample of the `first` source was drawn."""
        source = self._heap[0][1]
        name, known = str(source), self._known[source]
        cost = self.drawn[name] = self.drawn.get(name, 0) + known.pop()[1]
        self._wait(source, known[-1][0] if known else self._lines[source].time(cost << _POSITION_BITS))

    def _wait(self, source: int, time: int | None) -> None:
        """Let the `first` source wait until `time`."""
        if time is None:
            heapq.heappop(self._heap)
        else:
            heapq.heapreplace(self._heap, (time, source))
