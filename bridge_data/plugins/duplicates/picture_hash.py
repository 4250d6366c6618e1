"""The perceptual hash of a picture: 64 bits; few of them change when the picture is encoded again or resized.

Reads an encoded picture. Returns the hash, as an integer. The picture is shrunk to 32 x 32 grey pixels; each bit says
whether one of the 8 x 8 lowest frequencies of these is above the median. A picture without detail, such as a blank
page, has no hash: all of them would have the same.

Source: pHash, https://www.phash.org; the bits, and their order, are those of `imagehash.phash`. A few may differ for a
JPEG, which is decoded at a fraction of its size.
"""

import functools

import numpy as np
from numpy.typing import NDArray

from bridge_data.decode.image import image_within, pillow_image
from bridge_data.later import Image

NO_HASH = 0
"""Stands for the hash of a picture without detail; no other picture has it."""

SIDE, NUM_FREQUENCIES = 32, 8

LEAST_SIDE = 4 * SIDE
"""Large JPEGs are decoded at a fraction of their size, of at least this many pixels a side."""

MIN_CONTRAST = 8
"""Differences between shrunk pixels below this, of 256 levels, are not detail: JPEG adds as much to a blank page."""


def picture_hash(data: bytes, max_pixels: int) -> int:
    """The hash of the encoded picture `data`, which may have `max_pixels`; `NO_HASH` if it has no detail.

    Raises:
        Exception: any error of its decoder, if it cannot be decoded.
    """
    shrink = functools.partial(pillow_image, mode="L", least=(LEAST_SIDE, LEAST_SIDE))
    grey = image_within(max_pixels, shrink, data).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    pixels = np.asarray(grey, np.float64)
    if np.ptp(pixels) < MIN_CONTRAST:
        return NO_HASH
    waves = _waves()
    frequencies = waves @ pixels @ waves.T
    bits = np.packbits(frequencies > np.median(frequencies))
    return int.from_bytes(bits.tobytes(), "big")


@functools.cache
def _waves() -> NDArray[np.float64]:
    """The first rows of the matrix of a discrete cosine transform (type II)."""
    frequency, position = np.arange(NUM_FREQUENCIES)[:, None], np.arange(SIDE)
    return np.cos(np.pi * frequency * (2 * position + 1) / (2 * SIDE))
