"""Images: encoded bytes become a numpy array, a tensor or a Pillow image, in their own size or resized.

Reads the bytes of an image in any format that Pillow decodes without running another program (so no EPS). Returns its
size, or the image in one of the forms of `IMAGE_FORMS`: the pixels of `Image.open(...).convert(mode)`, for JPEG at the
speed of simplejpeg; resized, those of `.resize(size, BICUBIC)` after that. With `resize="torch"` pixels differ by at
most 2. With `dct_scaling` a large JPEG is first decoded at 1/2, 1/4 or 1/8 of its size, and pixels differ by more.
Raises what Pillow raises, and before decoding for an image of more pixels than `PIL.Image.MAX_IMAGE_PIXELS`.

Where Pillow would clip values to 255, images are scaled or refused: see `in_mode`. EXIF orientation is applied if
`orientation="apply"`, to sizes and to pixels. Of several frames or pages the first is returned, or all as a list.
Images whose other frames are dropped, and damaged JPEGs that a decoder completes with guessed pixels, are counted, and
logged once a process and kind: see `IMAGE_WARNINGS`.

Float tensors are contiguous. A uint8 colour tensor (C, H, W) is a view of channels-last pixels, as decoded: making it
contiguous would take a fifth of the time of decoding a JPEG, and `torch.stack` does it anyway when it makes the batch.

Source: the names of the forms are those of `webdataset.autodecode.imagespecs`, as in Energon's `SampleDecoder`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import simplejpeg

from bridge_data.counts import COUNTS
from bridge_data.decode.media_kinds import IMAGE_EXTENSIONS as IMAGE_EXTENSIONS
from bridge_data.decode.resizing import Resizing, Size, by_pillow, by_torch
from bridge_data.errors import ConfigError
from bridge_data.later import Image, nanoarrow, torch, torch_itself
from bridge_data.limits import DEFAULT_LIMITS
from bridge_data.samples.arena import current_arena

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray
    from PIL import ImageFile

logger = logging.getLogger("bridge_data")

IMAGE_WARNINGS: list[str] = []
"""What is odd about images that were decoded, not logged yet: who knows the key of the sample logs it."""

_warned: set[str] = set()

ImageDecoderType: TypeAlias = Literal[
    "l8", "rgb8", "rgba8", "l", "rgb", "rgba",
    "torchl8", "torchrgb8", "torchrgba8", "torchl", "torchrgb", "torch", "torchrgba",
    "pill", "pil", "pilrgb", "pilrgba",
]  # fmt: skip

Orientation: TypeAlias = Literal["ignore", "apply"]
"""Whether an image is turned as its EXIF data say. Pillow itself always turns TIFF."""

Frames: TypeAlias = Literal["first", "all"]
"""Of an image with several frames or pages: the first, or a list of all."""


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


def image_handler(
    image_decode: str,
    resizing: Resizing | None = None,
    orientation: Orientation = "ignore",
    frames: Frames = "first",
    max_bytes: int = DEFAULT_LIMITS.max_video_bytes,
) -> Callable[[bytes], Any]:
    """The function that decodes image bytes to the form named `image_decode`, and resizes them; with `frames="all"`, to
    a list, also of a single frame, of at most `max_bytes` in uint8.

    Raises:
        ConfigError: for a name that is not in `IMAGE_FORMS`, a form that this `resizing` does not support, or another
            word for `orientation` or `frames`.
    """
    form = IMAGE_FORMS.get(image_decode)
    if form is None:
        raise ConfigError(f"image_decode={image_decode!r}: expected one of {', '.join(IMAGE_FORMS)}")
    for name, value, words in (("orientation", orientation, Orientation), ("frames", frames, Frames)):
        if value not in get_args(words):
            raise ConfigError(f"{name}={value!r}: expected one of {', '.join(get_args(words))}")
    if resizing is not None and resizing.resize == "torch" and form.mode == "RGBA":
        raise ConfigError(
            f'resize="torch" mixes in the colours of transparent pixels, so it does not support '
            f'image_decode={image_decode!r}; use resize="pillow", or a form without transparency'
        )
    upright = orientation == "apply"
    if frames == "all":
        return functools.partial(_all_frames, form=form, resizing=resizing, upright=upright, max_bytes=max_bytes)
    made: Callable[..., Any]
    if form.container == "pil":
        made = image_in_size
    elif form.container == "torch":
        made = _scaled_tensor if form.scaled else _tensor
    else:
        made = _scaled_pixels if form.scaled else pixels_in_size
    return functools.partial(made, mode=form.mode, resizing=resizing, upright=upright)


def log_image_warnings(key: str) -> None:
    """Log what is in `IMAGE_WARNINGS`, as of the sample `key`."""
    while IMAGE_WARNINGS:
        logger.warning("sample %s: %s", key, IMAGE_WARNINGS.pop())


def _warn_once(kind: str, text: Callable[[], str]) -> None:
    """Have `text()` logged with the sample that is being decoded, unless a text of this kind was before."""
    if kind not in _warned:
        _warned.add(kind)
        IMAGE_WARNINGS.append(text())


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


def image_in_size(data: bytes, mode: str, resizing: Resizing | None, upright: bool = False) -> Image.Image:
    """The image as a Pillow image, resized if `resizing` says so, with the header's fields in `info`."""
    image = pillow_image(data, mode, None if resizing is None else resizing.least, upright=upright)
    return _resized(image, resizing)


