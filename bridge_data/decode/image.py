"""Images: encoded bytes to a numpy array, a tensor or a Pillow image, in their own size or resized.

Input: the bytes of an image, in any format that Pillow reads without running a program (so no EPS). Output: its size,
or the image in one of the forms of `IMAGE_FORMS`. Guarantee: the same pixels as `Image.open(...).convert(mode)`, for
JPEG at the speed of simplejpeg, and the same images are refused; resized, the same as `.resize(size, BICUBIC)` after
that. With `resize="torch"` pixels are within 2 of these. With `dct_scaling` a large JPEG is decoded at 1/2, 1/4 or 1/8
of its size first, and pixels differ by more. An image with more pixels than `PIL.Image.MAX_IMAGE_PIXELS` is refused
before it is decoded. EXIF orientation is not applied.

Float tensors are contiguous. A uint8 colour tensor (C, H, W) is a view of channels-last pixels, as decoded: making it
contiguous would take a fifth of the time of decoding a JPEG, and `torch.stack` does so anyway when it makes the batch.

Source: the names of the forms are those of `webdataset.autodecode.imagespecs`, as in Energon's `SampleDecoder`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import io
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import simplejpeg

from bridge_data.decode.resizing import Resizing, Size, by_pillow, by_torch
from bridge_data.errors import ConfigError
from bridge_data.later import Image, nanoarrow, torch
from bridge_data.process_counts import COUNTS
from bridge_data.samples.arena import current_arena
from bridge_data.shards.media_kinds import IMAGE_EXTENSIONS as IMAGE_EXTENSIONS

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray
    from PIL import ImageFile

ImageDecoderType: TypeAlias = Literal[
    "l8", "rgb8", "rgba8", "l", "rgb", "rgba",
    "torchl8", "torchrgb8", "torchrgba8", "torchl", "torchrgb", "torch", "torchrgba",
    "pill", "pil", "pilrgb", "pilrgba",
]  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class ImageForm:
    """What an image is decoded to."""

    container: Literal["numpy", "torch", "pil"]
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


def image_handler(image_decode: str, resizing: Resizing | None = None) -> Callable[[bytes], Any]:
    """The function that decodes image bytes to the form named `image_decode`, and resizes them.

    Raises:
        ConfigError: for a name that is not in `IMAGE_FORMS`, or a form that this `resizing` does not support.
    """
    form = IMAGE_FORMS.get(image_decode)
    if form is None:
        raise ConfigError(f"image_decode={image_decode!r}: expected one of {', '.join(IMAGE_FORMS)}")
    if resizing is not None and resizing.resize == "torch" and form.mode == "RGBA":
        raise ConfigError(
            f'resize="torch" mixes in the colours of transparent pixels, so it does not support '
            f'image_decode={image_decode!r}; use resize="pillow", or a form without transparency'
        )
    if form.container == "pil":
        return functools.partial(image_in_size, mode=form.mode, resizing=resizing)
    if form.container == "torch":
        return functools.partial(_scaled_tensor if form.scaled else _tensor, mode=form.mode, resizing=resizing)
    return functools.partial(_scaled_pixels if form.scaled else pixels_in_size, mode=form.mode, resizing=resizing)


def image_within(max_pixels: int, handler: Callable[[bytes], Any], data: bytes) -> Any:
    """`handler(data)`, unless the image has more pixels. Pillow's own limit is checked by the handler, as the size is
    known there already."""
    of_pillow = _pillow().MAX_IMAGE_PIXELS
    if of_pillow is None or max_pixels < of_pillow:
        height, width = encoded_size(data)
        if height * width > max_pixels:
            raise ValueError(
                f"{width} x {height} pixels are more than the {max_pixels} allowed (Limits(max_image_pixels))"
            )
    return handler(data)


def image_in_size(data: bytes, mode: str, resizing: Resizing | None) -> Image.Image:
    """The image as a Pillow image, resized if `resizing` says so, with the header's fields in `info`."""
    if resizing is None:
        return pillow_image(data, mode)
    image = pillow_image(data, mode, resizing.least)
    if resizing.resize == "pillow":
        return by_pillow(image, resizing.size)
    made = Image.fromarray(by_torch(np.array(image), resizing.size))
    made.info = image.info
    return made


