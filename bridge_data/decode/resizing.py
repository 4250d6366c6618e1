"""Resizing of decoded images, bicubically, by Pillow or by torch; and its settings.

Reads a Pillow image, or uint8 pixels (H, W[, C]), and a size. Returns the resized image. Pixels that torch makes differ
from those of Pillow by at most 2.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from bridge_data.errors import ConfigError
from bridge_data.later import Image, torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

Size: TypeAlias = tuple[int, int]
"""(height, width)"""

ResizeType: TypeAlias = Literal["pillow", "torch"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Resizing:
    """How images are resized, ignoring their aspect ratio. See `SampleDecoder`."""

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
        """The minimum size at which a JPEG may be decoded; None: its full size."""
        return self.size if self.dct_scaling else None


def resizing(image_size: Size | None, resize: ResizeType, dct_scaling: bool) -> Resizing | None:
    """The setting for these arguments of a `SampleDecoder`; None if images keep their size.

    Raises:
        ConfigError: if one is unknown, or there is no size to resize to.
    """
    if image_size is not None:
        return Resizing(size=image_size, resize=resize, dct_scaling=dct_scaling)
    if resize != "pillow" or dct_scaling:
        raise ConfigError(
            f"resize={resize!r}, dct_scaling={dct_scaling} without image_size: there is nothing to resize to; "
            "set image_size=(height, width)"
        )
    return None


def by_pillow(image: Image.Image, size: Size) -> Image.Image:
    """The image in `size`, by Pillow."""
    return image.resize((size[1], size[0]), Image.Resampling.BICUBIC)


def by_torch(pixels: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    """The pixels (H, W[, C]) in `size`, by torch."""
    image = torch.from_numpy(pixels)
    made = (image[None] if image.ndim == 2 else image.permute(2, 0, 1))[None]
    for step in _steps((pixels.shape[0], pixels.shape[1]), size):
        made = torch.nn.functional.interpolate(made, size=step, mode="bicubic", antialias=True)
    resized: NDArray[np.uint8] = (made[0, 0] if image.ndim == 2 else made[0].permute(1, 2, 0).contiguous()).numpy()
    return resized


def _steps(size: Size, wanted: Size) -> list[Size]:
    """The sizes to interpolate to, in order, so that torch rounds as Pillow 13 does.

    Pixels are rounded after each direction. Both start with the width, but Pillow with the height if that shrinks much
    more; then torch must resize the height first too.
    """
    less_height, less_width = size[0] - wanted[0], size[1] - wanted[1]
    height_first = less_height > 0 and less_height > 2 * less_width
    return [(wanted[0], size[1]), (wanted[0], wanted[1])] if height_first else [(wanted[0], wanted[1])]
