"""Media containers: the video and audio tracks of a file, the index of their packets, and reading from any packet on.

Reads a binary file. Returns packets in decoding order. Opens no other file, even if a playlist names one, and starts no
thread. Raises `SampleError` for a file that FFmpeg cannot read.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import functools
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bridge_data.errors import SampleError
from bridge_data.extensions import needed_package
from bridge_data.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from av import Packet
    from av.container import InputContainer

UNKNOWN = np.iinfo(np.int64).min
"""A time that the container does not state."""

_OPEN_NO_FILES = {"protocol_whitelist": "none"}


def import_av() -> Any:
    return needed_package("av", "decoding video or audio")


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Convert errors of FFmpeg to a `SampleError` that says what was being read."""
    try:
        yield
    except import_av().error.FFmpegError as error:
        raise SampleError(f"{what} cannot be read: {error.strerror or error}. The medium is damaged") from error


def frames_of(packet: Any) -> list[Any]:
    """The frames of a packet.

    Raises:
        FFmpegError: if it cannot be decoded.
    """
    try:
        return list(packet.decode())
    except import_av().error.FFmpegError:
        raise
    except ValueError as error:  # PyAV 19 has no codec left once it could not be opened, and says so in its own words
        raise import_av().error.ArgumentError(errno.EINVAL, str(error)) from error


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


def open_container(file: BinaryIO, limits: Limits = DEFAULT_LIMITS) -> InputContainer:
    """Open `file` from its start, with single-threaded decoders, which refuse frames of more pixels than `limits`."""
    av = import_av()
    file.seek(0)
    is_strict = int(av.__version__.partition(".")[0]) < 19  # it rejects tags that are not UTF-8 by default
    tags: dict[str, Any] = {"metadata_errors": "replace"} if is_strict else {}
    with reading("the medium"):
        container: InputContainer = av.open(file, "r", options=_OPEN_NO_FILES, **tags)
    if not container.streams:
        container.close()
        raise SampleError("the medium cannot be read: it has no stream. The medium is damaged, or cut off")
    for stream in container.streams:
        if stream.type in ("video", "audio") and stream.codec_context is not None:
            stream.codec_context.thread_type, stream.codec_context.thread_count = "NONE", 1
            stream.codec_context.options = {"max_pixels": str(limits.max_image_pixels)}
    return container


@dataclasses.dataclass(frozen=True, slots=True)
class TrackHeader:
    """What the container's header says about a stream; times in ticks of `time_base` seconds, None if not stated."""

    kind: str
    time_base: Fraction
    start: int | None
    duration: int | None
    rate: Fraction | None
    """Video frames per second."""
    size: tuple[int, int]
    """Video (width, height)."""
    sample_rate: int
    channels: int
    sample_bytes: int
    """Bytes of a sample of a channel, as the decoder gives it."""
    keeps_times: bool
    """Whether packets have the same timestamps after seeking. For Vorbis in Ogg, FFmpeg computes them from the page at
    which it starts, not always consistently."""

    @property
    def duration_s(self) -> float | None:
        """Duration in seconds."""
        return None if self.duration is None else float(self.duration * self.time_base)


def _header(stream: Any) -> TrackHeader:
    if stream.codec_context is None or stream.time_base is None:
        raise SampleError(f"the medium has a stream of {stream.type} of a codec that FFmpeg cannot decode")
    is_video = stream.type == "video"
    return TrackHeader(
        kind=stream.type,
        time_base=stream.time_base,
        start=stream.start_time,
        duration=stream.duration,
        rate=(stream.average_rate or stream.guessed_rate) if is_video else None,
        size=(stream.width, stream.height) if is_video else (0, 0),
        sample_rate=0 if is_video else stream.sample_rate,
        channels=0 if is_video else stream.channels,
        sample_bytes=0 if is_video or stream.format is None else stream.format.bytes,
        keeps_times=(stream.container.format.name, stream.codec_context.name) != ("ogg", "vorbis"),
    )