def pixels_in_size(data: bytes, mode: str, resizing: Resizing | None) -> NDArray[np.uint8]:
    """The image as `decoded_pixels` gives it, resized if `resizing` says so."""
    if resizing is None:
        return decoded_pixels(data, mode)
    if resizing.resize == "torch":
        return by_torch(decoded_pixels(data, mode, resizing.least), resizing.size)
    return np.array(by_pillow(pillow_image(data, mode, resizing.least), resizing.size))


def _scaled_pixels(data: bytes, mode: str, resizing: Resizing | None) -> NDArray[np.float32]:
    return np.divide(pixels_in_size(data, mode, resizing), 255, dtype=np.float32)


def _tensor(data: bytes, mode: str, resizing: Resizing | None) -> torch.Tensor:
    image = image_in_batch(data, mode) if resizing is None else None
    return torch.from_numpy(_channels_first(pixels_in_size(data, mode, resizing))) if image is None else image


def _scaled_tensor(data: bytes, mode: str, resizing: Resizing | None) -> torch.Tensor:
    # Transposing uint8 with numpy is faster than transposing floats, or with torch.
    pixels = np.ascontiguousarray(_channels_first(pixels_in_size(data, mode, resizing)))
    return torch.from_numpy(pixels).to(torch.float32).div_(255)


def _channels_first(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels


_RUNS_PROGRAMS = frozenset({"EPS"})

_MAX_JPEG_SCANS = 32
"""Usual progressive JPEGs have about 10."""

_JPEG_SEGMENT = struct.Struct(">BBH")
"""The start of a segment of a JPEG's header: 0xFF, its marker, and its size without these two bytes."""

_DCT_DIVISORS = (8, 4, 2)
"""JPEG can be decoded at n/8 of its size. Other n are slower than full size, for lack of SIMD code."""


def encoded_size(data: bytes) -> Size:
    """(height, width) of an encoded image, from its header."""
    if _is_jpeg(data):
        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        except ValueError:
            pass
        else:
            refuse_bomb(width, height)
            return height, width
    with _opened(data) as image:
        return image.height, image.width


def decoded_pixels(data: bytes, mode: str, least: Size | None = None) -> NDArray[np.uint8]:
    """The image as uint8, (H, W) for mode L, else (H, W, C), in newly allocated memory.

    With `least`, a JPEG is decoded at the smallest of 1/2, 1/4 or 1/8 of its size that is at least `least`.
    """
    if _is_jpeg(data):
        if mode != "L":
            pixels = _jpeg_pixels(data, mode, mode, least)
        else:
            gray = _jpeg_image(data, mode, least)
            pixels = None if gray is None else np.array(gray)
        if pixels is not None:
            COUNTS.num_images += 1
            return pixels
    with _opened(data) as image:
        image.load()
        COUNTS.num_images += 1
        return np.array(image if image.mode == mode else image.convert(mode))


def image_in_batch(data: bytes, mode: str) -> torch.Tensor | None:
    """A JPEG as uint8 (C, H, W), decoded directly into its slot of the next batch, so that stacking needs no copy.

    None if there is no such slot (see `Arena.image_buffer`), or simplejpeg cannot decode the image as Pillow does.
    """
    arena = current_arena()
    if arena is None or not arena.num_images or mode == "L" or not _is_jpeg(data):
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        refuse_bomb(width, height)
        refuse_scans(data)
        buffer = arena.image_buffer((height, width, len(mode))) if colours in ("Gray", "YCbCr") else None
        if buffer is None:
            return None
        pixels, image = buffer
        simplejpeg.decode_jpeg(data, mode, buffer=pixels)
    except ValueError:
        return None
    COUNTS.num_images += 1
    return image


def pillow_image(data: bytes, mode: str, least: Size | None = None) -> Image.Image:
    """The image as a Pillow image, with the header's fields in `info`; `least` as in `decoded_pixels`."""
    with _opened(data) as image:
        made = _jpeg_image(data, mode, least) if _is_jpeg(data) else None
        if made is None:
            image.load()
            made = image.convert(mode)
        else:
            made.info = dict(image.info)
        COUNTS.num_images += 1
        return made


def _is_jpeg(data: bytes) -> bool:
    return data[:3] == b"\xff\xd8\xff"


def _jpeg_image(data: bytes, mode: str, least: Size | None) -> Image.Image | None:
    """A JPEG as a Pillow image that shares memory with the decoded pixels; None if only Pillow can decode it."""
    # For a colour image, mode L is Pillow's mix of red, green and blue, not the stored luma.
    pixels = _jpeg_pixels(data, "GRAY" if mode == "L" else "RGBX", "RGBX", least)
    if pixels is None:
        return None
    height, width, num_channels = pixels.shape
    if num_channels == 1:
        return Image.fromarray(pixels[:, :, 0])
    values = nanoarrow.c_array_from_buffers(nanoarrow.uint8(False), pixels.size, [None, pixels.reshape(-1)])
    pixel_type = nanoarrow.fixed_size_list(nanoarrow.uint8(False), num_channels, nullable=False)
    image = Image.fromarrow(
        nanoarrow.c_array_from_buffers(pixel_type, width * height, [None], children=[values]), "RGB", (width, height)
    )
    return image if mode == "RGB" else image.convert(mode)


def _jpeg_pixels(data: bytes, of_gray: str, of_colour: str, least: Size | None) -> NDArray[np.uint8] | None:
    """The pixels (H, W, C) of a JPEG, with the channels `of_gray` or `of_colour`, depending on the JPEG.

    None if only Pillow can decode it (CMYK, damaged).
    """
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        refuse_bomb(width, height)
        refuse_scans(data)
        if colours not in ("Gray", "YCbCr"):
            return None
        min_height, min_width = (0, 0) if least is None else _dct_size((height, width), least)
        channels = of_gray if colours == "Gray" else of_colour
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, channels, min_height=min_height, min_width=min_width)
        return pixels
    except ValueError:
        return None


