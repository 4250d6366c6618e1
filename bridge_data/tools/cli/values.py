"""What a value in a sample is, in a few words or lines."""

import dataclasses
import json
import shutil
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

from bridge_data.decode.av import AVDecoder
from bridge_data.errors import SampleError

MAX_LINES = 12
MAX_CHARACTERS = 400
MAX_ITEMS = 5


def describe_value(value: Any) -> str:
    """A few words or lines on `value`: the content of what is short, the shape and range of arrays."""
    if isinstance(value, str):
        return shown_text(value)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return _array(value)
    if isinstance(value, Image.Image):
        return f"Pillow image {value.width}×{value.height} {value.mode}"
    if isinstance(value, AVDecoder):
        return _clip(value)
    if isinstance(value, bytes):
        return f"{len(value):,} bytes: {value[:16].hex(' ')}{' …' if len(value) > 16 else ''}" if value else "no bytes"
    if isinstance(value, (list, tuple)) and not all(isinstance(item, (str, int, float, bool)) for item in value):
        return _items(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return f"{type(value).__name__} {describe_value(fields)}"
    if isinstance(value, Mapping) and not _is_plain(value):
        return "\n".join(f"{key}: {describe_value(item)}" for key, item in value.items()) or "{}"
    if isinstance(value, (Mapping, list, tuple)):
        return shown_json(value)
    return clipped(repr(value))


def shown_text(text: str) -> str:
    """A text in lines that fit the terminal; of a long one the beginning."""
    printable = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text[: MAX_CHARACTERS + 1])
    width = max(40, shutil.get_terminal_size().columns - 24)
    lines = [piece for line in printable[:MAX_CHARACTERS].splitlines() for piece in textwrap.wrap(line, width) or [""]]
    return clipped("\n".join(lines) + (" …" if len(text) > MAX_CHARACTERS else "")) or "empty"


def shown_json(value: Any) -> str:
    """A plain value as JSON, with long strings and lists cut."""
    short = _shortened(value)
    line = json.dumps(short, ensure_ascii=False)
    return line if len(line) <= 60 else clipped(json.dumps(short, indent=2, ensure_ascii=False))


def clipped(text: str) -> str:
    """The first lines of a text."""
    lines = text.splitlines()
    more = len(lines) - MAX_LINES
    return "\n".join([*lines[:MAX_LINES], f"… {more} more lines"] if more > 0 else lines)


def _shortened(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _shortened(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        rest = len(value) - MAX_ITEMS
        return [_shortened(item) for item in value[:MAX_ITEMS]] + ([f"… {rest} more"] if rest > 0 else [])
    if isinstance(value, str):
        return textwrap.shorten(value, 100, placeholder=" …") if len(value) > 100 else value
    return value


def _is_plain(value: Any) -> bool:
    """Whether JSON can hold it."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float, bool))


def _items(value: list[Any] | tuple[Any, ...]) -> str:
    """One line or more for each of the first items."""
    lines = [f"{number}: {describe_value(item)}" for number, item in enumerate(value[:MAX_ITEMS])]
    more = len(value) - MAX_ITEMS
    return "\n".join([*lines, f"… {more} more"] if more > 0 else lines)


def _array(value: torch.Tensor | np.ndarray[Any, Any]) -> str:
    shape = "×".join(map(str, value.shape)) or "scalar"
    kind = str(value.dtype).removeprefix("torch.")
    array = value.numpy() if isinstance(value, torch.Tensor) else value
    if not array.size:
        return f"{kind} {shape}"
    if array.size <= MAX_ITEMS:
        return f"{kind} {shape}: {array.tolist()}"
    if array.dtype.kind not in "biuf":
        return f"{kind} {shape}"
    return f"{kind} {shape}, {array.min():.4g} … {array.max():.4g}"


def _clip(value: AVDecoder) -> str:
    try:
        metadata = value.get_metadata()
    except SampleError as error:
        return f"not a readable clip: {error}"
    pieces = []
    if metadata.video_width:
        frames = f"{metadata.video_num_frames} frames" if metadata.video_num_frames else "video"
        pieces.append(f"{frames} {metadata.video_width}×{metadata.video_height}{_rate(metadata.video_fps, 'fps')}")
    if metadata.audio_sample_rate:
        channels = f"{metadata.audio_channels} channel{'' if metadata.audio_channels == 1 else 's'}"
        pieces.append(f"audio {channels}{_rate(metadata.audio_sample_rate, 'Hz')}")
    seconds = max(metadata.video_duration or 0, metadata.audio_duration or 0)
    return f"{'; '.join(pieces) or 'a clip without streams'}; {seconds:.2f} s"


def _rate(number: float | None, unit: str) -> str:
    return f", {number:g} {unit}" if number else ""
