"""What may go around the maker of a lane: the seam for features that count samples, keep them, make them before the
lane needs them, or have them made by others. A run without such a feature uses nothing of this.

A `MakerWrapper` gets a maker and a `LaneView`, and returns a maker. `UpcomingSamples` says what the lane loads next,
and an `AheadMaker` makes that before the lane asks for it. Whoever keeps a sample, or makes it for another lane, keeps
with it what was counted for it: a `SampleOutcome`, which `LaneView.recorded` returns and `LaneView.adopted` takes. So a
lane counts and skips the same, whoever makes its samples.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from bridge_data.counts import COUNTS
from bridge_data.lanes.maker import EncodingMaker, Made, Maker, Outputs, SampleTimes, Watch, mark, outputs_of
from bridge_data.order import ALL_OUTPUTS, SampleRef
from bridge_data.samples.arena import no_arena
from bridge_data.task.hooks import HookNotes, Hooks


class SampleOutcome(NamedTuple):
    """What the work on one sample made, and what is counted for it, in whichever process it ran."""

    outputs: list[tuple[int, Any]]
    notes: HookNotes
    counts: tuple[int, ...]
    """The numbers of `Counters.saved`, without the time."""
    took_ns: int

    @property
    def made(self) -> Made:
        """The sample, or its outputs."""
        return self.outputs[0][1] if len(self.outputs) == 1 and not self.outputs[0][0] else Outputs(self.outputs)


class UpcomingSamples:
    """A view of the samples that a lane loads next, in the order in which it will ask for them. Where hooks skip
    samples, or packs are chosen from a buffer, it is a guess: what is made by it may be needed later, or by nobody.

    `upcoming(num_units, most)` returns up to `most` of those of its next units, of which a batch has `batch_size`.
    """

    def __init__(self, upcoming: Callable[[int, int], Sequence[SampleRef]], batch_size: int) -> None:
        self._upcoming, self._size = upcoming, batch_size
        self._taken: set[SampleRef] = set()
        """What `take` has returned and the lane has not come to."""

    def take(self, num_batches: int, most: int) -> list[SampleRef]:
        """Up to `most` of the samples that the next `num_batches` batches load, in order, without those that it has
        returned before."""
        found = self._upcoming(num_batches * self._size, most + len(self._taken))
        self._taken.intersection_update(found)
        new = [*itertools.islice((ref for ref in _whole(found) if ref not in self._taken), most)]
        self._taken.update(new)
        return new

    def peek(self, most: int) -> list[SampleRef]:
        """Up to `most` of the next samples, in order."""
        return _whole(self._upcoming(most, most))


def _whole(refs: Sequence[SampleRef]) -> list[SampleRef]:
    """Without outputs of samples, which are left after a reshard: only its own lane makes one."""
    return [ref for ref in refs if ref.output == ALL_OUTPUTS]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LaneView:
    """What a wrapper may know and do of the lane whose samples it makes."""

    number: int
    """The number of the lane; -1 in an `AheadMaker`, which is for samples of any."""
    num_lanes: int
    """The lanes of the job; 0 in an `AheadMaker`."""
    times: SampleTimes
    new_upcoming: Callable[[], UpcomingSamples] | None
    """Makes another view of what the lane loads next; None for an `AheadMaker`."""
    new_ahead_maker: "Callable[[Sequence[MakerWrapper]], AheadMaker] | None"
    """Makes an `AheadMaker` inside these wrappers; None for an `AheadMaker`."""
    inside: "Sequence[MakerWrapper]" = ()
    """The wrappers inside the one that is called."""
    maker: EncodingMaker
    """What does the work, in the end."""

    @property
    def hooks(self) -> Hooks:
        """The hooks of the lane, which count its skips."""
        return self.maker.hooks

    @property
    def watch(self) -> Watch | None:
        """To be called before a wrapper waits for a sample, or has it made."""
        return self.maker.watch

    def may_come_from_others(self, ref: SampleRef) -> bool:
        """Whether it is worth asking others for a sample, and allowed: not for one output of it, nor while an observer
        is to see all work."""
        return ref.output == ALL_OUTPUTS and self.hooks.observer is None and not self.maker.is_quick(ref)

    def recorded(self, maker: Maker, ref: SampleRef) -> SampleOutcome:
        """What `maker`, which wraps that of the lane, makes of a sample, with what is counted for it."""
        began_ns, before = time.perf_counter_ns(), COUNTS.saved()
        (made,), notes = self.hooks.recorded(lambda: [*maker.make((ref,))])
        *counts, store_ns = (now - then for now, then in zip(COUNTS.saved(), before, strict=True))
        took_ns = time.perf_counter_ns() - began_ns - store_ns
        return SampleOutcome([*outputs_of(made)], notes, tuple(counts), took_ns)

    def adopted(self, ref: SampleRef, outcome: SampleOutcome) -> Made:
        """What another has made of a sample, after counting it as if it had been made here."""
        self.hooks.adopt(outcome.notes, self._passed(outcome))
        COUNTS.add(outcome.counts)
        self.maker.release(ref)
        for number, sample in outcome.outputs:
            mark(sample, self.maker.ids.restore_key(ref, number), add=True)
        return outcome.made

    def _passed(self, outcome: SampleOutcome) -> Iterator[str]:
        """The stages that did not fail: up to the one that skipped the sample."""
        last = None if outcome.outputs else outcome.notes.last_skip[0]
        for stage in ("decode", "cook_crude_sample", *self.maker.stages):
            yield stage
            if stage == last:
                return


MakerWrapper: TypeAlias = Callable[[Maker, LaneView], Maker]
"""Makes a maker that does something else, or more, from one that it may ask. It is called when a lane is opened, in the
process that runs it. What it counts in `COUNTS.others` comes to the trainer, as `LoaderMetrics.others`.

    class Counting:
        def __init__(self, inner: Maker, lane: LaneView) -> None:
            self.inner = inner

        def make(self, refs: Sequence[SampleRef]) -> Iterable[Made]:
            for ref, made in zip(refs, self.inner.make(refs), strict=True):
                COUNTS.others[f"samples of source {ref.source}"] += len(outputs_of(made))
                yield made

    dataset = dataset.changed(wrappers=(*dataset.wrappers, Counting))
