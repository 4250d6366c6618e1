"""What is in a batch: rows of tokens with their loss mask, packs with their waste, pictures.

Enters: a batch, of our encoders or of a user's: a dataclass or a dict; the image processor that normalised its
pictures. Leaves: `BatchContents` and `ProcessedPicture`s for the templates. Fields are found by their usual names;
others are described in words. Pixels are de-normalised by the mean and deviation of the processor; without them, they
are stretched from the minimum to the maximum, and the page says so. Patches of the Qwen-VL families are assembled by
their grids.
"""

import dataclasses
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from bridge_data.tools.descriptions import describe_value

MAX_SHOWN_TOKENS = 2048
"""Maximum tokens shown of a row."""

MAX_PICTURES = 64
"""Maximum pictures shown of a batch."""

_TOKENS = ("tokens", "input_ids")

_PATCHES = (("pixel_values", "image_grid_thw"), ("pixel_values_videos", "video_grid_thw"))


@dataclasses.dataclass(frozen=True, slots=True)
class ShownToken:
    """A token of a row; `learnt`: it counts in the loss, as the label of the position before it."""

    text: str
    number: int
    position: int
    learnt: bool


@dataclasses.dataclass(frozen=True, slots=True)
class PackSegment:
    """A sample in a row: its first token and its length; `share` is its fraction of the row, `start` its beginning,
    both from 0 to 1."""

    key: str
    first: int
    length: int
    start: float
    share: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """A row of a batch: `length` tokens; `used` of them are not padding."""

    length: int
    used: int
    num_learnt: int
    segments: tuple[PackSegment, ...]
    tokens: tuple[ShownToken, ...]
    cu_seqlens: tuple[int, ...]

    @property
    def waste(self) -> float:
        """The share of the row that is padding."""
        return 1 - self.used / max(1, self.length)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchContents:
    """A batch: its sequences, if it has tokens, and descriptions of all its fields."""

    kind: str
    keys: tuple[str, ...]
    rows: tuple[BatchRow, ...]
    fields: tuple[tuple[str, str], ...]


def fields_of(batch: Any) -> Mapping[str, Any]:
    """The fields of a batch: a dict, or an object with attributes."""
    if isinstance(batch, Mapping):
        return batch
    if dataclasses.is_dataclass(batch):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return dict(vars(batch)) if hasattr(batch, "__dict__") else {"batch": batch}


def contents(batch: Any, tokenizer: Any = None) -> BatchContents:
    """The contents of a batch; `tokenizer` (of transformers; None: show numbers) decodes its tokens."""
    fields = fields_of(batch)
    keys = fields.get("__key__", fields.get("__keys__", ()))
    names = [keys] if isinstance(keys, str) else [str(key) for key in keys or ()]
    shown = tuple((name, describe_value(value)) for name, value in fields.items() if not name.startswith("__"))
    return BatchContents(
        kind=type(batch).__name__,
        keys=tuple(key for name in names for key in name.split(",")),
        rows=tuple(_rows(fields, names, tokenizer)),
        fields=shown,
    )


def _rows(fields: Mapping[str, Any], names: Sequence[str], tokenizer: Any) -> list[BatchRow]:
    tokens = next((fields[name] for name in _TOKENS if isinstance(fields.get(name), Tensor)), None)
    if tokens is None:
        return []
    tokens = tokens if tokens.ndim > 1 else tokens[None]
    mask = _like(fields.get("loss_mask"), tokens)
    positions = _like(fields.get("position_ids"), tokens)
    bounds = _bounds(fields, tokens)
    texts = TokenTexts(tokenizer)
    rows = []
    for number, row in enumerate(tokens):
        own = names[number].split(",") if len(names) == len(tokens) else list(names)
        learnt = [False] * len(row) if mask is None else [False, *(mask[number][:-1] > 0).tolist()]
        at = list(range(len(row))) if positions is None else positions[number].tolist()
        shown = row[:MAX_SHOWN_TOKENS].tolist()
        rows.append(
            BatchRow(
                length=len(row),
                used=bounds[number][-1],
                num_learnt=sum(learnt) if mask is None else int((mask[number] > 0).sum()),
                segments=tuple(_segments(bounds[number], own, len(row))),
                tokens=tuple(ShownToken(texts[token], token, at[n], learnt[n]) for n, token in enumerate(shown)),
                cu_seqlens=tuple(bounds[number]),
            )
        )
    return rows


def _like(value: Any, tokens: Tensor) -> Tensor | None:
    """The tensor with one number for each token; of mRoPE's three positions the first; None for any other value."""
    if not isinstance(value, Tensor):
        return None
    value = value if value.ndim > 1 else value[None]
    while value.ndim > 2:
        value = value[:, 0] if value.shape[0] == tokens.shape[0] else value[0]
    return value if value.shape == tokens.shape else None


