"""The sample loader: sample number i of a source, read, decoded and put into its class.

Enters: a running index. Leaves: a `Sample` with the fields that the field map gives, or a `CrudeSample` with all parts.
Guarantees: only the parts that are needed are read and decoded; a sample is a function of the data and the index alone.
Values are put in as they were decoded: a list of JSON stays a list. The caller, who knows epoch and part, sets
`__restore_key__`. A source with a maker gets its samples from that.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bridge_data.decode.formats import PLAIN, Handler
from bridge_data.decode.sample_decoder import SampleDecoder, decode_part
from bridge_data.errors import FatalSampleError, SampleError
from bridge_data.plan import Source
from bridge_data.plan.jsonl_source import is_jsonl
from bridge_data.samples import CrudeSample, Sample, SourceInfo
from bridge_data.shards import ByteRange, RawSample
from bridge_data.shards.blocks import BlockBudget, Cut, OpenBlocks


class SampleLoader:
    """Loads the samples of `source`; without a decoder, parts stay bytes, but for lines of JSONL, which are JSON under
    any decoder. Files are opened when they are needed.

    Raises:
        ConfigError: if a part that the field map needs is of a format whose package is not installed.
    """

    def __init__(self, source: Source, decoder: SampleDecoder | None) -> None:
        self._source, self._decoder = source, SampleDecoder() if is_jsonl(source.path) else decoder
        self._class = source.sample_class
        self._crude = issubclass(source.sample_class, CrudeSample)
        self._fields = tuple((name, access.get) for name, access in source.field_map.items())
        self._subflavors = dict(source.subflavors)
        self._reader = source.records.reader()
        self._handlers: dict[str, Handler | None] = {}
        self._whole_parts: tuple[tuple[str, str, Handler], ...] = ()
        self._make: Callable[[dict[str, Any]], Any] | None = None
        if source.maker is not None:
            self._make = source.maker.maker(self._decoder, self._subflavors)
        elif not self._crude:
            for access in source.field_map.values():
                for part in access.parts:
                    self._handlers[part] = self._handler(part)
            self._whole_parts = _whole_parts(source, self._handlers)

    @property
    def is_plain(self) -> bool:
        """Whether all parts become text, numbers, JSON or bytes."""
        own = self._crude or self._make is not None
        return not own and all(handler is None or handler in PLAIN for handler in self._handlers.values())

    def load(self, index: int) -> Sample | CrudeSample:
        """Sample `index`, 0 <= index < `source.num_samples`.

        Raises:
            DatasetError: if it cannot be read. SampleError: if it cannot be decoded, or lacks a field.
        """
        return self.build(self.read(index), index)

    def read(self, index: int) -> RawSample:
        """Sample `index` as it is stored, with the parts that are needed.

        Raises:
            DatasetError: if it cannot be read.
        """
        return self._reader.read(index, self._source.parts)

    def places(self, index: int) -> Sequence[ByteRange]:
        """Where the bytes lie that `read` will read.

        Raises:
            DatasetError: if the index cannot be read.
        """
        return self._reader.byte_ranges(index, self._source.parts)

    def read_in_blocks(self, cut: Cut | None, budget: BlockBudget) -> None:
        """Read neighbours together from now on, in the blocks of `cut`, within `budget`; None: singly."""
        self._reader.read_in_blocks(None if cut is None else OpenBlocks(cut, self._source.parts, budget))

    def block(self, index: int) -> range | None:
        """The numbers of the samples of the block that sample `index` is in; None if samples are read singly."""
        return self._reader.block(index)

    def block_place(self, block: range) -> ByteRange | None:
        """What `read` reads when it comes to the first sample of `block`; None if it reads each of them by itself.

        Raises:
            DatasetError: if the index cannot be read.
        """
        return self._reader.block_bytes(block)

    def stream(self, indices: Iterable[int]) -> Iterator[Sample | CrudeSample] | None:
        """Samples, one after the other, as `load` loads each; None where that would cost no less: it does where each
        field is a part of its own."""
        return self._streamed(indices) if self._whole_parts else None

    def _streamed(self, indices: Iterable[int]) -> Iterator[Sample | CrudeSample]:
        # All in one place, without a call but of the decoders, since calls are what small samples cost.
        read, wanted = self._reader.read, self._source.parts
        whole, make, subflavors = self._whole_parts, self._class, self._subflavors
        num_whole = len(whole)
        for index in indices:
            raw = read(index, wanted)
            parts, shard, key = raw.parts, raw.shard_name, raw.key
            if len(parts) != num_whole or type(raw) is not RawSample:
                yield self.build(raw, index)
                continue
            fields = {}
            for field, part, decode in whole:
                fields[field] = decode(parts[part])
            files = (f"{key}.{part}",) if num_whole == 1 else tuple([f"{key}.{part}" for part in parts])
            source = SourceInfo(dataset_path=raw.dataset_path, index=raw.index, shard_name=shard, file_names=files)
            yield make(__key__=f"{shard}/{key}", __subflavors__=subflavors, __sources__=(source,), **fields)

    def build(self, raw: RawSample, index: int) -> Sample | CrudeSample:
        """The sample of what was read of it under number `index`.

        Raises:
            SampleError: if it cannot be decoded, or lacks a field. FatalSampleError: if the maker makes no sample.
        """
        if self._make is not None:
            return self._made(self._make, raw)
        key = raw.full_key
        sources = (raw.source_info(),)
        parts: dict[str, Any] = {"__key__": key}
        for part, content in raw.parts.items():
            try:
                handler = self._handlers[part]
            except KeyError:
                handler = self._handlers[part] = self._handler(part)
            parts[part] = content if handler is None else decode_part(handler, content, raw.origin, part)
        if self._crude:
            parts.update(__shard__=raw.shard_name, __subflavors__=self._subflavors, __sources__=sources)
            return self._class(parts)
        try:
            fields = {name: get(parts) for name, get in self._fields}
        except SampleError:
            raise self._complaint(index, parts) from None
        return self._class(__key__=key, __subflavors__=self._subflavors, __sources__=sources, **fields)

    def _made(self, make: Callable[[dict[str, Any]], Any], raw: RawSample) -> Sample | CrudeSample:
        """The sample that the source's maker makes."""
        provenance = {"__key__": raw.full_key, "__shard__": raw.shard_name, "__restore_key__": ()}
        try:
            sample = make({**provenance, "__sources__": (raw.source_info(),), **raw.parts})
        except Exception as error:
            error.add_note(f"in the sample loader of {self._source.config_file}, sample {raw.full_key}")
            raise
        if not isinstance(sample, (Sample, CrudeSample)):
            raise FatalSampleError(
                f"{self._source.config_file}: load_sample returned {sample!r} for sample {raw.full_key}: expected a "
                "Sample; raise SkipSample to leave one out"
            )
        return sample

    def _complaint(self, index: int, parts: dict[str, Any]) -> SampleError:
        """What is wrong with sample `index`, of which `parts` were read, in view of all its parts."""
        present = dict.fromkeys(self._reader.read(index).parts) | parts
        for _, get in self._fields:
            try:
                get(present)
            except SampleError as error:
                return SampleError(f"{error}. Mend the data, or the field map in {self._source.config_file}.")
        raise AssertionError("the field map failed without a reason")

    def _handler(self, part: str) -> Handler | None:
        return None if self._decoder is None else self._decoder.handler(part)


def _whole_parts(source: Source, handlers: Mapping[str, Handler | None]) -> tuple[tuple[str, str, Handler], ...]:
    """(field, part, its handler) of a source whose fields are each one part, no two the same; none of another."""
    accesses = source.field_map.items()
    pairs = [(field, access.part) for field, access in accesses if not access.path and not access.alternatives]
    if len({part for _, part in pairs}) < len(accesses):
        return ()
    return tuple((field, part, handlers[part] or _as_it_is) for field, part in pairs)


def _as_it_is(content: bytes) -> bytes:
    return content