"""


@runtime_checkable
class KeepsSamples(Protocol):
    """A `MakerWrapper` that has some samples without a read, which an `Announcer` therefore does not announce: an
    object that is called to wrap a maker, not a class."""

    def has_sample(self, ref: SampleRef) -> bool:
        """Whether it has a sample now."""


def wrapped(wrappers: Sequence[MakerWrapper], lane: LaneView) -> Maker:
    """The maker of a lane in all `wrappers`, the first innermost."""
    maker: Maker = lane.maker
    for number, wrap in enumerate(wrappers):
        maker = wrap(maker, dataclasses.replace(lane, inside=wrappers[:number]))
    return maker


class AheadMaker:
    """Makes samples before their lane needs them, or for a lane of another process: by `maker`, which raises failures,
    inside some `wrappers`."""

    def __init__(self, maker: EncodingMaker, wrappers: Sequence[MakerWrapper]) -> None:
        self._view = LaneView(
            number=-1, num_lanes=0, times=SampleTimes(), new_upcoming=None, new_ahead_maker=None, maker=maker
        )
        self._maker = wrapped(wrappers, self._view)

    def made(self, ref: SampleRef) -> SampleOutcome | None:
        """The outcome of a sample, counted nowhere but in `COUNTS.others`; None if it fails, or a plain function turns
        out to return a generator: the lane is to make it in its order."""
        counts = COUNTS.saved()
        try:
            with no_arena(), self._view.hooks:
                outcome = self._view.recorded(self._maker, ref)
            return None if outcome.notes.found_generator else outcome  # which changes how its lane counts batches
        except (Exception, SystemExit):
            return None
        finally:
            COUNTS.restore(counts)