def _bounds(fields: Mapping[str, Any], tokens: Tensor) -> list[list[int]]:
    """The first token of each sample of each row, and the end of the last: from `cu_seqlens`, else from `lengths` or an
    attention mask, else the whole row."""
    length, found = tokens.shape[1], fields.get("cu_seqlens")
    if isinstance(found, Tensor) and found.numel():
        rows = found if found.ndim > 1 else found[None]
        if len(rows) == len(tokens):
            return [sorted({min(length, int(bound)) for bound in row if bound >= 0} | {0}) for row in rows]
    mask = fields.get("attention_mask")
    if isinstance(mask, Tensor) and mask.shape == tokens.shape:
        return [[0, int(row.sum())] for row in mask]
    return [[0, length] for _ in tokens]


def _segments(bounds: Sequence[int], keys: Sequence[str], length: int) -> list[PackSegment]:
    found = []
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        key = keys[number] if number < len(keys) else f"sample {number}"
        found.append(PackSegment(key, first, end - first, first / length, (end - first) / length))
    return found


class TokenTexts(dict[int, str]):
    """The text of each token, decoded on demand."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> str:
        decode = getattr(self._tokenizer, "decode", None)
        text = str(token)
        if decode is not None and token >= 0:
            text = str(decode([token]))
        self[token] = text
        return text


def tokenizer_of(encoder: Any) -> Any:
    """The tokenizer of a task encoder; None if it has none."""
    return getattr(encoder, "tokenizer", None)


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessedPicture:
    """A picture of a batch: `field` is its location; `pixels` are the processor's, (1 or 3, height, width)."""

    field: str
    pixels: Tensor
    processor: Any

    @property
    def width(self) -> int:
        """In pixels."""
        return self.pixels.shape[2]

    @property
    def height(self) -> int:
        """In pixels."""
        return self.pixels.shape[1]

    @property
    def is_exact(self) -> bool:
        """Whether its pixels are de-normalised, not stretched."""
        return self._as_bytes()[1]

    @property
    def image(self) -> Image.Image:
        """The picture."""
        array = self._as_bytes()[0].round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
        return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)

    @property
    def png(self) -> bytes:
        """The picture as a PNG file."""
        file = io.BytesIO()
        self.image.save(file, "PNG")
        return file.getvalue()

    def _as_bytes(self) -> tuple[Tensor, bool]:
        """(pixels from 0 to 255, whether they are exact)."""
        pixels = self.pixels.detach().to("cpu")
        if pixels.dtype == torch.uint8:
            return pixels, True
        pixels = pixels.to(torch.float32)
        mean, deviation = (getattr(self.processor, name, None) for name in ("image_mean", "image_std"))
        if mean is not None and deviation is not None and len(mean) == len(pixels):
            pixels = pixels * torch.tensor(deviation)[:, None, None] + torch.tensor(mean)[:, None, None]
            return pixels * 255, True
        low, high = float(pixels.min()), float(pixels.max())
        if low >= 0 and high <= 1:
            return pixels * 255, True
        return (pixels - low) / max(high - low, 1e-9) * 255, False


def pictures_of(batch: Any, encoder: Any) -> list[ProcessedPicture]:
    """The first pictures of a batch that `encoder` made."""
    return list(itertools.islice(_pictures(fields_of(batch), _processor_of(encoder)), MAX_PICTURES))


def _processor_of(encoder: Any) -> Any:
    """The image processor of a task encoder, or of its model family; None if it has none."""
    owners = (encoder, getattr(encoder, "family", None))
    return next((found for owner in owners if (found := getattr(owner, "image_processor", None)) is not None), None)


def _pictures(fields: Mapping[str, Any], processor: Any) -> Iterator[ProcessedPicture]:
    flat = _flat(fields)
    for pixels, grid in _PATCHES:
        if isinstance(flat.get(pixels), Tensor) and isinstance(flat.get(grid), Tensor) and flat[pixels].ndim == 2:
            for image in _from_patches(flat[pixels], flat[grid], processor):
                yield ProcessedPicture(pixels, image, processor)
    for name, value in flat.items():
        if _is_picture(value):
            for image in value.reshape(-1, *value.shape[-3:]):
                if image.any():  # padding tiles are zeros
                    yield ProcessedPicture(name, image, processor)


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, and those of nested mappings, lists and objects: `media`, `visual_inputs`."""
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
    """Pictures (3, H, W), one per time step of a video, from patches (N, 3 · frames · patch²) in the order of merged
    tokens. Source: the image processor of Qwen2-VL in transformers."""
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


def _is_picture(value: Any) -> bool:
    """Whether a value is one or more pictures: bytes or floats (..., 1 or 3, height, width)."""
    if not isinstance(value, Tensor) or value.ndim < 3 or value.shape[-3] not in (1, 3) or min(value.shape) == 0:
        return False
    return value.dtype == torch.uint8 or value.is_floating_point()  # the three positions of mRoPE are integers
