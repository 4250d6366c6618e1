"""Video: frames by their number in the order of display, decoded from the nearest key frame before them.

Enters: a track and numbers of frames. Leaves: these frames, the same as decoding everything would give. Guarantees: the
numbers are right whatever order the packets are in and however long each frame is shown; what precedes a wanted frame
is decoded only as far as that frame depends on it.

The index is read from the packets once. A frame is decoded from the last key frame that is shown no later than it: so
pictures that follow a key frame in the file, but are shown before it, come from the group before. If a frame does not
come out that way (a stream may flag key frames that are none), everything is decoded from the beginning.
"""

from __future__ import annotations

import collections
import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bridge_data.decode.av.container import UNKNOWN, Medium, Track, import_av
from bridge_data.errors import SampleError

if TYPE_CHECKING:
    from av import VideoFrame

_MAX_DROPPED_PACKETS = 64
"""Packets ahead of a key frame up to which they are dropped one by one, which is cheaper than seeking."""

_TOLERANCE_S = 0.0005
"""How much too early a time may be for a frame: Matroska rounds to milliseconds, and 1/24 s shall find that at 42."""


class Video:
    """The frames of a medium's video, in the order of display.

    `times` are when each frame is first shown and `end` when the last one ends, in ticks of `time_base` seconds from
    the start of the medium. Where the container tells no usable times, `is_timed` is False: the frame rate gives them,
    and every reading begins at the beginning.

    Raises:
        SampleError: if it has no frame, or cannot be read.
    """

    def __init__(self, medium: Medium, track: Track) -> None:
        self._track = track
        facts, packets = track.facts, track.packets
        rate = facts.rate
        first_key = int(np.argmax(packets.is_key)) if packets.is_key.any() else 0
        shown = np.flatnonzero(~packets.is_discarded)
        shown = shown[shown >= first_key]
        pts = packets.pts[shown]
        self.is_timed = len(pts) > 0 and UNKNOWN not in pts and len(np.unique(pts)) == len(pts)
        if self.is_timed:
            shown = shown[~np.isin(pts, self._undecodable(pts, int(packets.pts[first_key])))]
            shown = shown[np.argsort(packets.pts[shown])]
            pts = packets.pts[shown]
            self.time_base = facts.time_base
            self.times = pts - round(medium.start / self.time_base)
            last = int(packets.duration[shown[-1]]) or (round(1 / (rate * self.time_base)) if rate else 1)
            self._key_of = _last_key(pts, packets.pts, np.flatnonzero(packets.is_key))
            self._number_of_pts = {time: number for number, time in enumerate(pts.tolist())}
            self._number_of_packet = dict(zip(shown.tolist(), range(len(shown)), strict=True))
        else:
            count = sum(1 for _ in self._decode_all())
            if not (rate and count):
                raise SampleError("the video has no frame that can be decoded, or neither timestamps nor a frame rate")
            self.time_base, self.times, last = 1 / rate, np.arange(count, dtype=np.int64), 1
        self.end = int(self.times[-1]) + last

    def __len__(self) -> int:
        return len(self.times)

    @property
    def duration_s(self) -> float:
        """When its last frame ends, in seconds from the start of the medium."""
        return float(self.end * self.time_base)

    def span_s(self, frames: range) -> tuple[float, float]:
        """When the first of `frames` begins and the last one ends, in seconds from the start of the medium."""
        end = int(self.times[frames[-1] + 1]) if frames[-1] + 1 < len(self) else self.end
        return float(int(self.times[frames[0]]) * self.time_base), float(end * self.time_base)

    def frames_shown(self, start_s: float, end_s: float) -> range:
        """The frames on screen at some time from `start_s` to `end_s`, both included.

        The first frame counts as shown before it too, so there always is one; but none if `start_s` is at the end. A
        time up to half a tick, and half a millisecond, before a frame finds that frame.
        """
        start = self._tick(start_s)
        if start >= self.end:
            return range(0)
        first = max(0, int(np.searchsorted(self.times, start, "right")) - 1)
        return range(first, max(first + 1, int(np.searchsorted(self.times, self._tick(end_s), "right"))))

    def _tick(self, time_s: float) -> int:
        if time_s >= self.duration_s:
            return self.end
        ticks = time_s / self.time_base
        return math.floor(ticks + min(0.5, _TOLERANCE_S / self.time_base))

    def read(self, numbers: Sequence[int]) -> Iterator[tuple[int, VideoFrame]]:
        """(number, decoded frame) of the frames with these numbers, which ascend.

        Raises:
            SampleError: if one of them cannot be decoded.
        """
        waiting = collections.deque(numbers)
        if self.is_timed and waiting:
            yield from self._read_near(waiting)
        if waiting:
            for number, frame in self._decode_all(waiting):
                if number == waiting[0]:
                    waiting.popleft()
                    yield number, frame
                    if not waiting:
                        return
            raise SampleError(f"frame {waiting[0]} of the {len(self)} of the video cannot be decoded: it is damaged")

    def _read_near(self, waiting: collections.deque[int]) -> Iterator[tuple[int, VideoFrame]]:
        """Take frames off `waiting`, each from its key frame on; ends early at one that does not come out so."""
        wanted = set(waiting)
        error = import_av().error.FFmpegError
        at, packets = self._track.read_from(self._key_of[waiting[0]])
        is_gap = False
        while True:
            key = self._key_of[waiting[0]]
            if key > at + _MAX_DROPPED_PACKETS:
                at, packets = self._track.read_from(key)
            packet = next(packets, None)
            if packet is None:
                return
            at += 1
            if at <= key:
                is_gap = True
                continue
            codec = packet.stream.codec_context
            if is_gap:
                codec.flush_buffers()
                is_gap = False
            is_wanted = self._number_of_packet.get(at - 1) in wanted
            codec.skip_frame = "DEFAULT" if is_wanted or not packet.size else "NONREF"
            try:
                frames = packet.decode()
            except error:
                return
            for frame in frames:
                number = self._number_of_pts.get(frame.pts, -1)
                if number > waiting[0]:
                    return
                if number == waiting[0]:
                    waiting.popleft()
                    yield number, frame
                    if not waiting:
                        return

    def _decode_all(self, waiting: Sequence[int] = (0,)) -> Iterator[tuple[int, VideoFrame]]:
        """(number, frame) of all that comes out of decoding from the beginning; -1 for frames that do not count.

        Raises:
            SampleError: if decoding fails after the key frame of the first of `waiting`.
        """
        count = 0
        for at, packet in enumerate(self._track.read_all()):
            packet.stream.codec_context.skip_frame = "DEFAULT"
            try:
                frames = packet.decode()
            except import_av().error.FFmpegError as error:
                if not self.is_timed or at >= self._key_of[waiting[0]]:
                    raise SampleError(f"packet {at} of the video cannot be decoded: {error.strerror}") from error
                continue
            for frame in frames:
                yield (self._number_of_pts.get(frame.pts, -1) if self.is_timed else count), frame
                count += 1

    def _undecodable(self, pts: NDArray[np.int64], key_pts: int) -> list[int]:
        """Times of frames shown before the first key frame that do not come out of the decoder, as what they depend on
        was cut off; where a video is cut out of a longer one, that is so."""
        missing = set(pts[pts < key_pts].tolist())
        if missing:
            for packet in self._track.read_all():
                with contextlib.suppress(import_av().error.FFmpegError):
                    times = [frame.pts for frame in packet.decode() if frame.pts is not None]
                    missing.difference_update(times)
                    if any(time >= key_pts for time in times):
                        break
        return sorted(missing)


def _last_key(times: NDArray[np.int64], pts: NDArray[np.int64], keys: NDArray[np.int64]) -> list[int]:
    """For each of `times` the packet, of those with numbers `keys`, that is the last one shown no later; else 0."""
    if not len(keys):
        return [0] * len(times)
    keys = keys[np.argsort(pts[keys])]
    place = np.searchsorted(pts[keys], times, "right") - 1
    return np.where(place < 0, 0, keys[place]).tolist()