class Medium:
    """An open container; `tracks` has its first video stream (cover pictures of music do not count) and first audio.

    `file` must be seekable, and is not closed.
    """

    def __init__(self, file: BinaryIO, limits: Limits = DEFAULT_LIMITS) -> None:
        self._file, self._limits = file, limits
        self._container = open_container(file, limits)
        self._is_at_start = True
        self.tracks: dict[str, Track] = {}
        for kind in ("video", "audio"):
            streams = (stream for stream in self._container.streams if stream.type == kind and not _is_cover(stream))
            first = next(streams, None)
            if first is not None:
                self.tracks[kind] = Track(self, first.index, _header(first))

    @functools.cached_property
    def start(self) -> Fraction:
        """The start of the earliest track, in seconds of the container's clock."""
        headers = [track.header for track in self.tracks.values()]
        return min(
            (header.start * header.time_base for header in headers if header.start is not None), default=Fraction(0)
        )

    @property
    def container(self) -> InputContainer:
        """The container, for reading or seeking."""
        self._is_at_start = False
        return self._container

    def stream(self, index: int) -> Any:
        """A stream of the currently open container; `rewind` frees it."""
        return self._container.streams[index]

    def rewind(self) -> None:
        """Go back to the start by reopening, as some containers cannot seek."""
        if not self._is_at_start:
            self.close()
            self._container = open_container(self._file, self._limits)
            self._is_at_start = True

    def close(self) -> None:
        """Free FFmpeg's memory."""
        self._container.close()


def _is_cover(stream: Any) -> bool:
    """Whether a video stream is the cover picture of music."""
    return "attached_pic" in stream.disposition.name if stream.disposition else False


class Track:
    """One stream of a medium."""

    def __init__(self, medium: Medium, index: int, header: TrackHeader) -> None:
        self._medium, self._index, self.header = medium, index, header

    @functools.cached_property
    def packets(self) -> Packets:
        """The index of all packets, read once, without decoding."""
        collections.deque(self.index(), 0)
        return self.packets

    def index(self) -> Iterator[Any]:
        """`read_all`; at its end `packets` is known."""
        rows = []
        for packet in self.read_all():
            if packet.size:
                rows.append(
                    (
                        UNKNOWN if packet.pts is None else packet.pts,
                        UNKNOWN if packet.dts is None else packet.dts,
                        packet.duration or 0,
                        packet.is_keyframe,
                        packet.is_discard,
                    )
                )
            yield packet
        table = np.array(rows, np.int64).reshape(-1, 5)
        pts, dts, duration, is_key, is_discarded = table.T.copy()
        self.packets = Packets(pts, dts, duration, is_key.astype(bool), is_discarded.astype(bool))

    @functools.cached_property
    def number_of(self) -> dict[int, int]:
        """Packet number by presentation time."""
        return {pts: number for number, pts in enumerate(self.packets.pts.tolist())}

    def read_from(self, number: int) -> tuple[int, Iterator[Any]]:
        """(number of the first packet read, packets) from packet `number`, or an earlier one that can be sought.

        The last packet is empty, and flushes the decoder. After seeking, audio may be cut into different packets; the
        first one then starts at or before packet `number`, and its number is that of the last whole packet before it.
        """
        pts, dts = int(self.packets.pts[number]), int(self.packets.dts[number])
        container, stream = self._medium.container, self._medium.stream(self._index)
        for time in dict.fromkeys((pts, dts)):
            if time == UNKNOWN:
                continue
            with contextlib.suppress(import_av().error.FFmpegError):
                container.seek(time, stream=stream)
                packets: Any = _demuxed(container, stream)
                first = next(packets)
                landed = self._landed(first, pts)
                if landed is not None and landed <= number:
                    return landed, self._packets(packets, first)
                packets.close()
        return 0, self.read_all()

    def read_all(self) -> Iterator[Any]:
        """All packets from the start, then an empty one that flushes the decoder."""
        self._medium.rewind()
        return self._packets(_demuxed(self._medium.container, self._medium.stream(self._index)))

    def _landed(self, packet: Packet[Any], target: int) -> int | None:
        """The number of the packet at which a seek landed; None if it cannot be determined."""
        if packet.pts is None or not packet.size:
            return None
        number = self.number_of.get(packet.pts)
        if number is None and self.header.kind == "audio" and packet.pts <= target:
            number = max(0, int(np.searchsorted(self.packets.pts, packet.pts)) - 1)
        return number

    def _packets(self, packets: Any, first: Any = None) -> Iterator[Any]:
        """`first`, then the rest. PyAV's generator must be closed: dropping it leaks memory."""
        with reading(f"the {self.header.kind}"), contextlib.closing(packets):
            if first is not None:
                yield first
            yield from packets


def _demuxed(container: InputContainer, stream: Any) -> Iterator[Any]:
    """The packets of a stream. Damage may let FFmpeg find another stream on the way, which PyAV does not know."""
    packets: Any = container.demux(stream)
    with contextlib.closing(packets):
        while True:
            try:
                packet = next(packets, None)
            except IndexError as error:
                raise SampleError("the medium has a packet of an unknown stream. It is damaged") from error
            if packet is None:
                return
            yield packet
