"""Audio: ranges of samples by their numbers, exact to the sample.

Reads a track and a range of sample numbers; sample 0 is the first that the decoder returns. Returns an array (channels,
samples) of the codec's own dtype: the same values as decoding everything from the start, if the state of the decoder
depends on the last `_WARM_UP_PACKETS` packets only. Gaps in time are silence.

The number of a sample is computed from the timestamp of its packet. Some containers (Matroska, FLV) round timestamps
more coarsely than a sample. Then it is computed from the number of the packet if all packets have the same length; if
not, samples may be off by half a tick of the container's clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from bridge_data.decode.av.container import UNKNOWN, Medium, Track, frames_of, import_av
from bridge_data.errors import SampleError

if TYPE_CHECKING:
    from av import AudioFrame
    from av.error import FFmpegError

    _Decoded: TypeAlias = tuple[list[AudioFrame], FFmpegError | None]
    """The frames of a packet, and why there are none."""

_WARM_UP_PACKETS = 32
"""Packets decoded before a range to warm up the decoder: MP3 refers back to up to 24 packets, Opus needs 80 ms."""

MAX_KEPT_BYTES, _MAX_WHOLE_BYTES = 1 << 20, 1 << 26
"""Maximum bytes of samples of a track that is decoded while its packets are indexed, once for all that is asked of it:
for a clip, and for all of it."""
_DTYPES = {"u8": np.uint8, "s16": np.int16, "s32": np.int32, "s64": np.int64, "flt": np.float32, "dbl": np.float64}
"""By FFmpeg's name of a format; one with a `p` behind has a plane for each channel."""


class Sound:
    """Samples of audio: `num_samples` of them, `rate` a second; `start_s` is the time of the first, in seconds from the
    start of the medium."""

    rate: int
    start_s: float
    num_samples: int

    @property
    def duration_s(self) -> float:
        """The end of the last sample, in seconds from the start of the medium."""
        return self.start_s + self.num_samples / self.rate

    def sample_at(self, time_s: float) -> int:
        """The number of the sample nearest to a time, between 0 and `num_samples`."""
        return self.num_samples if time_s >= self.duration_s else max(0, int((time_s - self.start_s) * self.rate + 0.5))

    def span_s(self, samples: range) -> tuple[float, float]:
        """(start, end) of `samples`, in seconds from the start of the medium."""
        return self.start_s + samples.start / self.rate, self.start_s + samples.stop / self.rate

    def read_clips(self, clips: Sequence[range], max_bytes: int) -> list[NDArray[np.generic]]:
        """Decode clips, each to (channels, samples); `SampleError` if they take more than `max_bytes` together, as
        those with damaged timestamps do."""
        raise NotImplementedError


def check_fits(content: NDArray[np.generic], clips: Sequence[range], max_bytes: int) -> None:
    """Check that clips of samples such as `content` (channels, any) take no more than `max_bytes`."""
    for clip in clips:
        needed = len(content) * content.itemsize * len(clip)
        if needed > max_bytes:
            raise SampleError(
                f"{len(clip)} samples of audio of {len(content)} channels take more than the {max_bytes} bytes that "
                "are left of those allowed (Limits(max_audio_bytes)); ask for a shorter clip"
            )
        max_bytes -= needed