def _resized(image: Image.Image, resizing: Resizing | None) -> Image.Image:
    if resizing is None:
        return image
    if resizing.resize == "pillow":
        return by_pillow(image, resizing.size)
    made = Image.fromarray(by_torch(np.array(image), resizing.size))
    made.info = image.info
    return made


def pixels_in_size(data: bytes, mode: str, resizing: Resizing | None, upright: bool = False) -> NDArray[np.uint8]:
    """The image as `decoded_pixels` gives it, resized if `resizing` says so."""
    if resizing is None:
        return decoded_pixels(data, mode, upright=upright)
    if resizing.resize == "torch":
        return by_torch(decoded_pixels(data, mode, resizing.least, upright=upright), resizing.size)
    return np.array(by_pillow(pillow_image(data, mode, resizing.least, upright=upright), resizing.size))


def _scaled_pixels(data: bytes, mode: str, resizing: Resizing | None, upright: bool) -> NDArray[np.float32]:
    return _in_unit(pixels_in_size(data, mode, resizing, upright))


def _in_unit(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.divide(pixels, 255, dtype=np.float32)


def _tensor(data: bytes, mode: str, resizing: Resizing | None, upright: bool) -> torch.Tensor:
    image = image_in_batch(data, mode, upright=upright) if resizing is None else None
    if image is None:
        image = torch_itself().from_numpy(_channels_first(pixels_in_size(data, mode, resizing, upright)))
    return image


def _scaled_tensor(data: bytes, mode: str, resizing: Resizing | None, upright: bool) -> torch.Tensor:
    return _tensor_in_unit(pixels_in_size(data, mode, resizing, upright))


def _tensor_in_unit(pixels: NDArray[np.uint8]) -> torch.Tensor:
    # Transposing uint8 with numpy is faster than transposing floats, or with torch.
    scaled: torch.Tensor = torch_itself().from_numpy(np.ascontiguousarray(_channels_first(pixels)))
    return scaled.float().div_(255)


def _all_frames(data: bytes, form: ImageForm, resizing: Resizing | None, upright: bool, max_bytes: int) -> list[Any]:
    return [_in_form(_resized(image, resizing), form) for image in _frames(data, form.mode, upright, max_bytes)]


def _in_form(image: Image.Image, form: ImageForm) -> Any:
    if form.container == "pil":
        return image
    pixels = np.array(image)
    if form.container == "numpy":
        return _in_unit(pixels) if form.scaled else pixels
    return _tensor_in_unit(pixels) if form.scaled else torch.from_numpy(_channels_first(pixels))


def _channels_first(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels


_RUNS_PROGRAMS = frozenset({"EPS"})

_MAX_JPEG_SCANS = 32
"""Usual progressive JPEGs have about 10."""

_JPEG = b"\xff\xd8\xff"
"""The first bytes of a JPEG."""

_JPEG_SEGMENT = struct.Struct(">BBH")
"""The start of a segment of a JPEG's header: 0xFF, its marker, and its size without these two bytes."""

_DCT_DIVISORS = (8, 4, 2)
"""JPEG can be decoded at n/8 of its size. Other n are slower than full size, for lack of SIMD code."""


def encoded_size(data: bytes, *, upright: bool = False) -> Size:
    """(height, width) of an encoded image, from its header; `upright`, as it is after EXIF orientation."""
    if data[:3] == _JPEG:
        try:
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        except ValueError:
            pass
        else:
            refuse_bomb(width, height)
            return turned_size((height, width), _orientation_of_jpeg(data) if upright else 1)
    with _opened(data) as image:
        return turned_size((image.height, image.width), orientation_of(image) if upright else 1)


def decoded_pixels(data: bytes, mode: str, least: Size | None = None, *, upright: bool = False) -> NDArray[np.uint8]:
    """The image as uint8, (H, W) for mode L, else (H, W, C), in newly allocated memory.

    With `least`, a JPEG is decoded at the smallest of 1/2, 1/4 or 1/8 of its size that is at least `least`. With
    `upright`, EXIF orientation is applied.
    """
    if data[:3] == _JPEG:
        orientation = _orientation_of_jpeg(data) if upright else 1
        least = None if least is None else turned_size(least, orientation)
        if mode != "L":
            pixels = _jpeg_pixels(data, mode, mode, least)
        else:
            gray = _jpeg_image(data, mode, least)
            pixels = None if gray is None else np.array(gray)
        if pixels is not None:
            COUNTS.images += 1
            return pixels if orientation == 1 else _turned(pixels, orientation)
    with _opened(data) as image:
        return np.array(_loaded(image, data, mode, upright, detached=False))


def image_in_batch(data: bytes, mode: str, *, upright: bool = False) -> torch.Tensor | None:
    """A JPEG as uint8 (C, H, W), decoded directly into the memory of the next batch, so that stacking needs no copy.

    None if that has none for it (see `Arena.image_buffer`), simplejpeg cannot decode the image as Pillow does, or it
    must be turned.
    """
    arena = current_arena()
    if arena is None or not arena.num_images or mode == "L" or data[:3] != _JPEG:
        return None
    if upright and _orientation_of_jpeg(data) != 1:
        return None
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        refuse_bomb(width, height)
        is_alone = refuse_scans(data)
        buffer = arena.image_buffer((height, width, len(mode))) if colours in ("Gray", "YCbCr") else None
        if buffer is None:
            return None
        pixels, image = buffer
        simplejpeg.decode_jpeg(data, mode, buffer=pixels)
    except ValueError:
        return None
    COUNTS.images += 1
    if not is_alone:
        _note_frames_of_jpeg(data)
    return image


def pillow_image(data: bytes, mode: str, least: Size | None = None, *, upright: bool = False) -> Image.Image:
    """The image as a Pillow image, with the header's fields in `info`; `least` and `upright` as in `decoded_pixels`."""
    with _opened(data) as image:
        if data[:3] == _JPEG:
            if upright and least is not None:
                least = turned_size(least, orientation_of(image))
            made = _jpeg_image(data, mode, least)
            if made is not None:
                made.info = dict(image.info)
                COUNTS.images += 1
                return _upright(made) if upright else made
        return _loaded(image, data, mode, upright)


def _loaded(image: ImageFile.ImageFile, data: bytes, mode: str, upright: bool, *, detached: bool = True) -> Image.Image:
    """An image that Pillow decodes, in this mode; unless it is to be `detached`, maybe the file itself."""
    if detached or getattr(image, "is_animated", False):
        made = _detached(image, mode)
    else:
        image.load()
        made = in_mode(image, mode)
    if data[:3] == _JPEG and (damage := damage_of(data)) is not None:
        COUNTS.damaged_images += 1
        _warn_once("damage", lambda: _DAMAGE_WARNING.format(damage))
    _note_frames(image)
    COUNTS.images += 1
    return _upright(made) if upright else made


def _detached(image: ImageFile.ImageFile, mode: str) -> Image.Image:
    """The current frame of a file, in this mode, as an image of its own."""
    image.load()
    made = in_mode(image, mode)
    return image.copy() if made is image else made


def _frames(data: bytes, mode: str, upright: bool, max_bytes: int) -> Iterator[Image.Image]:
    """All frames or pages of an image, each decoded by Pillow."""
    with _opened(data) as image:
        numbers = frame_numbers(image)
        if len(numbers) == 1:
            yield pillow_image(data, mode, upright=upright)
            return
        num_bytes = 0
        for number in numbers:
            image.seek(number)
            refuse_bomb(*image.size)
            num_bytes += image.width * image.height * len(mode)
            if num_bytes > max_bytes:
                raise ValueError(
                    f"its {len(numbers)} frames are more than the {max_bytes} bytes allowed (Limits(max_video_bytes))"
                )
            made = _detached(image, mode)
            yield _upright(made) if upright else made
            COUNTS.images += 1


# Pixels of more than 8 bits

_HOLD_SHORTS = frozenset({"PPM", "PNG"})
"""Formats whose images of mode I have values of 16 bits."""


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """`image.convert(mode)`, where Pillow would not clip values: 16 bits, and the 12 of TIFF, are scaled to 8 by
    their range, not by the values that an image has; floats are scaled from 0..1.

    Raises:
        ValueError: for floats outside of 0..1, NaN, and integers of 32 bits or with a sign, as nothing says what is
            white.
    """
    if image.mode != "F" and image.mode[0] != "I":
        return image if image.mode == mode else image.convert(mode)
    scaled = _in_8_bits(image)
    scaled.info = dict(image.info)
    return scaled if mode == "L" else scaled.convert(mode)


def _in_8_bits(image: Image.Image) -> Image.Image:
    values, tags = np.asarray(image), getattr(image, "tag_v2", {})
    if image.mode == "F":
        pixels = bytes_of_unit(values)
    elif (image.mode == "I" and image.format not in _HOLD_SHORTS) or image.format == "FITS":
        raise ValueError(_no_scale(f"integers of {8 * values.itemsize} bits, or with a sign", values))
    else:
        num_bits = min(16, *tags.get(_BITS_PER_SAMPLE, (16,)))
        pixels = np.clip(values, 0, 65_535).astype(np.uint16) >> (num_bits - 8)
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        pixels = 255 - pixels
    return Image.fromarray(pixels.astype(np.uint8))


_BITS_PER_SAMPLE, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0
"""Tags of TIFF, and a value of the second: Pillow heeds it in 8 bits alone."""


def bytes_of_unit(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Floats in 0..1 as uint8.

    Raises:
        ValueError: for others.
    """
    if not bool(((values >= 0) & (values <= 1)).all()):
        raise ValueError(_no_scale("floats, expected 0 to 1", values))
    return np.rint(values * 255.0).astype(np.uint8)


def _no_scale(what: str, values: NDArray[Any]) -> str:
    return (
        f"its pixels are {what}: from {values.min():g} to {values.max():g}, and nothing says which value is white; "
        "store 8 or 16 bits, or floats in 0..1, or decode it yourself: SampleDecoder(handlers={...})"
    )


# Orientation

_ORIENTATION = 0x0112
"""The tag of EXIF; the values 5 to 8 exchange height and width."""


def orientation_of(image: Image.Image) -> int:
    """The EXIF orientation of an opened image, 1 to 8; 1 if there is none, or it was applied already."""
    if image.format == "TIFF":
        return 1
    with contextlib.suppress(Exception):  # EXIF data that cannot be read say nothing
        orientation = image.getexif().get(_ORIENTATION, 1)
        return orientation if orientation in range(1, 9) else 1
    return 1


def _orientation_of_jpeg(data: bytes) -> int:
    begin = _first_scan(data)[0]
    header = data[:begin] if data[begin : begin + 2] == b"\xff\xda" else data
    if b"\x01\x12" in header or b"\x12\x01" in header or b"tiff:Orientation" in header:
        with _opened(data) as image:
            return orientation_of(image)
    return 1


def turned_size(size: Size, orientation: int) -> Size:
    """The (height, width) that an image of `size` has after its orientation is applied, and the other way round."""
    return (size[1], size[0]) if orientation >= 5 else size


def _turned(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _upright(image: Image.Image) -> Image.Image:
    """The image, turned, and its orientation taken from `info`, so that nobody turns it again."""
    if orientation_of(image) == 1:
        return image
    turned: Image.Image = importlib.import_module("PIL.ImageOps").exif_transpose(image)
    return turned


# Frames

_HAS_LAYERS = "PSD"
_NOT_PAGES = 0b101
"""Bits of the type of a TIFF page: a smaller copy of another, and a mask."""


def frame_numbers(image: Image.Image) -> Sequence[int]:
    """The numbers of the frames or pages of an opened image, without thumbnails, masks and layers; `image` is then at
    any of them."""
    if image.format == _HAS_LAYERS or not getattr(image, "is_animated", False):
        return (0,)
    numbers = range(getattr(image, "n_frames", 1))
    if image.format == "MPO":
        entries = getattr(image, "mpinfo", {}).get(0xB002, ())
        kinds = [str(entry["Attribute"]["MPType"]) for entry in entries]
        return [number for number in numbers if number == 0 or not kinds[number].startswith("Large Thumbnail")]
    if image.format == "TIFF":
        return [number for number in numbers if number == 0 or not _type_of_page(image, number) & _NOT_PAGES]
    return numbers


def _type_of_page(image: Any, number: int) -> int:
    image.seek(number)
    kind: int = image.tag_v2.get(254, 0)
    return kind


def num_frames(data: bytes) -> int:
    """The number of frames or pages of an encoded image."""
    with _opened(data) as image:
        return len(frame_numbers(image))


def _note_frames(image: Image.Image) -> None:
    """Count an image of which only the first frame is taken. It may not be decoded after that."""
    if not getattr(image, "is_animated", False):
        return
    shown = f"{image.format}, {image.width} x {image.height}"
    with contextlib.suppress(Exception):  # what comes after the first frame may be damaged
        if image.format == "GIF" or len(frame_numbers(image)) > 1:
            COUNTS.first_frames += 1
            _warn_once("frames", lambda: _FRAMES_WARNING.format(shown, len(frame_numbers(image))))


def _note_frames_of_jpeg(data: bytes) -> None:
    with contextlib.suppress(Exception), _opened(data) as image:  # the first image was decoded
        _note_frames(image)


_FRAMES_WARNING = (
    "an image ({}) has {} frames or pages, and only the first is taken; "
    'SampleDecoder(frames="all") makes a list of all. '
    "Others are counted (LoaderMetrics.first_frames), and not logged: `bridge-data check` lists them"
)


# JPEG

_DAMAGE_WARNING = (
    "a JPEG is damaged ({}), and its pixels are guessed from where the damage begins. Others are counted "
    "(LoaderMetrics.damaged_images), and not logged: `bridge-data check` lists them"
)


def damage_of(data: bytes) -> str | None:
    """What is wrong with the content of a JPEG that Pillow decodes all the same; None if nothing is."""
    try:
        colours = simplejpeg.decode_jpeg_header(data)[2]
        simplejpeg.decode_jpeg(data, "CMYK" if colours in ("CMYK", "YCCK") else "RGB")
    except ValueError as error:
        return str(error)
    return None


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
        is_alone = refuse_scans(data)
        if colours not in ("Gray", "YCbCr"):
            return None
        min_height, min_width = (0, 0) if least is None else _dct_size((height, width), least)
        channels = of_gray if colours == "Gray" else of_colour
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(data, channels, min_height=min_height, min_width=min_width)
    except ValueError:
        return None
    if not is_alone:
        _note_frames_of_jpeg(data)
    return pixels


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
    if data[:3] == _JPEG:
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


def refuse_scans(data: bytes) -> bool:
    """Refuse a JPEG that stores its pixels many times over: an empty scan takes 60 bytes, and as long as a full one.
    Returns whether it declares no other images behind it."""
    # nearly all have one scan, and counting would take a twentieth of the time of decoding
    begin, is_only, is_alone = _first_scan(data)
    num_scans = 1 if is_only else data.count(b"\xff\xda", begin)
    if num_scans > _MAX_JPEG_SCANS:
        raise Image.DecompressionBombError(f"{num_scans} scans of a JPEG are more than the {_MAX_JPEG_SCANS} allowed")
    return is_alone


def _first_scan(data: bytes) -> tuple[int, bool, bool]:
    """Where the first scan of a JPEG begins, or what is no segment; whether decoders stop after it, as it has all
    components and is not progressive; and whether no list of several images (MPF) comes before. What comes before is no
    scan, whatever its bytes, such as those of a profile."""
    at, num_components, is_alone = 2, 0, True
    while at + 10 <= len(data):
        start, marker, num_bytes = _JPEG_SEGMENT.unpack_from(data, at)
        if start != 0xFF or marker < 0xC0 or 0xD0 <= marker <= 0xD9 or marker == 0xFF or num_bytes < 2:
            break
        if marker == 0xDA:
            return at, data[at + 4] == num_components > 0, is_alone
        if marker in (0xC0, 0xC1):
            num_components = data[at + 9]
        elif marker == 0xE2 and data[at + 4 : at + 8] == b"MPF\0":
            is_alone = False
        at += 2 + num_bytes
    return at, False, is_alone


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
