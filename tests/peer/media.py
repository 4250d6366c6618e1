"""Small real media for data that both packages read."""

import io
from typing import Any

import numpy as np
import torch
from PIL import Image


def picture(number: int, kind: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    """The file of an image of noise over a ramp, 20 to 40 pixels wide; the same for the same number."""
    draw = np.random.default_rng(number)
    width, height = (int(side) for side in draw.integers(20, 40, 2))
    ramp = np.linspace(0, 200, width * height * 3).reshape(height, width, 3)
    pixels = (ramp + draw.integers(0, 55, ramp.shape)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def pth(value: Any) -> bytes:
    """The file that `torch.save` writes."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    """The file that `numpy.save` writes."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    """The file that `numpy.savez` writes."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()
