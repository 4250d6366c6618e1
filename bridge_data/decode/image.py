"""Image forms: encoded bytes to a numpy array, a tensor or a Pillow image, by the name of the form.

Input: the bytes of an image. Output: the image in one of the forms of `IMAGE_FORMS`. Guarantee: float tensors are
contiguous. A uint8 colour tensor (C, H, W) is a view of channels-last pixels, as decoded: making it contiguous would
take a fifth of the time of decoding a JPEG, and `torch.stack` does so anyway when it makes the batch.

Source: the names of the forms are those of `webdataset.autodecode.imagespecs`, as in Energon's `SampleDecoder`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from bridge_data.decode.pixels import (
    Resizing,
    check_resizing,
    decoded_pixels,
    image_in_batch,
    pillow_image,
    resized_image,
    resized_pixels,
)
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
    """What an image is decoded to."""

    container: Container
    """A Pillow image, a numpy array (H, W[, C]) or a tensor ([C,] H, W)."""
    mode: Literal["L", "RGB", "RGBA"]
    """Pillow's mode."""
    scaled: bool
    """Arrays and tensors: float32 in 0..1; if False, uint8."""


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
    """The function that decodes image bytes to the form named `image_decode`, and resizes them.

    Raises:
        ConfigError: for a name that is not in `IMAGE_FORMS`, or a form that this `resizing` does not support.
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
    image = image_in_batch(data, mode) if resizing is None else None
    return torch.from_numpy(_channels_first(_pixels(data, mode, resizing))) if image is None else image


def _scaled_tensor(data: bytes, mode: str, resizing: Resizing | None) -> torch.Tensor:
    # Transposing uint8 with numpy is faster than transposing floats, or with torch.
    pixels = np.ascontiguousarray(_channels_first(_pixels(data, mode, resizing)))
    return torch.from_numpy(pixels).to(torch.float32).div_(255)


def _channels_first(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels
