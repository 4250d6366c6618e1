"""Audio: samples by their number, exact to the sample.

Enters: a track and a range of sample numbers; sample 0 is the first that comes out of the decoder. Leaves: an array
(channels, samples) of the type that the codec decodes to. Guarantees: what comes out is what decoding everything would
give, as far as the codec forgets its past within `_WARM_UP_PACKETS`; time without samples is silence.

Where a sample lies follows from the timestamp of its packet. Some containers (Matroska, FLV) round these more coarsely
than a sample; then the number of the packet tells, if all packets have one length, and else samples may be off by half
a tick of the container's clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bridge_data.decode.av.container import UNKNOWN, Medium, Track, import_av
from bridge_data.errors import SampleError

if TYPE_CHECKING:
    from av import AudioFrame

_WARM_UP_PACKETS = 32
"""Packets decoded before a range for the decoder's state: MP3 refers back by up to 24 of them, Opus wants 80 ms."""

MAX_SAMPLES = 1 << 31
"""Samples that one clip may have; more are 13 hours of music, or a timestamp that is damaged."""


class Audio:
    """The samples of a medium's audio; `start_s` is when the first one sounds, from the start of the medium.

    Raises:
        SampleError: if it has no sample, or cannot be read.
    """

    def __init__(self, medium: Medium, track: Track) -> None:
        self._track = track
        facts, packets = track.facts, track.packets
        self.rate = facts.sample_rate
        first = next(self._decoded(0, is_strict=False), None) if self.rate else None
        if first is None:
            raise SampleError("the audio has no sample that can be decoded, or no sample rate")
        self.start_s = 0.0
        self._origin: int | None = None
        self._samples_a_tick = float(facts.time_base * self.rate)
        self._first_packet, self._skipped, self._packet_length = 0, 0, 0
        if first.pts is not None and UNKNOWN not in packets.pts:
            self._origin = first.pts
            self.start_s = float(first.pts * facts.time_base - medium.start)
            if self._samples_a_tick > 1:
                self._measure_packets(first.pts, first.samples)
        self.num_samples = 0
        for position, frame in self._placed(max(0, len(packets) - 1), is_strict=False):
            self.num_samples = position + frame.samples

    @property
    def duration_s(self) -> float:
        """When its last sample ends, in seconds from the start of the medium."""
        return self.start_s + self.num_samples / self.rate

    def sample_at(self, time_s: float) -> int:
        """The number of the sample at a time, to the nearest; never below 0 or beyond the end."""
        return self.num_samples if time_s >= self.duration_s else max(0, int((time_s - self.start_s) * self.rate + 0.5))

    def span_s(self, samples: range) -> tuple[float, float]:
        """When `samples` begin and end, in seconds from the start of the medium."""
        return self.start_s + samples.start / self.rate, self.start_s + samples.stop / self.rate

    def read(self, samples: range) -> NDArray[np.generic]:
        """(channels, samples).

        Raises:
            SampleError: if they cannot be decoded, change their form, or are more than `MAX_SAMPLES`.
        """
        if len(samples) > MAX_SAMPLES:
            raise SampleError(f"{len(samples)} samples of audio are more than the {MAX_SAMPLES} allowed in one clip")
        clip: NDArray[np.generic] | None = None
        for position, frame in self._placed(self._packet_of(samples.start), is_strict=True):
            content = _array(frame)
            if clip is None:
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
        """The number of the packet that a sample is in, or of one before."""
        if self._origin is None:
            return 0
        if self._packet_length:
            return min(
                self._first_packet + (sample + self._skipped) // self._packet_length, len(self._track.packets) - 1
            )
        tick = self._origin + math.floor(sample / self._samples_a_tick) - 1
        return max(0, int(np.searchsorted(self._track.packets.pts, tick, "right")) - 1)

    def _placed(self, packet: int, *, is_strict: bool) -> Iterator[tuple[int, AudioFrame]]:
        """(number of its first sample, frame) of what `_decoded` gives.

        A frame with a time that does not follow from the one before is where its time says only if the next frame does
        not return to where it would be without that: FFmpeg gets some times of Vorbis in Ogg wrong.
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
        """The frames from a packet on, and some before it. A packet that cannot be decoded is an error if `is_strict`,
        unless it only serves to warm up."""
        begin = max(0, packet - _WARM_UP_PACKETS) if self._track.facts.keeps_times else 0
        at, packets = self._track.read_from(begin) if begin else (0, self._track.read_all())
        for number, content in enumerate(packets, at):
            try:
                yield from content.decode()
            except import_av().error.FFmpegError as error:
                if is_strict and number >= packet:
                    raise SampleError(f"packet {number} of the audio cannot be decoded: {error.strerror}") from error

    def _position(self, pts: int | None, expected: int | None) -> int:
        """The number of the first sample of a frame with this time, where `expected` follows the frame before."""
        if pts is None or self._origin is None:
            return expected or 0
        if self._packet_length:
            packet = int(np.searchsorted(self._track.packets.pts, pts, "right")) - 1
            return max(0, (packet - self._first_packet) * self._packet_length - self._skipped)
        position = round((pts - self._origin) * self._samples_a_tick)
        if expected is not None and abs(position - expected) <= self._samples_a_tick + 1:
            return expected
        return position

    def _measure_packets(self, first_pts: int, first_samples: int) -> None:
        """See whether all packets have one length, up to the rounding of their times."""
        pts = self._track.packets.pts
        frames = self._decoded(0, is_strict=False)
        length = max(frame.samples for frame, _ in zip(frames, range(3), strict=False))
        first_packet = int(np.searchsorted(pts, first_pts, "right")) - 1
        skipped = length - first_samples
        numbers = np.arange(len(pts)) - first_packet
        expected = first_pts + np.where(numbers > 0, numbers * length - skipped, 0) / self._samples_a_tick
        if (np.abs(pts - expected)[max(0, first_packet + 1) :] <= 1.5).all():
            self._first_packet, self._skipped, self._packet_length = first_packet, skipped, length


def _array(frame: AudioFrame) -> NDArray[np.generic]:
    """(channels, samples)."""
    content: NDArray[np.generic] = frame.to_ndarray()
    return content if frame.format.is_planar else content.reshape(frame.samples, -1).T
