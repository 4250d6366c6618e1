"""What is measured while samples are made: how long each takes, and, for an observer, each read.

`TimedMaker` and `ObservedMaker` wrap a maker, and return what it makes. The hooks call an `Observer` themselves; see
`Hooks.run`. A profiler may start at any batch, so whether there is an observer is asked for each block of samples.
"""

import functools
import time
from collections.abc import Iterable, Iterator, Sequence

from bridge_data.data import RawSample
from bridge_data.lanes.maker import EncodingMaker, Made, Maker
from bridge_data.lanes.produced import SampleTimes
from bridge_data.order import SampleRef
from bridge_data.task.observer import Observer


class TimedMaker:
    """Notes in `times` how long `inner` takes for each sample, or for many that it makes at once."""

    def __init__(self, inner: Maker, times: SampleTimes) -> None:
        self._inner, self._times = inner, times

    def make(self, refs: Sequence[SampleRef]) -> Iterable[Made]:
        """See `Maker`."""
        began_ns, times = time.perf_counter_ns(), self._times
        times.num_loaded += len(refs)
        made = self._inner.make(refs)
        if made.__class__ is not list:
            return self._each(refs, made, began_ns)
        times.note(refs[0], began_ns)
        return made

    def _each(self, refs: Sequence[SampleRef], made: Iterable[Made], began_ns: int) -> Iterator[Made]:
        note = self._times.note
        for ref, one in zip(refs, made, strict=True):
            began_ns = note(ref, began_ns)
            yield one


class ObservedMaker:
    """Makes samples as `maker` does; while there is an observer, one by one, with each read inside the stage `read`."""

    def __init__(self, maker: EncodingMaker) -> None:
        self._maker = maker

    def make(self, refs: Sequence[SampleRef]) -> Iterable[Made]:
        """See `Maker`."""
        observer = self._maker.hooks.observer
        if observer is None:
            return self._maker.make(refs)
        return self._maker.make_each(refs, functools.partial(_read, self._maker, observer))


def _read(maker: EncodingMaker, observer: Observer, ref: SampleRef) -> RawSample:
    """That of the first sample of a block takes the time of the block."""
    observer.begin("read", maker.names.keys[ref.source])
    try:
        return maker.read(ref)
    finally:
        observer.end()
