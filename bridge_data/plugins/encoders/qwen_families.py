"""The Qwen-VL families: images and videos at their own resolution, cut into patches.

Reads images, videos whose frames are sampled, and the `Qwen2VLImageProcessor` of the model's checkpoint, or its folder
or hub id. Returns the text of an image or a video, which depends only on its size, and patches, as the family's
processor in transformers makes them; as `bridge_data.encoders.families`, where the other families are.

    Qwen2VL ─ Qwen2_5VL: positions of frames follow their time
            └ Qwen3VL: the time of each time step is written before it

Source: P. Wang et al., Qwen2-VL (2024); S. Bai et al., Qwen2.5-VL (2025); Qwen3-VL (2025) for the times written before
frames. The rounding is that of transformers.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bridge_data.encoders.chat import chatml
from bridge_data.encoders.families import Pieces, ProcessedFamily, check_tiles
from bridge_data.encoders.pixel_table import check_settings
from bridge_data.encoders.sequences import Media, joined
from bridge_data.encoders.visual_settings import NO_SETTINGS, VisualSettings
from bridge_data.encoders.visuals import Size, VideoFrames, VideoSampling, edge_of, fitting, resized, smart_resize
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
class Qwen2VL(ProcessedFamily):
    """`image_processor` is `Qwen2VLImageProcessor`. An image has `min_pixels` to `max_pixels` (None: the limits of the
    processor), a frame of a video `min_frame_pixels` to `max_frame_pixels` (None: 128 to 768 tokens).

    Each level of detail halves the largest number of pixels, down to the smallest.

    Raises:
        ConfigError: if the processor makes no patches, or the limits contradict each other.
    """

    has_mrope: ClassVar[bool] = True
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
        self._open_processor()
        names = ("patch_size", "merge_size", "temporal_patch_size")
        expected = f"a Qwen2VLImageProcessor, with {', '.join(names)}, and a size of shortest_edge and longest_edge"
        with fitting(type(self).__name__, self.image_processor, expected):
            missing = [name for name in names if not getattr(self.image_processor, name, None)]
            if missing or not all(self._limits):
                raise ConfigError(f"it has no {missing[0] if missing else 'such size'}")
        token = self.factor**2
        limits = (
            (*self._limits, "pixels", "the processor's"),
            (*self._frame_limits, "frame_pixels", "128 and 768 tokens"),
        )
        for low, high, kind, default in limits:
            if not 0 < low <= high or high < token:
                raise ConfigError(
                    f"{type(self).__name__}(min_{kind}={low}, max_{kind}={high}): expected min_{kind} from 1 to "
                    f"max_{kind}, and that to be at least {token}, the pixels of one token; the defaults are {default}"
                )
        with fitting(type(self).__name__, self.image_processor, expected):
            self._try()

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

    @property
    def written_image(self) -> str:
        """What a text without a template has for an image: its token, between those of its beginning and its end."""
        return f"<|vision_start|>{self.image_token}<|vision_end|>"

    def image_text(self, size: Size, detail: int, own: VisualSettings = NO_SETTINGS) -> Pieces:
        """The image token, once for each token of the grid; the template writes the tokens around it. `own` are the
        settings of the image."""
        _, rows, columns = self.grid(size, detail, own)
        return [(self.image_token, rows * columns)]

    def grid(self, size: Size, detail: int, own: VisualSettings = NO_SETTINGS) -> Grid:
        """The grid of an image, in tokens."""
        height, width = self.image_size(size, detail, own)
        return 1, height // self.factor, width // self.factor

    def image_size(self, size: Size, detail: int, own: VisualSettings) -> Size:
        """The size that an image is resized to."""
        if own.exact_size is not None:
            return self._exact(own.exact_size)
        return smart_resize(size, self.factor, *self._limits_at(own.image_limits(self._limits), detail))

    def pixels(self, images: Sequence[Image.Image], detail: int, own: Sequence[VisualSettings] = ()) -> Media:
        """`pixel_values` of all images, uint8 (patches, channels, patch size²), or those of the batch; `image_grid_thw`
        int64 (images, 3), in patches. `own` are the settings of each image."""
        if any(settings != NO_SETTINGS for settings in own):
            return joined([self._own_pixels(image, detail, one) for image, one in zip(images, own, strict=True)])
        least, most = self._limits_at(self._limits, detail)
        return self._pixels(images, (least, most), [self.grid((one.height, one.width), detail) for one in images])

    def _own_pixels(self, image: Image.Image, detail: int, own: VisualSettings) -> Media:
        """The pixels of an image with settings of its own."""
        size = image.height, image.width
        grid = self.grid(size, detail, own)
        if own.exact_size is None:
            return self._pixels([image], self._limits_at(own.image_limits(self._limits), detail), [grid])
        height, width = self._exact(own.exact_size)
        return self._pixels([image.resize((width, height))], (height * width, height * width), [grid])

    def _pixels(self, images: Sequence[Image.Image], limits: tuple[int, int], grids: Sequence[Grid]) -> Media:
        """The pixels of images within `limits`, whose grids in tokens are known."""
        expected = [self.patch_grid(grid) for grid in grids]
        if self._resizes_all(images):
            sizes = [(rows * self.factor, columns * self.factor) for _, rows, columns in grids]
            pictures = [resized(image, size, self._resample) for image, size in zip(images, sizes, strict=True)]
            patches = torch.cat([self._patches([image], 1) for image in pictures])
            return {"pixel_values": patches, "image_grid_thw": torch.tensor(expected)}
        size = dict(zip(("shortest_edge", "longest_edge"), limits, strict=True))
        made = self._process(images, size=size)
        check_tiles(type(self).__name__, [tuple(grid) for grid in made["image_grid_thw"].tolist()], expected)
        pixels = self._pixels_of(made)
        if self._table is not None:  # the processor repeats each image to fill a time step
            pixels = pixels.view(len(pixels), 3, self.frames_a_step, -1)[:, :, 0]
        return {"pixel_values": pixels, "image_grid_thw": torch.as_tensor(made["image_grid_thw"])}

    def _patches(self, frames: Sequence[Image.Image], step: int) -> Tensor:
        """The patches of frames of one size, each `step` of which are a time step: uint8 (patches, channels, step ·
        patch size²), those of a token one after the other."""
        patch, merge = int(self.image_processor.patch_size), int(self.image_processor.merge_size)
        arrays = [np.asarray(frame) for frame in frames]
        pixels = np.stack(arrays) if len(arrays) > 1 else arrays[0][None]
        _, height, width, channels = pixels.shape
        high, wide = height // self.factor, width // self.factor
        parts = pixels.reshape(-1, step, high, merge, patch, wide, merge, patch, channels)
        ordered = np.ascontiguousarray(parts.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7))
        return torch.from_numpy(ordered.reshape(-1, channels, step * patch * patch))

    def _exact(self, size: Size) -> Size:
        """A size that a sample says, in whole tokens, of which an image or frame has 4 to 16,384."""
        token = self.factor**2
        return smart_resize(size, self.factor, 4 * token, 16_384 * token, least_side=self.factor)

    def collected(self, rows: Sequence[Media]) -> Media:
        """`pixel_values` and `pixel_values_videos` (patches, channels · frames of a time step · patch size²), and their
        grids."""
        return self._with_table(joined(rows), self.frames_a_step)

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
        if video.own.exact_size is not None:
            return self._exact(video.own.exact_size)
        limits = self._limits_at(self._frame_limits, detail)
        return smart_resize(video.size, self.factor, *video.own.frame_limits(limits, len(video.frames)))

    def video_pixels(self, videos: Sequence[VideoFrames], detail: int) -> Media:
        """`pixel_values_videos` (patches, ...) as of images, and `video_grid_thw` int64 (videos, 3), in patches."""
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
        frames = video.resized(self.frame_size(video, detail), self._resample)
        frames += frames[-1:] * (-len(frames) % self.frames_a_step)
        if self._table is not None and isinstance(frames[0], Image.Image):  # not unrounded values, as of `UtilsVideo`
            check_settings(self.image_processor, self._table)
            return self._patches(frames, self.frames_a_step)
        # The image processor repeats each image to fill a time step; keep one copy of each frame.
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
        step, times = self.frames_a_step, video.times
        text: Pieces = []
        for number in range(num_steps):
            first, final = (times[min(index, len(times) - 1)] for index in (number * step, number * step + step - 1))
            time_s = (first + final) / 2
            text.append((f"<{time_s:.1f} seconds>{self.vision_start_token}", 1))
            text += [(self.video_token, rows * columns), (self.vision_end_token, 1)]
        return text

    def frame_size(self, video: VideoFrames, detail: int) -> Size:
        """The size that frames are resized to."""
        if video.own.exact_size is not None:
            return self._exact(video.own.exact_size)
        (height, width), factor, num_frames = video.size, self.factor, max(len(video.frames), self.frames_a_step)
        if min(height, width) < factor:
            scale = max(factor / height, factor / width)
            height, width = int(height * scale), int(width * scale)
        num_even = round(num_frames / self.frames_a_step) * self.frames_a_step
        limits = video.own.frame_limits(self._limits_at(self._frame_limits, detail), num_frames, num_even)
        return smart_resize((height, width), factor, *limits, num_frames=(num_frames, num_even))

    def token_runs(self, grid: Grid) -> list[Grid]:
        """One for each time step, since there is text between them."""
        return [(1, *grid[1:])] * grid[0]
