"""An open medium: its streams, where the packets of each one are, and reading from any of them on.

Enters: a binary file. Leaves: packets in decoding order. Guarantees: nothing but that file is ever opened, whatever
playlist it may hold; no thread is started; what FFmpeg cannot read is a `SampleError`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bridge_data.errors import ConfigError, SampleError

if TYPE_CHECKING:
    from av import Packet
    from av.container import InputContainer

UNKNOWN = np.iinfo(np.int64).min
"""A time that the container does not tell."""

_NOTHING_ELSE = {"protocol_whitelist": "none"}


def import_av() -> Any:
    """The module `av`.

    Raises:
        ConfigError: if PyAV is not installed.
    """
    try:
        return importlib.import_module("av")
    except ImportError as error:
        raise ConfigError(f'video and audio need PyAV ({error}): pip install "bridge-data[av]"') from error


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Failures of FFmpeg are a `SampleError` that says what was being read."""
    try:
        yield
    except import_av().error.FFmpegError as error:
        raise SampleError(f"{what} cannot be read: {error.strerror or error}. The medium is damaged") from error


@dataclasses.dataclass(frozen=True, slots=True)
class Packets:
    """The packets of a stream in decoding order: times and durations in ticks of its time base, and their flags."""

    pts: NDArray[np.int64]
    dts: NDArray[np.int64]
    duration: NDArray[np.int64]
    is_key: NDArray[np.bool_]
    is_discarded: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.pts)


def open_container(file: BinaryIO) -> InputContainer:
    """A container over `file`, from its beginning, whose decoders start no threads.

    Raises:
        SampleError: if it is no medium that FFmpeg knows.
    """
    av = import_av()
    file.seek(0)
    with reading("the medium"):
        container: InputContainer = av.open(file, "r", options=_NOTHING_ELSE)
    if not container.streams:
        container.close()
        raise SampleError("the medium cannot be read: it has no stream. The medium is damaged, or cut off")
    for stream in container.streams:
        if stream.type in ("video", "audio") and stream.codec_context is not None:
            stream.codec_context.thread_type, stream.codec_context.thread_count = "NONE", 1
    return container


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """What the header tells of a stream: times in ticks of `time_base` seconds, None for what it does not tell."""

    kind: str
    time_base: Fraction
    start: int | None
    duration: int | None
    rate: Fraction | None
    """Frames a second, of video."""
    size: tuple[int, int]
    """(width, height), of video."""
    sample_rate: int
    channels: int
    keeps_times: bool
    """Whether packets have the same times after seeking. FFmpeg times those of Vorbis in Ogg from the page on that it
    begins at, and not always alike."""

    @property
    def duration_s(self) -> float | None:
        """Seconds."""
        return None if self.duration is None else float(self.duration * self.time_base)


def _facts(stream: Any) -> Facts:
    if stream.codec_context is None or stream.time_base is None:
        raise SampleError(f"the medium has a stream of {stream.type} of a codec that FFmpeg cannot decode")
    is_video = stream.type == "video"
    return Facts(
        kind=stream.type,
        time_base=stream.time_base,
        start=stream.start_time,
        duration=stream.duration,
        rate=(stream.average_rate or stream.guessed_rate) if is_video else None,
        size=(stream.width, stream.height) if is_video else (0, 0),
        sample_rate=0 if is_video else stream.sample_rate,
        channels=0 if is_video else stream.channels,
        keeps_times=(stream.container.format.name, stream.codec_context.name) != ("ogg", "vorbis"),
    )


