"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images and videos at their own resolution, cut into patches.

Enters: images and frames of any size. Leaves: concatenated patches, and for each image or video its grid: time steps,
rows, columns. A side becomes a multiple of (patch size · merge size), within the limits on pixels; a token covers merge
size² patches of `temporal_patch_size` frames.

Source: P. Wang et al., Qwen2-VL (2024); S. Bai et al., Qwen2.5-VL (2025); Qwen3-VL (2025) for the times written before
frames. The rounding is that of transformers.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bridge_data.encoders.chat import chatml
from bridge_data.encoders.family import (
    Media,
    Pieces,
    Size,
    blank_images,
    check_tiles,
    edge_of,
    fitting,
    joined,
)
from bridge_data.encoders.visuals import VideoFrames, VideoSampling
from bridge_data.errors import ConfigError

Grid = tuple[int, int, int]
"""Time steps, rows and columns of an image, or of a part of a video, in tokens."""

MAX_ASPECT = 200
"""The largest ratio of the sides of an image."""

QWEN3_VL_TEMPLATE = chatml(
    image="<|vision_start|><|image_pad|><|vision_end|>", video="<|vision_start|><|video_pad|><|vision_end|>"
)
"""ChatML, with images and videos at their positions in a turn, and marks on the answers."""

QWEN2_VL_TEMPLATE = (
    "{%- if messages[0]['role'] != 'system' -%}\n"
    "{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}\n"
    "{%- endif -%}\n"
) + QWEN3_VL_TEMPLATE
"""The same, with a default system message, as in the checkpoints of Qwen2-VL and Qwen2.5-VL."""


