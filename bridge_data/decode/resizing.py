"""Resizing: images to one size as they are decoded, with Pillow's pixels or, when asked for, faster.

Enters: encoded images. Leaves: uint8 pixels, or images of Pillow, of the one size. Guarantees: by default the pixels
are those of `Image.open(...).convert(mode).resize(size, BICUBIC)`. With `resize="torch"` they are within 2 of them;
with `dct_scaling` a large JPEG is decoded at a half, a quarter or an eighth first, and its pixels differ by more.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from bridge_data.decode.pixels import Size, decoded_pixels, pillow_image
from bridge_data.errors import ConfigError
from bridge_data.later import Image, torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

ResizeType: TypeAlias = Literal["pillow", "torch"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Resizing:
    """What images are resized to, (height, width), and how; their aspect is not kept."""

    size: Size
    resize: ResizeType = "pillow"
    dct_scaling: bool = False

    def __post_init__(self) -> None:
        size = self.size
        if not isinstance(size, (tuple, list)) or len(size) != 2 or not all(type(n) is int and n > 0 for n in size):
            raise ConfigError(f"image_size={size!r}: expected (height, width), two integers of at least 1")
        if self.resize not in get_args(ResizeType):
            raise ConfigError(f"resize={self.resize!r}: expected one of {', '.join(get_args(ResizeType))}")

    @property
    def least(self) -> Size | None:
        """What a JPEG may be decoded at instead of its whole size."""
        return self.size if self.dct_scaling else None


def check_resizing(resizing: Resizing, image_decode: str, mode: str) -> None:
    """See that images in `mode` can be resized so.

    Raises:
        ConfigError: for transparent images by torch.
    """
    if resizing.resize == "torch" and mode == "RGBA":
        raise ConfigError(
            f'resize="torch" mixes in the colours of transparent pixels, so it does not go with '
            f'image_decode={image_decode!r}; use resize="pillow", or a form without transparency'
        )


def resized_pixels(data: bytes, mode: str, resizing: Resizing) -> NDArray[np.uint8]:
    """The image as uint8 (H, W) for mode L, else (H, W, C), in memory of its own."""
    if resizing.resize == "torch":
        return _by_torch(decoded_pixels(data, mode, resizing.least), resizing.size)
    return np.array(_by_pillow(pillow_image(data, mode, resizing.least), resizing.size))


def resized_image(data: bytes, mode: str, resizing: Resizing) -> Image.Image:
    """The image as one of Pillow, with what its header says in `info`."""
    image = pillow_image(data, mode, resizing.least)
    if resizing.resize == "pillow":
        return _by_pillow(image, resizing.size)
    made = Image.fromarray(_by_torch(np.array(image), resizing.size))
    made.info = image.info
    return made


def _by_pillow(image: Image.Image, size: Size) -> Image.Image:
    return image.resize((size[1], size[0]), Image.Resampling.BICUBIC)


def _by_torch(pixels: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    image = torch.from_numpy(pixels)
    made = (image[None] if image.ndim == 2 else image.permute(2, 0, 1))[None]
    for step in _steps((pixels.shape[0], pixels.shape[1]), size):
        made = torch.nn.functional.interpolate(made, size=step, mode="bicubic", antialias=True)
    resized: NDArray[np.uint8] = (made[0, 0] if image.ndim == 2 else made[0].permute(1, 2, 0).contiguous()).numpy()
    return resized


def _steps(size: Size, wanted: Size) -> list[Size]:
    """The sizes on the way to `wanted`. Pixels are rounded after each direction: Pillow 13 and torch begin with the
    width, but Pillow with the height where that shrinks by far more, and there torch is led the same way."""
    less_height, less_width = size[0] - wanted[0], size[1] - wanted[1]
    height_first = less_height > 0 and less_height > 2 * less_width
    return [(wanted[0], size[1]), (wanted[0], wanted[1])] if height_first else [(wanted[0], wanted[1])]