class Medium:
    """An open container over `file`, which is read and sought but not closed; `tracks` has its first video, unless that
    is the cover of music, and its first audio.

    Raises:
        SampleError: if it is no medium that FFmpeg knows.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._container = open_container(file)
        self._is_at_start = True
        self.tracks: dict[str, Track] = {}
        for kind in ("video", "audio"):
            streams = (stream for stream in self._container.streams if stream.type == kind and not _is_cover(stream))
            first = next(streams, None)
            if first is not None:
                self.tracks[kind] = Track(self, first.index, _facts(first))

    @functools.cached_property
    def start(self) -> Fraction:
        """Where its clock begins, in seconds: the start of the earliest of its streams."""
        facts = [track.facts for track in self.tracks.values()]
        return min((fact.start * fact.time_base for fact in facts if fact.start is not None), default=Fraction(0))

    @property
    def container(self) -> InputContainer:
        """The container, which is used up from where it stands."""
        self._is_at_start = False
        return self._container

    def stream(self, index: int) -> Any:
        """A stream of the container that is open now; it must not be used after `rewind`, which frees it."""
        return self._container.streams[index]

    def rewind(self) -> None:
        """Go back to the beginning, by opening anew, as some containers cannot be sought."""
        if not self._is_at_start:
            self.close()
            self._container = open_container(self._file)
            self._is_at_start = True

    def close(self) -> None:
        """Release what FFmpeg holds."""
        self._container.close()


def _is_cover(stream: Any) -> bool:
    """Whether a video stream is a still picture that goes with music."""
    return "attached_pic" in stream.disposition.name if stream.disposition else False


class Track:
    """One stream of a medium."""

    def __init__(self, medium: Medium, index: int, facts: Facts) -> None:
        self._medium, self._index, self.facts = medium, index, facts

    @functools.cached_property
    def packets(self) -> Packets:
        """All packets of the stream, found by reading it once without decoding."""
        rows = [
            (
                UNKNOWN if packet.pts is None else packet.pts,
                UNKNOWN if packet.dts is None else packet.dts,
                packet.duration or 0,
                packet.is_keyframe,
                packet.is_discard,
            )
            for packet in self.read_all()
            if packet.size
        ]
        table = np.array(rows, np.int64).reshape(-1, 5)
        pts, dts, duration, is_key, is_discarded = table.T.copy()
        return Packets(pts, dts, duration, is_key.astype(bool), is_discarded.astype(bool))

    @functools.cached_property
    def number_of(self) -> dict[int, int]:
        """Which packet has which presentation time."""
        return {pts: number for number, pts in enumerate(self.packets.pts.tolist())}

    def read_from(self, number: int) -> tuple[int, Iterator[Any]]:
        """(number of the first packet read, packets): from packet `number` or one before it on, as near as the
        container can seek; at the end an empty packet that flushes the decoder.

        Audio may be cut into other packets after seeking; the first one then begins at or before packet `number`, and
        the number given is that of the last whole packet before.
        """
        pts, dts = int(self.packets.pts[number]), int(self.packets.dts[number])
        container, stream = self._medium.container, self._medium.stream(self._index)
        for time in dict.fromkeys((pts, dts)):
            if time == UNKNOWN:
                continue
            with contextlib.suppress(import_av().error.FFmpegError):
                container.seek(time, stream=stream)
                packets: Any = container.demux(stream)
                first = next(packets)
                landed = self._landed(first, pts)
                if landed is not None and landed <= number:
                    return landed, self._packets(packets, first)
                packets.close()
        return 0, self.read_all()

    def read_all(self) -> Iterator[Any]:
        """All packets from the beginning, then an empty one that flushes the decoder."""
        self._medium.rewind()
        return self._packets(self._medium.container.demux(self._medium.stream(self._index)))

    def _landed(self, packet: Packet, target: int) -> int | None:
        """The number of a packet that was sought; None if that is not known, or beyond the target."""
        if packet.pts is None or not packet.size:
            return None
        number = self.number_of.get(packet.pts)
        if number is None and self.facts.kind == "audio" and packet.pts <= target:
            number = max(0, int(np.searchsorted(self.packets.pts, packet.pts)) - 1)
        return number

    def _packets(self, packets: Any, first: Any = None) -> Iterator[Any]:
        """`first`, then the rest. What PyAV's generator holds is only freed if it is closed, not if it is dropped."""
        with reading(f"the {self.facts.kind}"), contextlib.closing(packets):
            if first is not None:
                yield first
            yield from packets
