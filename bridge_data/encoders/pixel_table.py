"""Pixel values in one pass: uint8 until a batch is made, or moved to a GPU, then each value is looked up.

An image processor resizes and cuts images of uint8, or families do that as it does. What it computes after that,
rescaling and normalizing, depends on the value and its channel alone: it makes at most 256 values of a channel. Reads
image processors of transformers. Returns a `PixelTable` of these values, and by it the float32 of all images of a
batch, which are bit by bit those of the processor; `looked_up` makes the same of bytes that went to a GPU. Whether the
bits are the same is tried where a family is made; without a table, the processor computes them itself.
"""

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bridge_data.errors import FatalSampleError
from bridge_data.samples.collation import uninitialized

LEVELS = 256
"""Values of uint8."""

_AT_ONCE = 1 << 15
"""Values that are looked up at a time, to stay in a cache of the CPU."""


PIXELS = ("pixel_values", "pixel_values_videos")
"""The names of pixel values among the media of a batch."""

TABLE = "pixel_table"
"""The name, among the media of a batch, of the values that are looked up: float32 (channels, copies, 256)."""

_CUTTING = ("do_resize", "size", "resample", "do_center_crop", "crop_size", "do_pad")
"""The settings by which an image processor resizes and cuts images."""

TILES = "pixel_tiles"
"""The name of the number of tiles of each image, int64 (images,), where an image has several; models do not take it."""


class PixelTable:
    """What an image processor makes of each value of each channel: `values`, float32 (channels, 256), with these
    `settings` of it."""

    def __init__(self, values: NDArray[np.float32], settings: Sequence[Any]) -> None:
        self.values, self.settings = values, settings

    def look_up(self, pixels: Tensor, copies: int, whole: Tensor | None = None) -> Tensor:
        """The pixel values of uint8 (items, channels, ...): float32 (items, channels, copies, ...). They are written to
        `whole`, else to the arena in which the batch is built, if there is one, whose memory is used again."""
        items = pixels.flatten(2).numpy()
        if whole is None:
            whole = uninitialized((*pixels.shape[:2], copies, *pixels.shape[2:]), torch.float32)
        target = whole.view(*pixels.shape[:2], copies, -1).numpy()
        step = max(1, _AT_ONCE // max(1, items.shape[2]))
        part, found = np.empty((step, items.shape[2]), np.uint8), np.empty((step, items.shape[2]), np.float32)
        for first in range(0, len(items), step):
            last = min(first + step, len(items))
            for channel in range(len(self.values)):
                some = part[: last - first]
                values = found[: last - first] if step > 1 else target[first:last, channel, 0]  # which is contiguous
                some[:] = items[first:last, channel]
                self._look_up(channel, some, values)
                target[first:last, channel, step == 1 :] = values[:, None]
        return whole

    def _look_up(self, channel: int, items: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """Write the values of a channel, two at a time where their number is even. No index is out of range, and numpy
        needs a buffer more in any other mode."""
        if items.shape[1] % 2:
            np.take(self.values[channel], items, out=out, mode="clip")
        else:
            np.take(self._pairs[channel], items.view(np.uint16), out=out.view(np.complex64), mode="clip")

    @functools.cached_property
    def _pairs(self) -> list[NDArray[np.complex64]]:
        """For each channel, the values of each two: half a megabyte."""
        pairs = np.arange(LEVELS * LEVELS, dtype=np.uint16).view(np.uint8)
        return [values[pairs].view(np.complex64) for values in self.values]

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values, "settings": self.settings}


def looked_up(media: Mapping[str, Tensor], table: PixelTable | None = None) -> dict[str, Tensor]:
    """The media of a batch as the model takes them, on the device where they are: with the table among them, uint8
    become of the table's type: float32, unless a trainer has changed that. On the CPU, the `table` itself is several
    times faster."""
    made = {name: value for name, value in media.items() if name not in (TABLE, TILES)}
    if TABLE not in media:
        return made
    values = media[TABLE]
    look_up = table.look_up if table is not None else functools.partial(_gathered, values)
    if "pixel_values" in made:
        made["pixel_values"] = _images(media, look_up, values.shape[1])
    if "pixel_values_videos" in made and made["pixel_values_videos"].dtype == torch.uint8:
        # Each frame of a time step stands there itself.
        made["pixel_values_videos"] = look_up(media["pixel_values_videos"], 1).flatten(1)
    return made


def _images(media: Mapping[str, Tensor], look_up: Callable[[Tensor, int], Tensor], copies: int) -> Tensor:
    pixels = media["pixel_values"]
    if pixels.ndim == 3:  # patches
        return look_up(pixels, copies).flatten(1)
    images = pixels.flatten(0, -4)
    found = look_up(images, 1).view(pixels.shape)
    is_there = media.get("pixel_attention_mask")
    if TILES in media:
        is_there = torch.arange(pixels.shape[1], device=pixels.device) < media[TILES][:, None]
        is_there = is_there[..., None, None]
    if is_there is not None and (is_there.device.type != "cpu" or not is_there.all()):
        found.masked_fill_(is_there.unsqueeze(2) == 0, 0)
    return found


def _gathered(values: Tensor, pixels: Tensor, copies: int) -> Tensor:
    """As `PixelTable.look_up`, on any device."""
    whole = values.new_empty(*pixels.shape[:2], copies, *pixels.shape[2:])
    for channel in range(len(values)):
        index = pixels[:, channel].to(torch.int32).flatten()
        found = values[channel, 0].index_select(0, index).view(pixels[:, channel].shape)
        whole[:, channel] = found.unsqueeze(1)
    return whole


def table_of(processor: Any) -> PixelTable | None:
    """The table of an image processor; None if it does not compute as those of transformers do."""
    levels = np.arange(LEVELS, dtype=np.uint8).reshape(1, 16, 16).repeat(3, axis=0)
    with contextlib.suppress(Exception):  # a processor of another kind may raise anything
        settings = settings_of(processor)
        does_rescale, factor, does_normalize, mean, std, *_ = settings
        if fused := getattr(processor, "rescale_and_normalize", None):  # torchvision's
            made = fused(torch.from_numpy(levels)[None], *settings[:5])[0]
        else:
            made = processor.rescale(levels, factor) if does_rescale else levels
            made = processor.normalize(made, mean, std) if does_normalize else made
        values = np.asarray(made)
        if values.dtype == np.float32 and values.shape == levels.shape:
            return PixelTable(values.reshape(3, LEVELS), settings)
    return None


def settings_of(processor: Any) -> tuple[Any, ...]:
    """The settings that pixel values depend on: whether and by which factor values are rescaled, whether they are
    normalized, with the mean and the standard deviation of each channel; and `_CUTTING`, which some have."""
    return (
        processor.do_rescale,
        processor.rescale_factor,
        processor.do_normalize,
        tuple(processor.image_mean),
        tuple(processor.image_std),
        *(copy.copy(getattr(processor, name, None)) for name in _CUTTING),
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
            f"image_std, {', '.join(_CUTTING)}) are {settings}, but were {table.settings} when the encoder was made; "
            "set them before"
        )