@dataclasses.dataclass(frozen=True)
class Qwen2VL:
    """`image_processor` is `Qwen2VLImageProcessor`. An image has `min_pixels` to `max_pixels` (None: the limits of the
    processor), a frame of a video `min_frame_pixels` to `max_frame_pixels` (None: 128 to 768 tokens).

    Each level of detail halves the largest number of pixels, down to the smallest.

    Raises:
        ConfigError: if the processor makes no patches, or the limits contradict each other.
    """

    image_processor: Any
    min_pixels: int | None = None
    max_pixels: int | None = None
    min_frame_pixels: int | None = None
    max_frame_pixels: int | None = None
    image_token: str = "<|image_pad|>"
    video_token: str = "<|video_pad|>"
    video_placeholder: str = "<video>"
    chat_template: str | None = QWEN2_VL_TEMPLATE

    def __post_init__(self) -> None:
        names = ("patch_size", "merge_size", "temporal_patch_size")
        expected = f"a Qwen2VLImageProcessor, with {', '.join(names)}, and a size of shortest_edge and longest_edge"
        with fitting(type(self).__name__, self.image_processor, expected):
            missing = [name for name in names if not getattr(self.image_processor, name, None)]
            if missing or not all(self._limits):
                raise ConfigError(f"it has no {missing[0] if missing else 'such size'}")
        token = self.factor**2
        for low, high, kind in ((*self._limits, "pixels"), (*self._frame_limits, "frame_pixels")):
            if not 0 < low <= high or high < token:
                raise ConfigError(
                    f"{type(self).__name__}(min_{kind}={low}, max_{kind}={high}): expected min_{kind} from 1 to "
                    f"max_{kind}, and that to be at least {token}, the pixels of one token"
                )
        with fitting(type(self).__name__, self.image_processor, expected):
            self.pixels(blank_images(), 0)

    @functools.cached_property
    def _limits(self) -> tuple[int, int]:
        """The smallest and the largest number of pixels of an image."""
        size = self.image_processor.size
        least, most = edge_of(size, "shortest_edge"), edge_of(size, "longest_edge")
        return self.min_pixels or least or 0, self.max_pixels or most or 0

    @functools.cached_property
    def _frame_limits(self) -> tuple[int, int]:
        """The smallest and the largest number of pixels of a frame."""
        token = self.factor**2
        return self.min_frame_pixels or 128 * token, self.max_frame_pixels or 768 * token

    @property
    def factor(self) -> int:
        """Pixels along one side of a token."""
        return int(self.image_processor.patch_size * self.image_processor.merge_size)

    @property
    def frames_a_step(self) -> int:
        """Frames in one time step."""
        return int(self.image_processor.temporal_patch_size)

    @property
    def num_details(self) -> int:
        """How often the largest number of pixels of an image or a frame can be halved, plus one."""
        limits, token = (self._limits, self._frame_limits), self.factor**2
        return max((most // max(least, token)).bit_length() for least, most in limits)

    # Images

    def image_text(self, size: Size, detail: int) -> Pieces:
        """The image token, once for each token of the grid; the template writes the tokens around it."""
        _, rows, columns = self.grid(size, detail)
        return [(self.image_token, rows * columns)]

    def grid(self, size: Size, detail: int) -> Grid:
        """The grid of an image, in tokens."""
        height, width = fitted(size, self.factor, *self._limits_at(self._limits, detail))
        return 1, height // self.factor, width // self.factor

    def pixels(self, images: Sequence[Image.Image], detail: int) -> Media:
        """`pixel_values` float32 (patches, channels · frames · patch size²) of all images, `image_grid_thw` int64
        (images, 3), in patches."""
        least, most = self._limits_at(self._limits, detail)
        size = {"shortest_edge": least, "longest_edge": most}
        made = self.image_processor(images=list(images), size=size, return_tensors="pt")
        expected = [self.patch_grid(self.grid((image.height, image.width), detail)) for image in images]
        check_tiles(type(self).__name__, [tuple(grid) for grid in made["image_grid_thw"].tolist()], expected)
        return {name: torch.as_tensor(made[name]) for name in ("pixel_values", "image_grid_thw")}

    def batch(self, rows: Sequence[Media]) -> Media:
        return joined(rows)

    # Videos

    def choose_frames(self, num_frames: int, fps: float, sampling: VideoSampling) -> Sequence[int]:
        """Evenly spaced from the first frame on, in whole time steps."""
        step = self.frames_a_step
        wanted = num_frames / fps * (sampling.fps or fps)
        most = min(sampling.max_frames, num_frames) // step * step
        taken = math.floor(min(max(wanted, sampling.min_frames), most) / step) * step
        if not taken:
            return range(num_frames)
        numbers: list[int] = torch.arange(0, num_frames, num_frames / taken).int().tolist()
        return numbers

    def video_text(self, video: VideoFrames, detail: int) -> Pieces:
        """The video token, once for each token of the grid."""
        return [(self.video_token, math.prod(self.video_grid(video, detail)))]

    def video_grid(self, video: VideoFrames, detail: int) -> Grid:
        """The grid of a video, in tokens."""
        height, width = self.frame_size(video, detail)
        return -(-len(video.frames) // self.frames_a_step), height // self.factor, width // self.factor

    def frame_size(self, video: VideoFrames, detail: int) -> Size:
        """The size that frames are resized to."""
        return fitted(video.size, self.factor, *self._limits_at(self._frame_limits, detail))

    def video_pixels(self, videos: Sequence[VideoFrames], detail: int) -> Media:
        """`pixel_values_videos` float32 (patches, ...) as of images, and `video_grid_thw` int64 (videos, 3), in
        patches."""
        patches = [self._video_patches(video, detail) for video in videos]
        grids = [self.patch_grid(self.video_grid(video, detail)) for video in videos]
        return {"pixel_values_videos": torch.cat(patches), "video_grid_thw": torch.tensor(grids)}

    def token_runs(self, grid: Grid) -> list[Grid]:
        """The grids of the runs of consecutive tokens of a video with `grid`: one run."""
        return [grid]

    def intervals(self, media: Media) -> list[Tensor | float] | None:
        """The distance between the time steps of each run of video tokens; None: 1."""
        return None

    def patch_grid(self, grid: Grid) -> Grid:
        """A grid in patches."""
        merge = int(self.image_processor.merge_size)
        return grid[0], grid[1] * merge, grid[2] * merge

    def _limits_at(self, limits: tuple[int, int], detail: int) -> tuple[int, int]:
        least, most = limits
        return least, max(least, self.factor**2, most >> detail)

    def _video_patches(self, video: VideoFrames, detail: int) -> Tensor:
        """The image processor repeats each image to fill a time step; keep one copy of each frame."""
        resample = Image.Resampling(int(self.image_processor.resample))
        frames = video.resized(self.frame_size(video, detail), resample)
        frames += frames[-1:] * (-len(frames) % self.frames_a_step)
        made = self.image_processor(images=frames, do_resize=False, return_tensors="pt")["pixel_values"]
        channels = made.shape[1] // (self.frames_a_step * int(self.image_processor.patch_size) ** 2)
        steps = torch.as_tensor(made).view(
            len(frames) // self.frames_a_step, self.frames_a_step, -1, channels, self.frames_a_step,
            int(self.image_processor.patch_size) ** 2,
        )  # fmt: skip
        copies = [steps[:, number, :, :, number] for number in range(self.frames_a_step)]
        return torch.stack(copies, dim=3).flatten(0, 1).flatten(1)


@dataclasses.dataclass(frozen=True)
class Qwen2_5VL(Qwen2VL):
    """As `Qwen2VL`; the positions of a video's frames follow their time, with `tokens_per_second`
    (`vision_config.tokens_per_second` of the model)."""

    tokens_per_second: int = 2

    def video_pixels(self, videos: Sequence[VideoFrames], detail: int) -> Media:
        """With `second_per_grid_ts` float32 (videos,): the seconds of a time step."""
        seconds = torch.tensor([self.frames_a_step / video.sampled_fps for video in videos])
        return super().video_pixels(videos, detail) | {"second_per_grid_ts": seconds}

    def intervals(self, media: Media) -> list[Tensor | float] | None:
        """From the seconds of a time step."""
        return [self.tokens_per_second * seconds for seconds in media.get("second_per_grid_ts", ())]


@dataclasses.dataclass(frozen=True)
class Qwen3VL(Qwen2VL):
    """As `Qwen2VL`, with patches of 16 pixels. Each time step of a video has its time written before it; the limits on
    `frame_pixels` hold for all frames of a video together."""

    chat_template: str | None = QWEN3_VL_TEMPLATE
    vision_start_token: str = "<|vision_start|>"
    vision_end_token: str = "<|vision_end|>"

    def choose_frames(self, num_frames: int, fps: float, sampling: VideoSampling) -> Sequence[int]:
        """Evenly spaced, from the first frame to the last."""
        wanted = int(num_frames / fps * (sampling.fps or fps))
        taken = min(max(wanted, sampling.min_frames), sampling.max_frames, num_frames)
        numbers: list[int] = np.linspace(0, num_frames - 1, taken).round().astype(int).tolist()
        return numbers

    def video_text(self, video: VideoFrames, detail: int) -> Pieces:
        """The time and the tokens of each time step."""
        num_steps, rows, columns = self.video_grid(video, detail)
        step, last = self.frames_a_step, len(video.frames) - 1
        text: Pieces = []
        for number in range(num_steps):
            first, final = (video.frames[min(index, last)] for index in (number * step, number * step + step - 1))
            time_s = (first / video.fps + final / video.fps) / 2
            text.append((f"<{time_s:.1f} seconds>{self.vision_start_token}", 1))
            text += [(self.video_token, rows * columns), (self.vision_end_token, 1)]
        return text

    def frame_size(self, video: VideoFrames, detail: int) -> Size:
        """The size that frames are resized to."""
        (height, width), factor, num_frames = video.size, self.factor, max(len(video.frames), self.frames_a_step)
        if min(height, width) < factor:
            scale = max(factor / height, factor / width)
            height, width = int(height * scale), int(width * scale)
        num_even = round(num_frames / self.frames_a_step) * self.frames_a_step
        limits = self._limits_at(self._frame_limits, detail)
        return fitted((height, width), factor, *limits, num_frames=(num_frames, num_even))

    def token_runs(self, grid: Grid) -> list[Grid]:
        """One for each time step, since there is text between them."""
        return [(1, *grid[1:])] * grid[0]


def fitted(size: Size, factor: int, least: int, most: int, *, num_frames: tuple[int, int] = (1, 1)) -> Size:
    """The size with sides that are multiples of `factor` and with `least` to `most` pixels, its aspect nearly kept.

    Limits hold for all frames together: `num_frames` is the real number and the one that is counted.
    """
    real, counted = num_frames
    height, width = size
    rounded = round(height / factor) * factor, round(width / factor) * factor
    pixels = counted * rounded[0] * rounded[1]
    if pixels > most:
        shrink = math.sqrt((real * height * width) / most)
        high, wide = (max(factor, math.floor(side / shrink / factor) * factor) for side in size)
        return high, wide
    if pixels < least:
        grow = math.sqrt(least / (real * height * width))
        return math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return rounded
