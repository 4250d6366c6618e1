"""The pictures of a batch, as the processor made them, turned back into pictures.

Enters: the fields of a batch, and the image processor that normalised them. Leaves: Pillow images. Pixels are
de-normalised by the mean and deviation of the processor; without them, stretched from the least to the largest value,
and said so. Patches of the Qwen-VL families are put together by their grids.
"""

import dataclasses
import io
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from bridge_data.tools.view.batch_contents import fields_of, is_picture

MAX_PICTURES = 64
"""Pictures of a batch that are shown."""

_PATCHES = (("pixel_values", "image_grid_thw"), ("pixel_values_videos", "video_grid_thw"))


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessedPicture:
    """A picture of a batch: `field` is where it is; `exact`: its pixels are de-normalised, not stretched."""

    field: str
    image: Image.Image
    exact: bool

    @property
    def png(self) -> bytes:
        """The picture as a PNG file."""
        file = io.BytesIO()
        self.image.save(file, "PNG")
        return file.getvalue()


def pictures_of(batch: Any, encoder: Any) -> list[ProcessedPicture]:
    """The first pictures of a batch that `encoder` made."""
    processor = _processor_of(encoder)
    found = []
    for picture in _found(fields_of(batch), processor):
        found.append(picture)
        if len(found) == MAX_PICTURES:
            break
    return found


def _processor_of(encoder: Any) -> Any:
    """The image processor of a task encoder, or of its model family; None if it has none."""
    owners = (encoder, getattr(encoder, "family", None))
    return next((found for owner in owners if (found := getattr(owner, "image_processor", None)) is not None), None)


def _found(fields: Mapping[str, Any], processor: Any) -> Iterator[ProcessedPicture]:
    flat = _flat(fields)
    for pixels, grid in _PATCHES:
        if isinstance(flat.get(pixels), Tensor) and isinstance(flat.get(grid), Tensor) and flat[pixels].ndim == 2:
            for image in _from_patches(flat[pixels], flat[grid], processor):
                yield _picture(pixels, image, processor)
    for name, value in flat.items():
        if is_picture(value):
            for image in value.reshape(-1, *value.shape[-3:]):
                if image.any():  # tiles that only fill up are zeros
                    yield _picture(name, image, processor)


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, and those of mappings, lists and objects among them: `media`, `visual_inputs`."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat.update(value)
        elif isinstance(value, (list, tuple)):
            flat.update({f"{name}[{number}]": one for number, one in enumerate(value)})
        elif not isinstance(value, (Tensor, str, bytes)) and hasattr(value, "__dict__") and not name.startswith("__"):
            flat.update(vars(value))
        else:
            flat[name] = value
    return flat


def _from_patches(patches: Tensor, grids: Tensor, processor: Any) -> Iterator[Tensor]:
    """Pictures (3, H, W), of a video one for each time step, of patches (N, 3 · frames · patch²) in the sequence of
    merged tokens. Source: the image processor of Qwen2-VL in transformers."""
    names = ("patch_size", "merge_size", "temporal_patch_size")
    sizes = [getattr(processor, name, None) for name in names]
    if None in sizes:
        return
    patch, merge, frames = (int(size) for size in sizes if size is not None)
    first = 0
    for steps, rows, columns in grids.tolist():
        own = patches[first : first + steps * rows * columns]
        first += steps * rows * columns
        cut = own.reshape(steps, rows // merge, columns // merge, merge, merge, -1, frames, patch, patch)
        whole = cut.permute(0, 6, 5, 1, 3, 7, 2, 4, 8).reshape(steps, frames, -1, rows * patch, columns * patch)
        yield from whole[:, 0]


def _picture(field: str, image: Tensor, processor: Any) -> ProcessedPicture:
    image = image.detach().to("cpu")
    if image.dtype == torch.uint8:
        return ProcessedPicture(field, _as_image(image), True)
    image = image.to(torch.float32)
    mean, deviation = (getattr(processor, name, None) for name in ("image_mean", "image_std"))
    if mean is not None and deviation is not None and len(mean) == len(image):
        pixels = image * torch.tensor(deviation)[:, None, None] + torch.tensor(mean)[:, None, None]
        return ProcessedPicture(field, _as_image(pixels * 255), True)
    low, high = float(image.min()), float(image.max())
    if low >= 0 and high <= 1:
        return ProcessedPicture(field, _as_image(image * 255), True)
    return ProcessedPicture(field, _as_image((image - low) / max(high - low, 1e-9) * 255), False)


def _as_image(pixels: Tensor) -> Image.Image:
    array = pixels.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
