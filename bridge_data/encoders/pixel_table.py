"""Pixel values in one pass: uint8 until a batch is made, then each value is looked up.

An image processor resizes and cuts images of uint8. What it computes after that, rescaling and normalizing, depends on
the value and its channel alone: it makes at most 256 values of a channel. Reads image processors of transformers.
Returns a `PixelTable` of these values, which writes the float32 of all images of a batch, once, where they belong; they
are bit by bit those of the processor. Whether they are is tried where a table is made; without one, the processor
computes them itself.
"""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bridge_data.errors import FatalSampleError

LEVELS = 256
"""Values of uint8."""

_AT_ONCE = 1 << 12
"""Values that are looked up at a time, to stay in a cache of the CPU."""


class PixelTable:
    """What an image processor makes of each value of each channel: `values`, float32 (channels, 256), with these
    `settings` of it."""

    def __init__(self, values: NDArray[np.float32], settings: Sequence[Any]) -> None:
        self.values, self.settings = values, settings

    def filled(self, pixels: Sequence[Tensor], copies: int = 1) -> Tensor:
        """The pixel values of uint8 (items, channels, ...), all items one after the other: float32 (items, channels,
        copies, ...), without the dimension of copies if there is one."""
        shape = pixels[0].shape[1:]
        whole = torch.empty(sum(map(len, pixels)), shape[0], copies, *shape[1:])
        self.write(pixels, whole)
        return whole[:, :, 0] if copies == 1 else whole

    def write(self, pixels: Sequence[Tensor], whole: Tensor) -> None:
        """Write the pixel values of uint8 (items, channels, ...) to the first items of a contiguous float32 (items,
        channels, copies, ...)."""
        start = 0
        for some in pixels:
            items = some.flatten(2).numpy()
            end = start + len(items)
            target = whole[start:end].flatten(3).numpy()
            step = max(1, _AT_ONCE // items.shape[2])
            for first in range(0, len(items), step):
                part = slice(first, first + step)
                for channel in range(len(self.values)):
                    found = self._looked_up(channel, np.ascontiguousarray(items[part, channel]))
                    target[part, channel] = found[:, None]
            start = end

    def _looked_up(self, channel: int, items: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The values of a channel, two at a time where their number is even."""
        if items.shape[1] % 2:
            return np.take(self.values[channel], items)
        return np.take(self._pairs[channel], items.view(np.uint16)).view(np.float32)

    @functools.cached_property
    def _pairs(self) -> list[NDArray[np.complex64]]:
        """For each channel, the values of each two: half a megabyte."""
        pairs = np.arange(LEVELS * LEVELS, dtype=np.uint16).view(np.uint8)
        return [values[pairs].view(np.complex64) for values in self.values]

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values, "settings": self.settings}


def table_of(processor: Any) -> PixelTable | None:
    """The table of an image processor; None if it does not compute as those of transformers do."""
    levels = np.arange(LEVELS, dtype=np.uint8).reshape(1, 16, 16).repeat(3, axis=0)
    with contextlib.suppress(Exception):  # a processor of another kind may raise anything
        settings = settings_of(processor)
        if fused := getattr(processor, "rescale_and_normalize", None):  # torchvision's
            made = fused(torch.from_numpy(levels)[None], *settings)[0]
        else:
            does_rescale, factor, does_normalize, mean, std = settings
            made = processor.rescale(levels, factor) if does_rescale else levels
            made = processor.normalize(made, mean, std) if does_normalize else made
        values = np.asarray(made)
        if values.dtype == np.float32 and values.shape == levels.shape:
            return PixelTable(values.reshape(3, LEVELS), settings)
    return None


def settings_of(processor: Any) -> tuple[bool, float, bool, tuple[float, ...], tuple[float, ...]]:
    """The settings on which a table depends: whether and by which factor values are rescaled, and whether they are
    normalized, with the mean and the standard deviation of each channel."""
    return (
        processor.do_rescale,
        processor.rescale_factor,
        processor.do_normalize,
        tuple(processor.image_mean),
        tuple(processor.image_std),
    )


def processed(processor: Any, images: Sequence[Any], table: PixelTable | None, **options: Any) -> Any:
    """What an image processor makes of images; with a table, `pixel_values` are uint8, to be looked up.

    Raises:
        FatalSampleError: if its settings are not those of the table.
    """
    if table is None:
        return processor(images=list(images), return_tensors="pt", **options)
    check_settings(processor, table)
    return processor(images=list(images), return_tensors="pt", do_rescale=False, do_normalize=False, **options)


def check_settings(processor: Any, table: PixelTable) -> None:
    """Raise a FatalSampleError if the settings of an image processor are not those of its table."""
    if (settings := settings_of(processor)) != table.settings:
        raise FatalSampleError(
            f"{type(processor).__name__}: its settings (do_rescale, rescale_factor, do_normalize, image_mean, "
            f"image_std) are {settings}, but were {table.settings} when the encoder was made; set them before"
        )