class Audio(Sound):
    """The samples of an audio track, decoded by FFmpeg.

    With `is_whole`, all of them will be asked for, so that they are decoded at once.
    """

    def __init__(self, medium: Medium, track: Track, *, is_whole: bool = False) -> None:
        self._track, header = track, track.header
        self._kept = self._decoded_once(_MAX_WHOLE_BYTES if is_whole else MAX_KEPT_BYTES)
        self._placed: list[tuple[int, AudioFrame]] | None = None
        packets = track.packets
        self.rate = header.sample_rate
        first = next(self._decoded(0, is_strict=False), None) if self.rate else None
        if first is None:
            raise SampleError("the audio has no sample that can be decoded, or no sample rate")
        self.start_s = 0.0
        self._origin: int | None = None
        self._samples_per_tick = float(header.time_base * self.rate)
        self._first_packet, self._skipped, self._packet_length = 0, 0, 0
        if first.pts is not None and UNKNOWN not in packets.pts:
            self._origin = first.pts
            self.start_s = float(first.pts * header.time_base - medium.start)
            if self._samples_per_tick > 1:
                self._measure_packets(first.pts, first.samples)
        self.num_samples = 0
        last = max(0, len(packets) - 1) if self._origin is not None else 0
        if self._kept is not None and not any(error for _, error in self._kept):
            self._placed = list(self._numbered(0, is_strict=True))
        for position, frame in self._placed or self._numbered(last, is_strict=False):
            self.num_samples = position + frame.samples

    def read_clips(self, clips: Sequence[range], max_bytes: int) -> list[NDArray[np.generic]]:
        arrays: list[NDArray[np.generic]] = []
        for clip in clips:
            arrays.append(self._read(clip, max_bytes - sum(array.nbytes for array in arrays)))
        self._kept = self._placed = None  # few ask twice
        return arrays

    def _read(self, samples: range, max_bytes: int) -> NDArray[np.generic]:
        clip: NDArray[np.generic] | None = None
        for position, frame in self._placed or self._numbered(self._packet_of(samples.start), is_strict=True):
            content = _array(frame)
            if clip is None:
                check_fits(content, [samples], max_bytes)
                clip = np.zeros((len(content), len(samples)), content.dtype)
            if (len(content), content.dtype, frame.sample_rate) != (len(clip), clip.dtype, self.rate):
                raise SampleError(f"the audio changes its channels, type or rate at sample {position}")
            begin, end = max(position, samples.start), min(position + frame.samples, samples.stop)
            if begin < end:
                clip[:, begin - samples.start : end - samples.start] = content[:, begin - position : end - position]
            if position + frame.samples >= samples.stop:
                break
        if clip is None:
            raise SampleError(f"samples {samples.start} to {samples.stop} of the audio cannot be decoded")
        return clip

    def _packet_of(self, sample: int) -> int:
        """The number of the packet that contains a sample, or of an earlier packet."""
        if self._origin is None:
            return 0
        if self._packet_length:
            return min(
                self._first_packet + (sample + self._skipped) // self._packet_length, len(self._track.packets) - 1
            )
        tick = self._origin + math.floor(sample / self._samples_per_tick) - 1
        return max(0, int(np.searchsorted(self._track.packets.pts, tick, "right")) - 1)

    def _numbered(self, packet: int, *, is_strict: bool) -> Iterator[tuple[int, AudioFrame]]:
        """(number of the first sample, frame) for each frame of `_decoded`.

        If a frame's timestamp does not continue the previous frame, it is used only if the next frame confirms it:
        FFmpeg gets some timestamps of Vorbis in Ogg wrong.
        """
        frames = self._decoded(packet, is_strict=is_strict)
        expected: int | None = None
        frame = next(frames, None)
        while frame is not None:
            position, following = self._position(frame.pts, expected), None
            if expected is not None and position != expected:
                following = next(frames, None)
                end = expected + frame.samples
                if following is not None and self._position(following.pts, end) == end:
                    position = expected
            yield position, frame
            expected = position + frame.samples
            frame = next(frames, None) if following is None else following

    def _decoded(self, packet: int, *, is_strict: bool) -> Iterator[AudioFrame]:
        """Decoded frames from some packets before `packet` on.

        A packet that cannot be decoded is an error if `is_strict`, except before `packet`.
        """
        begin = max(0, packet - _WARM_UP_PACKETS) if self._track.header.keeps_times else 0
        for number, (frames, error) in self._packets(begin):
            yield from frames
            if error is not None and is_strict and number >= packet:
                raise SampleError(f"packet {number} of the audio cannot be decoded: {error.strerror}") from error

    def _packets(self, begin: int) -> Iterator[tuple[int, _Decoded]]:
        """(number, content) of the packets from about `begin` on."""
        if self._kept is not None:
            return enumerate(self._kept)
        at, packets = self._track.read_from(begin) if begin else (0, self._track.read_all())
        return enumerate(map(_frames_of, packets), at)

    def _decoded_once(self, max_bytes: int) -> list[_Decoded] | None:
        """All packets, decoded while they are indexed; None if their samples take more than `max_bytes`, which for most
        media the header says before any is decoded."""
        header = self._track.header
        if (header.duration_s or 0) * header.sample_rate * header.channels * header.sample_bytes > max_bytes:
            return None
        kept: list[_Decoded] = []
        for packet in self._track.index():
            if max_bytes >= 0:
                kept.append(_frames_of(packet))
                max_bytes -= sum(plane.buffer_size for frame in kept[-1][0] for plane in frame.planes)
        return kept if max_bytes >= 0 else None

    def _position(self, pts: int | None, expected: int | None) -> int:
        """The number of a frame's first sample, by its timestamp; `expected` if it would continue the last frame."""
        if pts is None or self._origin is None:
            return expected or 0
        if self._packet_length:
            packet = int(np.searchsorted(self._track.packets.pts, pts, "right")) - 1
            return max(0, (packet - self._first_packet) * self._packet_length - self._skipped)
        position = round((pts - self._origin) * self._samples_per_tick)
        if expected is not None and abs(position - expected) <= self._samples_per_tick + 1:
            return expected
        return position

    def _measure_packets(self, first_pts: int, first_samples: int) -> None:
        """Detect whether all packets have the same length, up to the rounding of timestamps."""
        pts = self._track.packets.pts
        frames = self._decoded(0, is_strict=False)
        length = max(frame.samples for frame, _ in zip(frames, range(3), strict=False))
        first_packet = int(np.searchsorted(pts, first_pts, "right")) - 1
        skipped = length - first_samples
        numbers = np.arange(len(pts)) - first_packet
        expected = first_pts + np.where(numbers > 0, numbers * length - skipped, 0) / self._samples_per_tick
        if (np.abs(pts - expected)[max(0, first_packet + 1) :] <= 1.5).all():
            self._first_packet, self._skipped, self._packet_length = first_packet, skipped, length


def _frames_of(packet: Any) -> _Decoded:
    try:
        return frames_of(packet), None
    except import_av().error.FFmpegError as error:
        return [], error


def _array(frame: AudioFrame) -> NDArray[np.generic]:
    """The frame as (channels, samples)."""
    name, num_samples = frame.format.name, frame.samples
    is_planar = name.endswith("p")
    count = num_samples if is_planar else num_samples * frame.layout.nb_channels
    dtype = _DTYPES[name.removesuffix("p")]
    planes: list[NDArray[np.generic]] = [np.frombuffer(plane, dtype)[:count] for plane in cast(Any, frame.planes)]
    if not is_planar:
        return planes[0].reshape(num_samples, -1).T
    return planes[0][None] if len(planes) == 1 else np.stack(planes)
