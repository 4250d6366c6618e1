"""Images on their way to an image processor: their size known before they are decoded, their limits kept.

Enters: images as encoded bytes or pixels. Leaves: sizes, and RGB images of Pillow. Guarantee: an image that is decoded
has the size that was told.
"""

import math
from collections.abc import Sequence
from typing import Any

from PIL import Image

from bridge_data.encoders.family import Size
from bridge_data.encoders.family_config import ImageLimits
from bridge_data.encoders.images import as_rgb, image_size
from bridge_data.encoders.policies import refuse


def picture_sizes(images: Sequence[Any], limits: ImageLimits, key: str) -> list[Size]:
    """The sizes of the images of sample `key` as `pictures` makes them; only headers are read.

    Raises:
        SkipSample, SampleError: if one is extreme, as `limits` says.
        SampleError: if a header cannot be read.
    """
    sizes = []
    for number, image in enumerate(images):
        height, width = image_size(image, key)
        short, long = sorted((height, width))
        if short < limits.min_side or long > limits.max_aspect * short:
            what = (
                f"image {number + 1} is {width} x {height} pixels; expected {limits.min_side} a side at least, and no "
                f"side more than {limits.max_aspect:g} times the other (ImageLimits)"
            )
            refuse(limits.extreme_image, key, what)
        sizes.append(limited_size((height, width), limits))
    return sizes


def limited_size(size: Size, limits: ImageLimits) -> Size:
    """A size of at least `min_pixels` and, before all, at most `max_pixels`, its aspect kept but for rounding."""
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


def pictures(images: Sequence[Any], limits: ImageLimits, key: str) -> list[Image.Image]:
    """The images of sample `key`, decoded, within the limits on pixels.

    Raises:
        SampleError: if one cannot be decoded.
    """
    made = []
    for image in images:
        picture = as_rgb(image, key)
        size = picture.height, picture.width
        if (wanted := limited_size(size, limits)) != size:
            picture = picture.resize((wanted[1], wanted[0]), Image.Resampling.BICUBIC)
        made.append(picture)
    return made
