"""Loading many samples of a lane at once, at a lower price, where no hook sees them before they are batched.

Enters: the references of samples that are drawn together. Leaves: the samples, or the parts of each, as they are made
one by one. Guarantee: plain samples that are in memory already are made in one loop, without being watched, as there is
nothing in it that could hang or crash; what fails is tried again by itself, to be reported.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from bridge_data.decode import Loader
from bridge_data.order import SampleRef
from bridge_data.task import Hooks
from bridge_data.task.observer import StageTracer, observed_iterator

Parts: TypeAlias = Sequence[tuple[int, Any]]
"""The parts of a sample, each with its number."""

Watch: TypeAlias = Callable[[SampleRef], None]
"""Is told of each sample before work on it begins."""


class BulkLoading:
    """Loads samples by `loaders`, those of the sources, which have these unique names and 64-bit keys; `one` makes the
    parts of a single sample."""

    def __init__(
        self,
        loaders: Sequence[Loader],
        names: Sequence[str],
        keys: Sequence[int],
        hooks: Hooks,
        one: Callable[[SampleRef], Parts],
    ) -> None:
        self._loaders, self._names, self._keys, self._hooks, self._one = loaders, names, keys, hooks, one

    def held(self, refs: Sequence[SampleRef]) -> Sequence[Any | None]:
        """Of each reference the sample, if it is plain and in memory; None: it is not, or fails."""
        samples: list[Any | None] = [None] * len(refs)
        if not refs or self._hooks.observer is not None:
            return samples
        sources, epochs, indices, parts = zip(*refs, strict=True)
        if max(parts) > 0:
            return samples
        if len(set(sources)) == 1:
            return self._taken(sources[0], epochs, indices) or samples
        places: dict[int, list[int]] = collections.defaultdict(list)
        for place, source in enumerate(sources):
            places[source].append(place)
        for source, own in places.items():
            found = self._taken(source, [epochs[place] for place in own], [indices[place] for place in own])
            for place, sample in zip(own, found, strict=False):
                samples[place] = sample
        return samples

    def _taken(self, source: int, epochs: Sequence[int], indices: Sequence[int]) -> Sequence[Any | None]:
        """The same of one source; empty if it never has any."""
        return self._loaders[source].take_held(indices, self._names[source], epochs)

    def each(self, refs: Sequence[SampleRef], watch: Watch | None) -> Iterator[Parts]:
        """The parts of each sample. `watch` is called before."""
        indices = self._only_loaded(refs)
        streams: dict[int, Iterator[Any] | None] = {}
        for ref in refs:
            if watch is not None:
                watch(ref)
            source, epoch, index, part = ref
            if part > 0:
                yield self._one(ref)
                continue
            if source not in streams:
                streams[source] = self._stream(source, indices[source])
            stream = streams[source]
            if stream is None:
                yield self._one(ref)
                continue
            self._hooks.sample = self._keys[source], epoch, index, 0
            try:
                sample = next(stream)
            except Exception:
                del streams[source]  # it is over, but not the indices; the sample is tried by itself, to be reported
                yield self._one(ref)
                continue
            if self._hooks.failures:
                self._hooks.succeed("decode")
            sample.__restore_key__ = self._names[source], epoch, index, 0
            yield ((0, sample),)

    def _stream(self, source: int, indices: Iterator[int]) -> Iterator[Any] | None:
        observer = self._hooks.observer  # a tracer tells reading and decoding apart, so samples come one by one
        stream = None if isinstance(observer, StageTracer) else self._loaders[source].stream(indices)
        if stream is None or observer is None:
            return stream
        return observed_iterator(stream, observer, "decode", self._keys[source])

    def _only_loaded(self, refs: Sequence[SampleRef]) -> dict[int, Iterator[int]]:
        """By source, the samples of it that are whole, in order."""
        indices: dict[int, list[int]] = collections.defaultdict(list)
        for source, _, index, part in refs:
            if part <= 0:
                indices[source].append(index)
        return {source: iter(numbers) for source, numbers in indices.items()}
