"""Video: frames by their number in display order, decoded from the nearest key frame, and clips of them as tensors.

Reads a track, ranges of frame numbers, and perhaps a size. Returns one tensor (frames, 3, height, width) for each clip,
in memory order (frames, height, width, 3): the same frames as decoding everything from the start would give, for any
packet order and variable frame rates. Earlier frames are decoded only if a wanted frame depends on them. Each frame is
decoded and converted once, even if several clips contain it. The container's rotation is not applied, as with images.
Raises before memory is allocated for clips that would exceed `max_bytes`.

The packets are read once, to build an index. A frame is decoded from the last key frame that is displayed no later than
it. So frames that follow a key frame in the file but are displayed before it are decoded from the previous key frame.
If a frame does not come out that way (some streams flag false key frames), everything is decoded from the start.
"""

from __future__ import annotations

import collections
import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bridge_data.decode.av.container import UNKNOWN, Medium, Track, frames_of, import_av
from bridge_data.errors import SampleError
from bridge_data.later import torch
from bridge_data.limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    from av import VideoFrame

_MAX_DROPPED_PACKETS = 64
"""Maximum number of packets to skip one by one on the way to a key frame; above, seeking is faster."""

_TOLERANCE_S = 0.0005
"""A time up to this much before a frame finds the frame. Matroska rounds to milliseconds: 1/24 s must find 42 ms."""


class Video:
    """The frames of a video track, in display order.

    `times` are the display times of the frames and `end` is the end of the last one, in ticks of `time_base` seconds
    from the start of the medium. `is_timed` is False if the container has no usable timestamps: times are then computed
    from the frame rate, and every read decodes from the start.
    """

    def __init__(self, medium: Medium, track: Track) -> None:
        self._track = track
        header, packets = track.header, track.packets
        rate = header.rate
        first_key = int(np.argmax(packets.is_key)) if packets.is_key.any() else 0
        shown = np.flatnonzero(~packets.is_discarded)
        shown = shown[shown >= first_key]
        pts = packets.pts[shown]
        self.is_timed = len(pts) > 0 and UNKNOWN not in pts and len(np.unique(pts)) == len(pts)
        if self.is_timed:
            shown = shown[~np.isin(pts, self._undecodable(pts, int(packets.pts[first_key])))]
            shown = shown[np.argsort(packets.pts[shown])]
            pts = packets.pts[shown]
            self.time_base = header.time_base
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
        """The end of the last frame, in seconds from the start of the medium."""
        return float(self.end * self.time_base)

    def span_s(self, frames: range) -> tuple[float, float]:
        """(start of the first frame, end of the last frame), in seconds from the start of the medium."""
        end = int(self.times[frames[-1] + 1]) if frames[-1] + 1 < len(self) else self.end
        return float(int(self.times[frames[0]]) * self.time_base), float(end * self.time_base)

    def frames_shown(self, start_s: float, end_s: float) -> range:
        """The frames on screen at any time from `start_s` to `end_s`, inclusive; empty if `start_s` is past the end.

        Times before the first frame find the first frame. A time up to half a tick, at most half a millisecond, before
        a frame finds that frame.
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
        """(number, decoded frame) for each of `numbers`, which must be ascending."""
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
        """Decode the `waiting` frames from their key frames, removing each; stops early if one does not come out."""
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
                frames = frames_of(packet)
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
        """(number, frame) of everything decoded from the start; the number is -1 for frames that are not displayed.

        `SampleError` if decoding fails after the key frame of the first of `waiting`.
        """
        count = 0
        for at, packet in enumerate(self._track.read_all()):
            packet.stream.codec_context.skip_frame = "DEFAULT"
            try:
                frames = frames_of(packet)
            except import_av().error.FFmpegError as error:
                if not self.is_timed or at >= self._key_of[waiting[0]]:
                    raise SampleError(f"packet {at} of the video cannot be decoded: {error.strerror}") from error
                continue
            for frame in frames:
                yield (self._number_of_pts.get(frame.pts, -1) if self.is_timed else count), frame
                count += 1

    def _undecodable(self, pts: NDArray[np.int64], key_pts: int) -> list[int]:
        """Times of frames displayed before the first key frame that cannot be decoded.

        In a video cut out of a longer one, the frames that they depend on are missing.
        """
        missing = set(pts[pts < key_pts].tolist())
        if missing:
            for packet in self._track.read_all():
                with contextlib.suppress(import_av().error.FFmpegError):
                    times = [frame.pts for frame in frames_of(packet) if frame.pts is not None]
                    missing.difference_update(times)
                    if any(time >= key_pts for time in times):
                        break
        return sorted(missing)


def _last_key(times: NDArray[np.int64], pts: NDArray[np.int64], keys: NDArray[np.int64]) -> list[int]:
    """For each of `times`, the last key frame displayed no later, as its packet number in `keys`; 0 if none."""
    if not len(keys):
        return [0] * len(times)
    keys = keys[np.argsort(pts[keys])]
    last = np.searchsorted(pts[keys], times, "right") - 1
    numbers: list[int] = np.where(last < 0, 0, keys[last]).tolist()
    return numbers


def read_clips(
    video: Video, clips: Sequence[range], size: tuple[int, int] | None, max_bytes: int = DEFAULT_LIMITS.max_video_bytes
) -> list[torch.Tensor]:
    """Decode clips, each a range of frame numbers, scaled to `size` (width, height) if given; `SampleError` if they
    take more than `max_bytes`."""
    rows: dict[int, list[tuple[int, int]]] = {}
    for clip, frames in enumerate(clips):
        for row, number in enumerate(frames):
            rows.setdefault(number, []).append((clip, row))
    arrays: list[NDArray[np.uint8]] = []
    reformatter = import_av().video.reformatter.VideoReformatter()
    for number, frame in video.read(sorted(rows)):
        pixels = _rgb(reformatter, frame, size)
        if not arrays:
            arrays = _allocate([len(frames) for frames in clips], pixels.shape, max_bytes)
        if pixels.shape != arrays[0].shape[1:]:
            was, now = ("{1} x {0}".format(*shape) for shape in (arrays[0].shape[1:], pixels.shape))
            raise SampleError(f"frame {number} is {now} pixels and those before it {was}; give video_out_frame_size")
        for clip, row in rows[number]:
            arrays[clip][row] = pixels
    return [torch.from_numpy(array).permute(0, 3, 1, 2) for array in arrays]


def _rgb(reformatter: Any, frame: VideoFrame, size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """The frame as (height, width, 3), a view of the converted frame's memory."""
    width, height = size or (frame.width, frame.height)
    rgb = reformatter.reformat(frame, width=width, height=height, format="rgb24", interpolation="BILINEAR", threads=1)
    plane = rgb.planes[0]
    lines = np.frombuffer(plane, np.uint8, count=plane.line_size * height).reshape(height, plane.line_size)
    return lines[:, : 3 * width].reshape(height, width, 3)


def _allocate(lengths: Sequence[int], shape: tuple[int, ...], max_bytes: int) -> list[NDArray[np.uint8]]:
    needed = sum(lengths) * math.prod(shape)
    if needed > max_bytes:
        raise SampleError(
            f"{sum(lengths)} frames of {shape[1]} x {shape[0]} pixels take {needed / 2**30:.3g} GiB, more than the "
            f"{max_bytes / 2**30:.3g} GiB allowed (Limits(max_video_bytes)); ask for fewer (video_stride) or smaller "
            "ones (video_out_frame_size)"
        )
    return [np.empty((length, *shape), np.uint8) for length in lengths]