def _dct_size(size: Size, least: Size) -> Size:
    """The smallest fast decoding size of a JPEG of `size` that is at least `least`."""
    for divisor in _DCT_DIVISORS:
        smaller = -(-size[0] // divisor), -(-size[1] // divisor)
        if smaller[0] >= least[0] and smaller[1] >= least[1]:
            return smaller
    return size


def _opened(data: bytes) -> ImageFile.ImageFile:
    try:
        image = Image.open(io.BytesIO(data), formats=_formats())
    except Image.DecompressionBombError as error:  # of an image twice as large
        raise Image.DecompressionBombError(
            f"{error}: allowed by PIL.Image.MAX_IMAGE_PIXELS; raise it, and Limits(max_image_pixels)"
        ) from None
    refuse_bomb(*image.size)
    if _is_jpeg(data):
        refuse_scans(data)
    return image


def refuse_bomb(width: int, height: int) -> None:
    """Refuse an image of more pixels than Pillow allows."""
    limit = _pillow().MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        raise Image.DecompressionBombError(
            f"{width} x {height} pixels are more than the {limit} allowed by PIL.Image.MAX_IMAGE_PIXELS; raise it, and "
            "Limits(max_image_pixels)"
        )


def refuse_scans(data: bytes) -> None:
    """Refuse a JPEG that stores its pixels many times over: an empty scan takes 60 bytes, and as long as a full one."""
    begin, is_only = _first_scan(data)  # nearly all are, and counting would take a twentieth of the time of decoding
    num_scans = 1 if is_only else data.count(b"\xff\xda", begin)
    if num_scans > _MAX_JPEG_SCANS:
        raise Image.DecompressionBombError(f"{num_scans} scans of a JPEG are more than the {_MAX_JPEG_SCANS} allowed")


def _first_scan(data: bytes) -> tuple[int, bool]:
    """Where the first scan of a JPEG begins, or what is no segment; and whether decoders stop after it, as it has all
    components and is not progressive. What comes before is no scan, whatever its bytes, such as those of a profile."""
    at, num_components = 2, 0
    while at + 10 <= len(data):
        start, marker, num_bytes = _JPEG_SEGMENT.unpack_from(data, at)
        if start != 0xFF or marker < 0xC0 or 0xD0 <= marker <= 0xD9 or marker == 0xFF or num_bytes < 2:
            break
        if marker == 0xDA:
            return at, data[at + 4] == num_components > 0
        if marker in (0xC0, 0xC1):
            num_components = data[at + 9]
        at += 2 + num_bytes
    return at, False


@functools.cache
def _pillow() -> ModuleType:
    """Pillow itself: reading a mutable value through the lazy `Image` would take 3 microseconds."""
    return importlib.import_module("PIL.Image")


@functools.cache
def _formats() -> list[str]:
    """The formats that Pillow reads without running a program, frequent ones first."""
    Image.init()
    names = dict.fromkeys(["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", *Image.ID])
    return [name for name in names if name in Image.OPEN and name not in _RUNS_PROGRAMS]
