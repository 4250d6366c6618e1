"""Building the samples of a join: one sample of each member, combined by the joiner."""

import dataclasses
from collections.abc import Callable
from typing import Any

from bridge_data.data import RawSample
from bridge_data.decode.sample_decoder import SampleDecoder
from bridge_data.decode.source_reader import SingleSourceReader, SourceReader
from bridge_data.errors import FatalSampleError
from bridge_data.plan.source import Source
from bridge_data.plugins.joins.joined_records import JoinedRawSample
from bridge_data.samples import CrudeSample, Sample
from bridge_data.samples.collation import flat_sources


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Join:
    """How samples of several sources are joined: `joiner` gets a sample (or None) of each of `members`, in order, or by
    their `names`."""

    members: tuple[Source, ...]
    names: tuple[str, ...] | None
    joiner: Callable[..., Any]

    def reader(self, source: Source, decoder: SampleDecoder | None, *, bare_keys: bool) -> SourceReader:
        """What reads the joined samples."""
        return JoinedSourceReader(self, source, decoder, bare_keys=bare_keys)

    def __str__(self) -> str:
        return f"joined with {', '.join(member.name for member in self.members[1:])}"


class JoinedSourceReader(SourceReader):
    """Reads the samples of a join: one sample of each member, combined by the joiner."""

    def __init__(self, join: Join, source: Source, decoder: SampleDecoder | None, *, bare_keys: bool = False) -> None:
        super().__init__(source)
        self._join = join
        self._members = [SingleSourceReader(member, decoder, bare_keys=bare_keys) for member in join.members]

    def build(self, raw: RawSample, index: int) -> Sample | CrudeSample:
        assert isinstance(raw, JoinedRawSample)
        samples = [
            None if member is None else reader.build(member, member.index)
            for reader, member in zip(self._members, raw.members, strict=True)
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
