"""Pixels: decoded frames to uint8 RGB clips.

Enters: a video, ranges of frame numbers and perhaps a size. Leaves: a tensor (frames, 3, height, width) a clip, whose
memory is in the order (frames, height, width, 3). Guarantees: each frame is decoded and converted once, however many
clips it is in; a clip that would not fit into memory is refused before it is made. A rotation that the container asks
for is not carried out, as with images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bridge_data.decode.av.container import import_av
from bridge_data.decode.av.video import Video
from bridge_data.errors import SampleError
from bridge_data.later import torch

if TYPE_CHECKING:
    from av import VideoFrame

MAX_CLIPS_BYTES = 16 << 30
"""What the clips of one call may take."""


def read_clips(video: Video, clips: Sequence[range], size: tuple[int, int] | None) -> list[torch.Tensor]:
    """The frames of each of `clips`, scaled to `size` (width, height) if it is given.

    Raises:
        SampleError: if a frame cannot be decoded, if the frames change their size and `size` is None, or if the clips
            would take more than `MAX_CLIPS_BYTES`.
    """
    places: dict[int, list[tuple[int, int]]] = {}
    for clip, frames in enumerate(clips):
        for row, number in enumerate(frames):
            places.setdefault(number, []).append((clip, row))
    arrays: list[NDArray[np.uint8]] = []
    reformatter = import_av().video.reformatter.VideoReformatter()
    for number, frame in video.read(sorted(places)):
        pixels = _rgb(reformatter, frame, size)
        if not arrays:
            arrays = _allocate([len(frames) for frames in clips], pixels.shape)
        if pixels.shape != arrays[0].shape[1:]:
            was, now = ("{1} x {0}".format(*shape) for shape in (arrays[0].shape[1:], pixels.shape))
            raise SampleError(f"frame {number} is {now} pixels and those before it {was}; give video_out_frame_size")
        for clip, row in places[number]:
            arrays[clip][row] = pixels
    return [torch.from_numpy(array).permute(0, 3, 1, 2) for array in arrays]


def _rgb(reformatter: Any, frame: VideoFrame, size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """(height, width, 3), in memory of the frame that is made for it."""
    width, height = size or (frame.width, frame.height)
    rgb = reformatter.reformat(frame, width=width, height=height, format="rgb24", interpolation="BILINEAR", threads=1)
    plane = rgb.planes[0]
    lines = np.frombuffer(plane, np.uint8, count=plane.line_size * height).reshape(height, plane.line_size)
    return lines[:, : 3 * width].reshape(height, width, 3)


def _allocate(lengths: Sequence[int], shape: tuple[int, ...]) -> list[NDArray[np.uint8]]:
    needed = sum(lengths) * math.prod(shape)
    if needed > MAX_CLIPS_BYTES:
        raise SampleError(
            f"{sum(lengths)} frames of {shape[1]} x {shape[0]} pixels take {needed / 2**30:.0f} GiB, more than the "
            f"{MAX_CLIPS_BYTES >> 30} GiB allowed; ask for fewer (video_stride) or smaller ones (video_out_frame_size)"
        )
    return [np.empty((length, *shape), np.uint8) for length in lengths]
