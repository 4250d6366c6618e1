"""Images and videos: from files or pixels, within limits, to what a vision model takes.

Reads images as encoded bytes or pixels of any size; videos as `AVDecoder`, encoded bytes, frames, or a list of images;
any of them as a `Visual`, with settings of its own. Returns sizes (of an encoded image only the header is read),
`VideoFrames` (which frames of a video are sampled), RGB images of Pillow, and, from `Images`, pixel values. A decoded
image or frame has the size that was computed before; else it is an error.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from bridge_data.decode.av import AVDecoder
from bridge_data.decode.image import (
    IMAGE_WARNINGS,
    bytes_of_unit,
    encoded_size,
    in_mode,
    log_image_warnings,
    pillow_image,
)
from bridge_data.decode.named_media import check_moving
from bridge_data.decode.sample_decoder import decode_part
from bridge_data.encoders.encoder_config import ImageLimits, MultiModalSampleConfig, refuse
from bridge_data.encoders.visual_settings import (
    NO_SETTINGS,
    PICTURES_PER_SECOND,
    VisualSettings,
    check_of_image,
    naming_sample,
    spaced,
    with_own,
)
from bridge_data.errors import ConfigError, SampleError
from bridge_data.task.hooks import torch_defaults

Size: TypeAlias = tuple[int, int]
"""(height, width) in pixels."""

# Image processors

_MADE_FOR = {
    "Qwen2VL": "Qwen2VL, Qwen2_5VL or Qwen3VL",
    "LlavaNext": "LlavaNext",
    "Idefics3": "Idefics3",
    "SmolVLM": "Idefics3",
    "GotOcr2": "InternVL",
    "CLIP": "Llava",
    "Llava": "Llava",
    "Siglip": "Llava",
}
"""The family that takes an image processor, by how the name of its class begins."""

_PROBES = ((47, 65), (101, 33), (433, 801))
"""(height, width) of the images with which a processor is tried: multiples of no patch, so that it resizes them, and
smaller and larger than most tiles."""


def probes() -> list[Image.Image]:
    """Images of noise, of different sizes and aspects."""
    noise = np.random.default_rng(0)
    return [Image.fromarray(noise.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in _PROBES]


@contextlib.contextmanager
def fitting(owner: str, processor: Any, expected: str) -> Iterator[None]:
    """Try an image processor for `owner`, a family or an encoder, with torch as hooks have it: whatever fails in the
    block becomes a `ConfigError` that names both, what is `expected`, and what to do."""
    try:
        with torch_defaults():
            yield
    except Exception as error:  # a processor of another kind may raise anything
        name = type(processor).__name__
        inner = getattr(processor, "image_processor", None)
        home = next((family for start, family in _MADE_FOR.items() if name.startswith(start)), None)
        if inner is not None:
            fix = f"Pass the image_processor of that {name}, a {type(inner).__name__}"
        elif home is not None and home != owner:
            fix = f"The family for {name} is {home}; or pass the image processor of the checkpoint of your model"
        else:
            fix = "Pass that of the checkpoint of your model; HFTaskEncoder takes the whole processor of any family"
        why = error if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        reason = f"{owner}(image_processor={name}): expected {expected}: {str(why)[:300]}. {fix}"
        raise ConfigError(reason) from error


def edge_of(size: Any, *names: str) -> int | None:
    """The first of `names` that a size of an image processor (a dict, or its `SizeDict`) has, such as
    "shortest_edge"."""
    for name in names:
        value = size.get(name) if isinstance(size, Mapping) else getattr(size, name, None)
        if value:
            return int(value)
    return None


# Images


class Images:
    """The image processor of `owner`, which resizes every image to one `shape` (channels, height, width).

    Raises:
        ConfigError: if it does not.
    """

    def __init__(self, processor: Any, owner: str) -> None:
        self._processor = processor
        expected = "one that makes pixel values (1, channels, height, width) of every image, as CLIP's or SigLIP's does"
        with fitting(owner, processor, expected):
            made = [processor(images=[image], return_tensors="pt")["pixel_values"] for image in probes()]
            shapes = [tuple(pixels.shape) for pixels in made]
            if len(shapes[0]) != 4 or shapes[0][0] != 1 or len({*shapes}) > 1:
                raise ConfigError(f"its pixel values of several images have the shapes {', '.join(map(str, shapes))}")
        self.shape: tuple[int, int, int] = shapes[0][1:]

    def num_tokens(self, config: MultiModalSampleConfig) -> int:
        """The number of tokens of an image. A ConfigError if neither settings nor processor say it."""
        if config.tokens_per_image is not None:
            return config.tokens_per_image
        patch_size = config.patch_size or getattr(self._processor, "patch_size", None)
        if not isinstance(patch_size, int):
            raise ConfigError(
                f"{type(self._processor).__name__} does not say how many tokens an image takes; set "
                "MultiModalSampleConfig(patch_size=...) of the vision model, or its tokens_per_image"
            )
        _, height, width = self.shape
        return (height // patch_size) * (width // patch_size)

    def pixels(self, images: Sequence[Any], key: str) -> torch.Tensor:
        """Pixel values of the images of sample `key`, float32 (images, channels, height, width)."""
        if not images:
            return torch.zeros(0, *self.shape)
        made = self._processor(images=[as_rgb(image, key) for image in images], return_tensors="pt")["pixel_values"]
        return torch.as_tensor(made).to(torch.float32)


def image_size(image: Any, key: str, part: str = "image", *, upright: bool = False) -> tuple[int, int]:
    """(height, width) of an image in any form that `as_rgb` takes; of encoded bytes only the header is read. A
    SampleError that names `part` if it cannot be read."""
    if isinstance(image, bytes):
        image = decode_part(functools.partial(encoded_size, upright=upright), image, key, part)
        return int(image[0]), int(image[1])
    if isinstance(image, Image.Image):
        return image.height, image.width
    height, width = image.shape[-2:] if isinstance(image, torch.Tensor) else image.shape[:2]
    return int(height), int(width)


def as_rgb(image: Any, key: str, part: str = "image", *, upright: bool = False) -> Image.Image:
    """The image as Pillow's RGB, from encoded bytes, whose EXIF orientation may be applied, or pixels: see `rgb_image`.
    A SampleError that names `part` if it cannot be decoded, or has pixels of another range."""
    if isinstance(image, bytes):
        decode = functools.partial(pillow_image, mode="RGB", upright=upright)
        made: Image.Image = decode_part(decode, image, key, part)
        if IMAGE_WARNINGS:
            log_image_warnings(key)
        return made
    try:
        return rgb_image(image)
    except (ValueError, TypeError) as error:
        raise SampleError(f"sample {key!r}: an image given as {type(image).__name__} is none: {error}") from error


def rgb_image(image: Any) -> Image.Image:
    """The image as Pillow's RGB, from a Pillow image, or pixels as uint8 or as float in 0..1: a tensor (3, height,
    width) or an array (height, width, 3), or of grey ones.

    Raises:
        ValueError, TypeError: for other pixels.
    """
    if isinstance(image, Image.Image):
        return image if type(image) is Image.Image and image.mode == "RGB" else in_mode(image, "RGB")
    if isinstance(image, torch.Tensor):
        image = (image.permute(1, 2, 0) if image.ndim == 3 else image).numpy()
    pixels = np.asarray(image)
    if np.issubdtype(pixels.dtype, np.floating):
        pixels = bytes_of_unit(pixels)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    return in_mode(Image.fromarray(np.ascontiguousarray(pixels)), "RGB")


def without_settings(images: Sequence[Any], owner: str, key: str) -> list[Any]:
    """The images of sample `key`, for an encoder or family `owner` that makes one size or its own tiles of each.

    Raises:
        SampleError: if one has settings of its own, which it names.
    """
    for number, (_, own) in enumerate(map(with_own, images)):
        if own != NO_SETTINGS:
            said = ", ".join(f"{name}={value}" for name, value in own.given.items())
            raise SampleError(
                f"sample {key!r}: image {number + 1} says {said}, which {owner} cannot follow; families of Qwen-VL "
                "can. Remove it from the data, or set ImageLimits for all images"
            )
    return [source for source, _ in map(with_own, images)]


def picture_sizes(images: Sequence[Any], limits: ImageLimits, key: str) -> list[Size]:
    """The sizes of the images of sample `key` as `pictures` makes them; only headers are read. A sample with an extreme
    image is handled as `limits` says."""
    sizes = []
    for number, image in enumerate(images):
        source, own = with_own(image)
        with naming_sample(key):
            check_of_image(own)
        height, width = image_size(source, key, upright=limits.orientation == "apply")
        short, long = sorted((height, width))
        if short < limits.min_side or long > limits.max_aspect * short:
            what = (
                f"image {number + 1} is {width} x {height} pixels; expected {limits.min_side} a side at least, and no "
                f"side more than {limits.max_aspect:g} times the other (ImageLimits)"
            )
            refuse(limits.extreme_image, key, what)
        sizes.append((height, width) if own.has_size else limited_size((height, width), limits))
    return sizes


def limited_size(size: Size, limits: ImageLimits) -> Size:
    """A size of at least `min_pixels` and at most `max_pixels` (which has priority), its aspect nearly kept."""
    height, width = size
    if limits.min_pixels is not None and height * width < limits.min_pixels:
        scale = math.sqrt(limits.min_pixels / (height * width))
        height, width = math.ceil(height * scale), math.ceil(width * scale)
    if limits.max_pixels is not None and height * width > limits.max_pixels:
        scale = math.sqrt(limits.max_pixels / (height * width))
        short = max(1, math.floor(min(height, width) * scale))
        long = max(1, min(math.floor(max(height, width) * scale), limits.max_pixels // short))
        height, width = (long, short) if height > width else (short, long)
    return height, width


def smart_resize(
    size: Size, factor: int, least: float, most: float, *, num_frames: tuple[int, int] = (1, 1), least_side: int = 0
) -> Size:
    """The size with sides that are multiples of `factor` and with `least` to `most` pixels, its aspect nearly kept.

    Limits hold for all frames together: `num_frames` is the real number and the one that is counted. A side counts as
    `least_side` at least when the pixels are compared with the limits.

    Source: `smart_resize` of transformers for Qwen-VL (`least_side=0`), and of `qwen_vl_utils` (`least_side=factor`).
    """
    real, counted = num_frames
    height, width = size
    high, wide = (max(least_side, round(side / factor) * factor) for side in size)
    pixels = counted * high * wide
    if pixels > most:
        shrink = math.sqrt((real * height * width) / most)
        high, wide = (max(factor, math.floor(side / shrink / factor) * factor) for side in size)
    elif pixels < least:
        grow = math.sqrt(least / (real * height * width))
        high, wide = (math.ceil(side * grow / factor) * factor for side in size)
    return high, wide


def resized(image: Image.Image, size: Size, resample: Image.Resampling) -> Image.Image:
    """The image in that size; itself, if it has it."""
    height, width = size
    return image if image.size == (width, height) else image.resize((width, height), resample)


class TileCut(NamedTuple):
    """Tiles of one size: an image is resized to `size`, and the part of it in `box` (first column and row, and those
    after the last; outside of the image it is black) is cut into a `grid` of rows and columns."""

    size: Size
    box: tuple[int, int, int, int]
    grid: tuple[int, int] = (1, 1)


def tiles_of(image: Image.Image, cut: TileCut, resample: Image.Resampling) -> NDArray[np.uint8]:
    """The tiles of an RGB image, row by row: uint8 (tiles, height, width, 3)."""
    image = resized(image, cut.size, resample)
    pixels = np.asarray(image if cut.box == (0, 0, *image.size) else image.crop(cut.box))
    rows, columns = cut.grid
    parts = pixels.reshape(rows, pixels.shape[0] // rows, columns, pixels.shape[1] // columns, 3)
    return parts.swapaxes(1, 2).reshape(rows * columns, *parts.shape[1::2], 3)


def pictures(images: Sequence[Any], limits: ImageLimits, key: str) -> list[Image.Image]:
    """The images of sample `key`, decoded, and resized to the limits on pixels, unless they have their own."""
    made = []
    for image in images:
        source, own = with_own(image)
        picture = as_rgb(source, key, upright=limits.orientation == "apply")
        size = picture.height, picture.width
        if not own.has_size and (wanted := limited_size(size, limits)) != size:
            picture = picture.resize((wanted[1], wanted[0]), Image.Resampling.BICUBIC)
        made.append(picture)
    return made


# Videos


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class VideoSampling:
    """Which frames are sampled, unless a video says it itself: `fps` a second, but at least `min_frames` (if the video
    has them) and at most `max_frames`; with `fps=None`, all. A tensor of frames, or a file without a rate, counts as
    `default_fps` a second, unless it has a `sample_fps`. Pictures that are the frames of a video were sampled before:
    all are taken, up to `max_frames`.

    >>> VideoSampling(fps=1.0, max_frames=32).min_frames
    4

    Raises:
        ConfigError: if a number is out of range.
    """

    fps: float | None = 2.0
    min_frames: int = 4
    max_frames: int = 768
    default_fps: float = 24.0

    def __post_init__(self) -> None:
        for name in ("fps", "min_frames", "max_frames", "default_fps"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"VideoSampling({name}={value}): expected more than 0")
        if self.min_frames > self.max_frames:
            raise ConfigError(f"VideoSampling(min_frames={self.min_frames}): more than max_frames={self.max_frames}")


class FrameChoice(Protocol):
    """How a family samples frames."""

    def __call__(self, num_frames: int, fps: float, sampling: VideoSampling) -> Sequence[int]:
        """The indexes of the sampled frames, of `num_frames` at `fps`."""


@dataclasses.dataclass(frozen=True, slots=True)
class VideoFrames:
    """A video, or the range of it that is used, of `num_frames` frames of `size` at `fps`; `frames` are the indexes of
    the sampled ones, `own` the settings of the video, and `key` is that of its sample."""

    source: Any
    num_frames: int
    fps: float
    size: Size
    frames: tuple[int, ...]
    own: VisualSettings = NO_SETTINGS
    key: str = ""

    @property
    def sampled_fps(self) -> float:
        """Sampled frames a second."""
        return len(self.frames) / self.num_frames * self.fps

    @property
    def times(self) -> list[float]:
        """The second of each sampled frame."""
        known = self.own.times
        return [number / self.fps if known is None else known[number] for number in self.frames]

    def pictures(self) -> list[Image.Image]:
        """The sampled frames, decoded.

        Raises:
            SampleError: if one cannot be decoded.
        """
        if isinstance(self.source, Sequence):
            return [as_rgb(self.source[number], self.key, f"frame {number + 1}") for number in self.frames]
        if isinstance(self.source, AVDecoder):
            clips, _ = self.source.get_video_clips([(number, number) for number in self.frames], video_unit="frames")
            self.source.close()
            frames = torch.cat(clips)
        else:
            frames = self.source[list(self.frames)]
        return [Image.fromarray(frame.permute(1, 2, 0).contiguous().numpy()) for frame in frames]

    def resized(self, size: Size, resample: Image.Resampling) -> list[Any]:
        """The sampled frames in that size, as an image processor takes images. Raises as `pictures` does."""
        height, width = size
        return [picture.resize((width, height), resample) for picture in self.pictures()]


def open_video(source: Any, key: str, sampling: VideoSampling, choose: FrameChoice) -> VideoFrames:
    """Open a video of sample `key`; of an encoded one, only the header is read and packets are counted.

    Raises:
        SampleError: if it cannot be read, has no frame, has a form that `VideoConversationSample` does not take, or
            settings that cannot be followed.
    """
    source, own = with_own(source)
    with naming_sample(key):
        source, num_frames, fps, size, own = _opened(source, own, key, sampling)
        first, last = own.frame_range(num_frames, fps)
    used = last + 1 - first
    if isinstance(source, list | tuple) and own.nframes is own.fps is None:
        frames = spaced(first, last, min(used, own.max_frames or sampling.max_frames))
    elif any(getattr(own, name) is not None for name in _CHOOSING):
        bounds = sampling.min_frames, sampling.max_frames
        with naming_sample(key):
            frames = spaced(first, last, own.num_frames(used, used / fps, sampling.fps, bounds))
    else:
        frames = list(range(num_frames) if sampling.fps is None else choose(num_frames, fps, sampling))
    return VideoFrames(source, used, fps, size, tuple(frames), own, key)


_CHOOSING = ("fps", "nframes", "min_frames", "max_frames", "video_start", "video_end")
"""Settings with which frames are sampled as `VisualSettings` says, rather than as the family does."""


def _opened(
    source: Any, own: VisualSettings, key: str, sampling: VideoSampling
) -> tuple[Any, int, float, Size, VisualSettings]:
    """The video, its number of frames, frames a second, size, and settings."""
    check_moving(source)
    if isinstance(source, bytes):
        source = AVDecoder(source)
    if isinstance(source, AVDecoder):
        metadata = source.get_metadata(get_video_duration=False, get_audio=False)
        source.close()
        num_frames, width, height = metadata.video_num_frames, metadata.video_width, metadata.video_height
        if not num_frames or not width or not height:
            raise SampleError("the medium has no video")
        if own.times is not None or (own.sample_fps is not None and metadata.video_fps):
            raise SampleError(
                "a video that is a file has its own times; sample_fps and times are those of frames. For fewer frames "
                "say fps"
            )
        fps = metadata.video_fps or own.sample_fps or sampling.default_fps
    elif isinstance(source, torch.Tensor) and source.ndim == 4 and source.shape[1] == 3 and source.dtype == torch.uint8:
        num_frames, _, height, width = source.shape
        fps = _rate_of_frames(num_frames, own, sampling.default_fps)
    elif isinstance(source, list | tuple):
        own = dataclasses.replace(own, fps=own.fps if own.sample_fps else None, sample_fps=own.sample_fps or own.fps)
        num_frames, fps = len(source), _rate_of_frames(len(source), own, PICTURES_PER_SECOND)
        height, width = _one_size(source, key)
    else:
        got = f"{source.dtype} {tuple(source.shape)}" if isinstance(source, torch.Tensor) else type(source).__name__
        raise SampleError(
            f"a video is {got}; expected an AVDecoder, bytes, or frames as a uint8 tensor (frames, 3, height, width) "
            "or a list of pictures"
        )
    return source, num_frames, fps, (height, width), own


def _rate_of_frames(num_frames: int, own: VisualSettings, usual: float) -> float:
    """Frames a second of a video that is frames."""
    if not num_frames:
        raise SampleError("a video has no frame")
    if own.times is None:
        return own.sample_fps or usual
    if len(own.times) != num_frames:
        raise SampleError(f"a video has {num_frames} frames and {len(own.times)} times; expected one for each")
    seconds = own.times[-1] - own.times[0]
    return (num_frames - 1) / seconds if seconds > 0 else own.sample_fps or usual


def _one_size(frames: Sequence[Any], key: str) -> Size:
    """The size of all frames, of encoded ones from their headers."""
    sizes = [image_size(frame, key, f"frame {number + 1}") for number, frame in enumerate(frames)]
    for number, size in enumerate(sizes):
        if size != sizes[0]:
            raise SampleError(
                f"frame {number + 1} of a video is {size[1]} x {size[0]} pixels, the first {sizes[0][1]} x "
                f"{sizes[0][0]}; expected one size. A list of different pictures is no video: name them as images"
            )
    return sizes[0]
