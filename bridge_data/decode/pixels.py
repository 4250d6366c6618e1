"""Pixels: encoded images to uint8, the same pixels as Pillow, for JPEG at simplejpeg's speed.

Enters: the bytes of an image of any format that Pillow reads without running a program (so no EPS). Leaves: its size,
its pixels, or an image of Pillow. Guarantees: pixels are those of `Image.open(...).convert(mode)`, and what Pillow
refuses is refused; an image with more pixels than `PIL.Image.MAX_IMAGE_PIXELS` is refused before its pixels are
decoded; EXIF orientation is left as it is. Only with `least` pixels are others, and an image is smaller than stored.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import simplejpeg

from bridge_data.later import Image, nanoarrow
from bridge_data.samples.arena import current_arena

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from PIL import ImageFile

Size: TypeAlias = tuple[int, int]
"""(height, width)"""

_RUNS_PROGRAMS = frozenset({"EPS"})

_DCT_DIVISORS = (8, 4, 2)
"""JPEG can be decoded at n eighths of its size; the others are slower than the whole size, for want of vector code."""


def encoded_size(data: bytes) -> Size:
    """The size of an encoded image, out of its header."""
    if _is_jpeg(data):
        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        except ValueError:
            pass
        else:
            _refuse_bomb(width, height)
            return height, width
    with _opened(data) as image:
        return image.height, image.width


def decoded_pixels(data: bytes, mode: str, least: Size | None = None) -> NDArray[np.uint8]:
    """The image as uint8 (H, W) for mode L, else (H, W, C), in memory of its own.

    With `least`, a JPEG is decoded at the half, quarter or eighth of its size that is still at least `least`.
    """
    if _is_jpeg(data):
        if mode != "L":
            pixels = _jpeg_pixels(data, mode, mode, least)
        else:
            gray = _jpeg_image(data, mode, least)
            pixels = None if gray is None else np.array(gray)
        if pixels is not None:
            return pixels
    with _opened(data) as image:
        image.load()
        return np.array(image if image.mode == mode else image.convert(mode))


def image_in_batch(data: bytes, mode: str) -> torch.Tensor | None:
    """A JPEG as uint8 (C, H, W), in memory where stacking needs no copy; None if there is no such memory (see
    `Arena.image_buffer`), or the image needs Pillow."""
    arena = current_arena()
    if arena is None or not arena.num_images or mode == "L" or not _is_jpeg(data):
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        _refuse_bomb(width, height)
        buffer = arena.image_buffer((height, width, len(mode))) if colours in ("Gray", "YCbCr") else None
        if buffer is None:
            return None
        pixels, image = buffer
        simplejpeg.decode_jpeg(data, mode, buffer=pixels)
    except ValueError:
        return None
    return image


def pillow_image(data: bytes, mode: str, least: Size | None = None) -> Image.Image:
    """The image as one of Pillow, with what its header says in `info`; `least` as in `decoded_pixels`."""
    with _opened(data) as image:
        made = _jpeg_image(data, mode, least) if _is_jpeg(data) else None
        if made is None:
            image.load()
            return image.convert(mode)
        made.info = dict(image.info)
        return made


def _is_jpeg(data: bytes) -> bool:
    return data[:3] == b"\xff\xd8\xff"


def _jpeg_image(data: bytes, mode: str, least: Size | None) -> Image.Image | None:
    """A JPEG as Pillow decodes it, around the memory that it is decoded in; None where Pillow itself must be asked."""
    # Gray of a colour image is Pillow's mix of red, green and blue, not the luma that is stored.
    pixels = _jpeg_pixels(data, "GRAY" if mode == "L" else "RGBX", "RGBX", least)
    if pixels is None:
        return None
    height, width, num_channels = pixels.shape
    if num_channels == 1:
        return Image.fromarray(pixels[:, :, 0])
    values = nanoarrow.c_array_from_buffers(nanoarrow.uint8(False), pixels.size, [None, pixels.reshape(-1)])
    of_pixels = nanoarrow.fixed_size_list(nanoarrow.uint8(False), num_channels, nullable=False)
    image = Image.fromarrow(
        nanoarrow.c_array_from_buffers(of_pixels, width * height, [None], children=[values]), "RGB", (width, height)
    )
    return image if mode == "RGB" else image.convert(mode)


def _jpeg_pixels(data: bytes, of_gray: str, of_colour: str, least: Size | None) -> NDArray[np.uint8] | None:
    """The pixels (H, W, C) of a JPEG as Pillow decodes them, in one order of channels if it is gray, in another if it
    has colours; None where Pillow itself must be asked."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        _refuse_bomb(width, height)
        if colours not in ("Gray", "YCbCr"):
            return None
        min_height, min_width = (0, 0) if least is None else _dct_size((height, width), least)
        channels = of_gray if colours == "Gray" else of_colour
        return simplejpeg.decode_jpeg(data, channels, min_height=min_height, min_width=min_width)
    except ValueError:
        return None


def _dct_size(size: Size, least: Size) -> Size:
    """The smallest of the sizes at which a JPEG of `size` is decoded well that is at least `least`."""
    for divisor in _DCT_DIVISORS:
        smaller = -(-size[0] // divisor), -(-size[1] // divisor)
        if smaller[0] >= least[0] and smaller[1] >= least[1]:
            return smaller
    return size


def _opened(data: bytes) -> ImageFile.ImageFile:
    image = Image.open(io.BytesIO(data), formats=_formats())
    _refuse_bomb(*image.size)
    return image


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
