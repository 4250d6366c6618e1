"""Images: encoded bytes to the form that a task encoder wants: an array, a tensor or an image of Pillow.

Enters: the bytes of an image. Leaves: an image in one of the forms of `IMAGE_FORMS`. Guarantee: a tensor of floats is
contiguous; one of uint8 in colour is a view of pixels that lie row by row, each pixel's channels side by side, as they
were decoded. Putting the channels apart would cost a fifth of the decoding of a JPEG, and `torch.stack` does it anyway
on its way to a batch, which is contiguous.

Source: the names of the forms are those of `webdataset.autodecode.imagespecs`, as in Energon's `SampleDecoder`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from bridge_data.decode.pixels import decoded_pixels, image_in_batch, pillow_image
from bridge_data.decode.resizing import Resizing, check_resizing, resized_image, resized_pixels
from bridge_data.errors import ConfigError
from bridge_data.later import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

Container: TypeAlias = Literal["numpy", "torch", "pil"]

ImageDecoderType: TypeAlias = Literal[
    "l8", "rgb8", "rgba8", "l", "rgb", "rgba",
    "torchl8", "torchrgb8", "torchrgba8", "torchl", "torchrgb", "torch", "torchrgba",
    "pill", "pil", "pilrgb", "pilrgba",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class ImageForm:
    """What an image is decoded to: a Pillow image, a numpy array (H, W[, C]) or a tensor ([C,] H, W); of Pillow's
    mode L, RGB or RGBA; arrays as uint8 or, with `scaled`, as float32 in 0..1."""

    container: Container
    mode: Literal["L", "RGB", "RGBA"]
    scaled: bool


IMAGE_FORMS = {
    "l8": ImageForm("numpy", "L", False),
    "rgb8": ImageForm("numpy", "RGB", False),
    "rgba8": ImageForm("numpy", "RGBA", False),
    "l": ImageForm("numpy", "L", True),
    "rgb": ImageForm("numpy", "RGB", True),
    "rgba": ImageForm("numpy", "RGBA", True),
    "torchl8": ImageForm("torch", "L", False),
    "torchrgb8": ImageForm("torch", "RGB", False),
    "torchrgba8": ImageForm("torch", "RGBA", False),
    "torchl": ImageForm("torch", "L", True),
    "torchrgb": ImageForm("torch", "RGB", True),
    "torch": ImageForm("torch", "RGB", True),
    "torchrgba": ImageForm("torch", "RGBA", True),
    "pill": ImageForm("pil", "L", False),
    "pil": ImageForm("pil", "RGB", False),
    "pilrgb": ImageForm("pil", "RGB", False),
    "pilrgba": ImageForm("pil", "RGBA", False),
}

_EXTENSIONS = """apng avif blp bmp bw cur dcx dds dib fit fits flc fli ftc ftu gbr gif icb icns ico im j2c j2k jfif jp2
jpc jpe jpeg jpf jpg jpx msp pbm pcd pcx pgm png pnm ppm psd pxr qoi ras rgb rgba sgi tga tif tiff vda vst webp xbm xpm
"""
IMAGE_EXTENSIONS = frozenset(_EXTENSIONS.split())


def image_handler(image_decode: str, resizing: Resizing | None = None) -> Callable[[bytes], Any]:
    """The function that decodes image bytes to the form called `image_decode`, resized if that is asked for.

    Raises:
        ConfigError: for a name that is not in `IMAGE_FORMS`, or a form that is not resized so.
    """
    form = IMAGE_FORMS.get(image_decode)
    if form is None:
        raise ConfigError(f"image_decode={image_decode!r}: expected one of {', '.join(IMAGE_FORMS)}")
    if resizing is not None:
        check_resizing(resizing, image_decode, form.mode)
    if form.container == "pil":
        return functools.partial(_image, mode=form.mode, resizing=resizing)
    if form.container == "torch":
        return functools.partial(_scaled_tensor if form.scaled else _tensor, mode=form.mode, resizing=resizing)
    return functools.partial(_scaled_pixels if form.scaled else _pixels, mode=form.mode, resizing=resizing)


def _image(data: bytes, mode: str, resizing: Resizing | None) -> Image.Image:
    return pillow_image(data, mode) if resizing is None else resized_image(data, mode, resizing)


def _pixels(data: bytes, mode: str, resizing: Resizing | None) -> NDArray[np.uint8]:
    return decoded_pixels(data, mode) if resizing is None else resized_pixels(data, mode, resizing)


def _scaled_pixels(data: bytes, mode: str, resizing: Resizing | None) -> NDArray[np.float32]:
    return np.divide(_pixels(data, mode, resizing), 255, dtype=np.float32)


def _tensor(data: bytes, mode: str, resizing: Resizing | None) -> torch.Tensor:
    placed = image_in_batch(data, mode) if resizing is None else None
    return torch.from_numpy(_channels_first(_pixels(data, mode, resizing))) if placed is None else placed


def _scaled_tensor(data: bytes, mode: str, resizing: Resizing | None) -> torch.Tensor:
    # The channels are put apart as bytes, by NumPy: as floats, or by torch, it takes longer.
    pixels = np.ascontiguousarray(_channels_first(_pixels(data, mode, resizing)))
    return torch.from_numpy(pixels).to(torch.float32).div_(255)


def _channels_first(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels
