"""Pictures for the tests of decoding: made, and encoded."""

import io
from typing import Any

import numpy as np
from PIL import Image, ImageDraw


def picture(size: tuple[int, int] = (64, 48), mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Noise over a gradient with a few shapes: edges and smooth parts, which chroma upsampling treats apart."""
    rng = np.random.default_rng(seed)
    ramp = np.linspace(0, 200, size[0] * size[1] * 3).reshape(size[1], size[0], 3)
    image = Image.fromarray((ramp + rng.integers(0, 55, ramp.shape)).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    draw.ellipse([0, 0, size[0] // 2, size[1] // 2], fill=(250, 20, 40))
    draw.line([0, size[1], size[0], 0], fill=(10, 240, 200), width=2)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(rng.integers(0, 256, (size[1], size[0]), dtype=np.uint8)))
    return image.convert(mode)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def half_overwritten(data: bytes) -> bytes:
    """Damaged as by a disk: Pillow decodes such a JPEG all the same."""
    half = len(data) // 2
    return data[:half] + b"A" * (len(data) - half)


def with_orientation(image: Image.Image, kind: str, orientation: int, **options: Any) -> bytes:
    """Encoded with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, kind, exif=exif, **options)


def frames_of(kind: str, *colours: str, **options: Any) -> bytes:
    """An image with a frame or page of each colour."""
    first, *others = [Image.new("RGB", (32, 24), colour) for colour in colours]
    return encoded(first, kind, save_all=True, append_images=others, **options)
