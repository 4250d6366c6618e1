"""Images: encoded bytes to pixels, the same pixels as Pillow, for JPEG at simplejpeg's speed.

Enters: the bytes of an image of any format that Pillow reads without running a program (so no EPS). Leaves: an image in
one of the forms of `IMAGE_FORMS`. Guarantees: an image with more pixels than `PIL.Image.MAX_IMAGE_PIXELS` is refused
before its pixels are decoded; EXIF orientation is left as it is.

Source: the names of the forms are those of `webdataset.autodecode.imagespecs`, as in Energon's `SampleDecoder`.
"""

import dataclasses
import functools
import io
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
import simplejpeg
import torch
from numpy.typing import NDArray
from PIL import Image

from bridge_data.errors import ConfigError

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

_RUNS_PROGRAMS = frozenset({"EPS"})


def image_handler(image_decode: str) -> Callable[[bytes], Any]:
    """The function that decodes image bytes to the form called `image_decode`.

    Raises:
        ConfigError: for a name that is not in `IMAGE_FORMS`.
    """
    form = IMAGE_FORMS.get(image_decode)
    if form is None:
        raise ConfigError(f"image_decode={image_decode!r}: expected one of {', '.join(IMAGE_FORMS)}")
    if form.container == "pil":
        return functools.partial(_pillow_image, mode=form.mode)
    if form.container == "torch":
        return functools.partial(_tensor, mode=form.mode, scaled=form.scaled)
    return functools.partial(_scaled_pixels if form.scaled else _pixels, mode=form.mode)


def encoded_size(data: bytes) -> tuple[int, int]:
    """(height, width) of an encoded image, out of its header."""
    with Image.open(io.BytesIO(data), formats=_formats()) as image:
        _refuse_bomb(*image.size)
        return image.height, image.width


def _tensor(data: bytes, mode: str, scaled: bool) -> torch.Tensor:
    pixels = _pixels(data, mode)
    if pixels.ndim == 3:
        pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    tensor = torch.from_numpy(pixels)
    return tensor.to(torch.float32).div_(255) if scaled else tensor


def _scaled_pixels(data: bytes, mode: str) -> NDArray[np.float32]:
    return _pixels(data, mode).astype(np.float32) / np.float32(255)


def _pixels(data: bytes, mode: str) -> NDArray[np.uint8]:
    """The image as uint8 (H, W) for mode L, else (H, W, C), in memory of its own."""
    pixels = _jpeg_pixels(data, mode) if data[:3] == b"\xff\xd8\xff" else None
    return np.array(_pillow_image(data, mode)) if pixels is None else pixels


def _jpeg_pixels(data: bytes, mode: str) -> NDArray[np.uint8] | None:
    """The pixels of a JPEG as Pillow decodes them; None where Pillow itself must be asked."""
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
        _refuse_bomb(width, height)
        if colors == "Gray" and mode == "L":
            return simplejpeg.decode_jpeg(data, "GRAY")[:, :, 0]
        if mode == "L" or colors not in ("Gray", "YCbCr"):
            return None
        return simplejpeg.decode_jpeg(data, mode)
    except ValueError:
        return None


def _pillow_image(data: bytes, mode: str) -> Image.Image:
    with Image.open(io.BytesIO(data), formats=_formats()) as image:
        _refuse_bomb(*image.size)
        image.load()
        return image.convert(mode)


def _refuse_bomb(width: int, height: int) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        raise Image.DecompressionBombError(
            f"{width} x {height} pixels are more than the {limit} allowed by PIL.Image.MAX_IMAGE_PIXELS"
        )


_known_formats: list[str] = []


def _formats() -> list[str]:
    """Every format that Pillow reads by itself, the usual ones first."""
    if not _known_formats:
        Image.init()
        usual = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]
        names = dict.fromkeys([*usual, *Image.ID])
        _known_formats.extend(name for name in names if name in Image.OPEN and name not in _RUNS_PROGRAMS)
    return _known_formats
