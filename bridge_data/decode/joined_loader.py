"""The loader of a joined source: a sample of each member, put into one by the joiner.

Enters: a running index. Leaves: what the joiner made of the members' samples, each built as it would be without a join.
Guarantee: its sources are those of all members. The caller sets `__restore_key__`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from bridge_data.decode.sample_decoder import SampleDecoder
from bridge_data.decode.sample_loader import SampleLoader
from bridge_data.errors import FatalSampleError
from bridge_data.plan import Source
from bridge_data.samples import CrudeSample, Sample
from bridge_data.samples.collation import flat_sources
from bridge_data.shards import ByteRange, RawSample
from bridge_data.shards.blocks import BlockBudget, Cut, OpenBlocks
from bridge_data.shards.joined_records import JoinedRawSample


class Loader(Protocol):
    """Loads the samples of a source."""

    @property
    def is_plain(self) -> bool:
        """Whether samples are made of text, numbers and bytes alone, by nobody else's code."""

    def read(self, index: int) -> RawSample:
        """Sample `index` of the source as it is stored.

        Raises:
            DatasetError: if it cannot be read.
        """

    def build(self, raw: RawSample, index: int) -> Sample | CrudeSample:
        """The sample of what was read of it under number `index`.

        Raises:
            SampleError: if it cannot be decoded, or lacks a field.
        """

    def places(self, index: int) -> Sequence[ByteRange]:
        """Where the bytes lie that `read` will read.

        Raises:
            DatasetError: if the index cannot be read.
        """

    def read_in_blocks(self, cut: Cut | None, budget: BlockBudget) -> None:
        """Read neighbours together from now on, in the blocks of `cut`, within `budget`; None: singly."""

    def block(self, index: int) -> range | None:
        """The numbers of the samples of the block that sample `index` is in; None if samples are read singly."""

    def block_place(self, block: range) -> ByteRange | None:
        """What `read` reads when it comes to the first sample of `block`; None if it reads each of them by itself.

        Raises:
            DatasetError: if the index cannot be read.
        """

    def stream(self, indices: Iterable[int]) -> Iterator[Sample | CrudeSample] | None:
        """Samples, one after the other, read and built; None where that would cost no less than doing so with each. It
        ends with the first that fails, by what that raises, and takes no more of `indices` than that."""


def open_loader(source: Source, decoder: SampleDecoder | None) -> Loader:
    """The loader for `source`; see `SampleLoader`."""
    return SampleLoader(source, decoder) if source.joined is None else JoinedLoader(source, decoder)


class JoinedLoader:
    """Loads the samples of a joined source."""

    def __init__(self, source: Source, decoder: SampleDecoder | None) -> None:
        assert source.joined is not None
        self._source, self._join = source, source.joined
        self._members = [SampleLoader(member, decoder) for member in source.joined.members]
        self._reader = source.records.reader()

    @property
    def is_plain(self) -> bool:
        """Never: joiners are the user's."""
        return False

    def load(self, index: int) -> Sample | CrudeSample:
        """Sample `index`, 0 <= index < `source.num_samples`.

        Raises:
            DatasetError: if one of its samples cannot be read. SampleError: if one cannot be decoded, or lacks a field.
            FatalSampleError: if the joiner returns no sample.
        """
        return self.build(self.read(index), index)

    def read(self, index: int) -> RawSample:
        """The samples of all members, as they are stored.

        Raises:
            DatasetError: if one of them cannot be read.
        """
        return self._reader.read(index)

    def places(self, index: int) -> Sequence[ByteRange]:
        """Where the bytes of all members lie.

        Raises:
            DatasetError: if an index cannot be read.
        """
        return self._reader.byte_ranges(index)

    def read_in_blocks(self, cut: Cut | None, budget: BlockBudget) -> None:
        """Read the members' samples together, of neighbours in the join, in the blocks of `cut`; None: singly."""
        self._reader.read_in_blocks(None if cut is None else OpenBlocks(cut, None, budget))

    def block(self, index: int) -> range | None:
        """The numbers of the samples of the block that sample `index` is in; None if samples are read singly."""
        return self._reader.block(index)

    def block_place(self, block: range) -> ByteRange | None:
        """See `Loader`."""
        return self._reader.block_bytes(block)

    def stream(self, indices: Iterable[int]) -> None:
        """None: joined samples would cost no less."""

    def build(self, raw: RawSample, index: int) -> Sample | CrudeSample:
        """What the joiner makes of the samples of all members, read under number `index`.

        Raises:
            SampleError: if one cannot be decoded, or lacks a field. FatalSampleError: if the joiner returns no sample.
        """
        assert isinstance(raw, JoinedRawSample)
        samples = [
            None if member is None else loader.build(member, member.index)
            for loader, member in zip(self._members, raw.members, strict=True)
        ]
        try:
            joined = self._joined(samples)
        except Exception as error:
            error.add_note(f"in the joiner of {self._source.config_file}, sample {raw.full_key}")
            raise
        sources = flat_sources([[member.source_info()] for member in raw.members if member is not None])
        if isinstance(joined, CrudeSample):
            joined["__sources__"] = sources
        elif isinstance(joined, Sample):
            joined.__sources__ = sources
        else:
            raise FatalSampleError(
                f"the joiner of {self._source.config_file} returned {joined!r} for sample {raw.full_key}: expected a "
                "Sample; raise SkipSample to leave one out"
            )
        return joined

    def _joined(self, samples: list[Sample | CrudeSample | None]) -> object:
        if self._join.names is None:
            return self._join.joiner(*samples)
        return self._join.joiner(**dict(zip(self._join.names, samples, strict=True)))
