"""What parts and values are, as facts for JSON and as text for a terminal.

`part_facts` and `facts_of` read the content of a part, or a value of a field. They return its `type` and what that has,
such as a size, as a dict for JSON; `text_of` makes a text of a few lines of it. No pixel is decoded for that: pictures
and clips are told by their headers.
"""

import contextlib
import dataclasses
import io
import json
import shutil
import textwrap
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

from bridge_data.data.plain_data import parse_json
from bridge_data.decode.av import AV_EXTENSIONS, AVDecoder
from bridge_data.decode.image import IMAGE_EXTENSIONS, frame_numbers
from bridge_data.errors import SampleError, counted

TEXT_PARTS = frozenset({"txt", "text", "transcript", "cls", "cls2", "index", "csv", "md", "yaml", "yml", "html"})

MAX_LINES = 12

MAX_TEXT_CHARACTERS = 400

MAX_ITEMS = 5


_NUM_FIRST_BYTES = 16


def part_facts(part: str, data: Any) -> dict[str, Any]:
    """The `type` of a part's content and what that has, such as a size; or an `error`."""
    if not isinstance(data, bytes):
        return facts_of(data)
    kind = part.rpartition(".")[2].lower()
    if kind == "json":
        try:
            return {"type": "json", "value": parse_json(data)}
        except ValueError as error:
            return {"type": "json", "error": f"not JSON: {error}"}
    if kind == "jsonl" or kind in TEXT_PARTS:
        try:
            return {"type": "text", "text": data.decode()}
        except UnicodeDecodeError as error:
            return {"type": "text", "error": f"not UTF-8: {error}"}
    if kind in IMAGE_EXTENSIONS:
        return _image(data)
    if kind in AV_EXTENSIONS:
        return _clip(AVDecoder(data))
    return {**facts_of(data), "type": "unknown"}


def _image(data: bytes) -> dict[str, Any]:
    """Size and mode, from the header; no pixel is decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        return {"type": "image", "error": f"not a readable image: {error}"}
    facts = {"type": "image", "format": image.format, "width": image.width, "height": image.height, "mode": image.mode}
    num_frames = 1
    with contextlib.suppress(Exception):  # what comes after the first frame may be damaged
        num_frames = len(frame_numbers(image))
    return facts if num_frames == 1 else {**facts, "num_frames": num_frames}


def _clip(value: AVDecoder) -> dict[str, Any]:
    try:
        return {"type": "clip", **dataclasses.asdict(value.get_metadata())}
    except SampleError as error:
        return {"type": "clip", "error": f"not a readable clip: {error}"}


def facts_of(value: Any) -> dict[str, Any]:
    """The `type` of a value and what that has; of what is long or cannot be plain data, some."""
    if isinstance(value, str):
        return {"type": "text", "text": value}
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return _array(value)
    if isinstance(value, Image.Image):
        return {"type": "image", "format": None, "width": value.width, "height": value.height, "mode": value.mode}
    if isinstance(value, AVDecoder):
        return _clip(value)
    if isinstance(value, bytes):
        return {"type": "bytes", "num_bytes": len(value), "first_bytes": value[:_NUM_FIRST_BYTES].hex()}
    if isinstance(value, (list, tuple)) and not all(isinstance(item, (str, int, float, bool)) for item in value):
        return {"type": "list", "num_items": len(value), "items": [facts_of(item) for item in value[:MAX_ITEMS]]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"type": "object", "class": type(value).__name__, "fields": facts_of(fields)}
    if isinstance(value, Mapping) and not _is_plain(value):
        return {"type": "dict", "items": {key: facts_of(item) for key, item in value.items()}}
    if isinstance(value, (Mapping, list, tuple)):
        return {"type": "dict" if isinstance(value, Mapping) else "list", "value": value}
    if value is None or isinstance(value, (bool, int, float)):
        return {"type": "scalar", "value": value}
    return {"type": "object", "class": type(value).__name__, "text": repr(value)}


def _array(value: torch.Tensor | np.ndarray[Any, Any]) -> dict[str, Any]:
    facts = {"type": "array", "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    array = value.numpy() if isinstance(value, torch.Tensor) else value
    if not array.size:
        return facts
    if array.size <= MAX_ITEMS:
        return {**facts, "values": array.tolist()}
    if array.dtype.kind not in "biuf":
        return facts
    return {**facts, "min": array.min().item(), "max": array.max().item()}


def text_of(facts: dict[str, Any]) -> str:
    """The text that shows the facts of a part or a value."""
    match facts:
        case {"error": error}:
            return str(error)
        case {"type": "text", "text": text}:
            return shown_text(text)
        case {"type": "json", "value": value}:
            return clipped(shown_json(value))
        case {"type": "image", "width": width, "height": height, "mode": mode}:
            frames = f", the first of {facts['num_frames']:,} frames" if "num_frames" in facts else ""
            return f"{facts['format'] or 'Pillow image'} {width}×{height} {mode}{frames}"
        case {"type": "clip"}:
            return _clip_text(facts)
        case {"type": "array"}:
            return _array_text(facts)
        case {"type": "bytes" | "unknown" as kind, "num_bytes": num_bytes, "first_bytes": first}:
            if not num_bytes:
                return "empty" if kind == "unknown" else "no bytes"
            shown = f"{bytes.fromhex(first).hex(' ')}{' …' if num_bytes > _NUM_FIRST_BYTES else ''}"
            return shown if kind == "unknown" else f"{num_bytes:,} bytes: {shown}"
        case {"type": "list", "items": items, "num_items": num_items}:
            lines = [f"{number}: {text_of(item)}" for number, item in enumerate(items)]
            more = num_items - len(items)
            return "\n".join([*lines, f"… {more} more"] if more > 0 else lines)
        case {"type": "dict", "items": items}:
            return "\n".join(f"{key}: {text_of(item)}" for key, item in items.items()) or "{}"
        case {"type": "object", "class": name, "fields": fields}:
            return f"{name} {text_of(fields)}"
        case {"type": "object", "text": text}:
            return clipped(text)
        case {"type": "scalar", "value": value}:
            return repr(value)
    return shown_json(facts["value"])


def _array_text(facts: dict[str, Any]) -> str:
    text = f"{facts['dtype']} {'×'.join(map(str, facts['shape'])) or 'scalar'}"
    if "values" in facts:
        return f"{text}: {facts['values']}"
    return f"{text}, {facts['min']:.4g} … {facts['max']:.4g}" if "min" in facts else text


def _clip_text(facts: dict[str, Any]) -> str:
    pieces = []
    if facts["video_width"]:
        frames = f"{facts['video_num_frames']} frames" if facts["video_num_frames"] else "video"
        pieces.append(f"{frames} {facts['video_width']}×{facts['video_height']}{_rate(facts['video_fps'], 'fps')}")
    if facts["audio_sample_rate"]:
        channels = counted(facts["audio_channels"], "channel")
        pieces.append(f"audio {channels}{_rate(facts['audio_sample_rate'], 'Hz')}")
    seconds = max(facts["video_duration"] or 0, facts["audio_duration"] or 0)
    return f"{'; '.join(pieces) or 'a clip without streams'}; {seconds:.2f} s"


def _rate(number: float | None, unit: str) -> str:
    return f", {number:g} {unit}" if number else ""


def shown_text(text: str) -> str:
    """A text in lines that fit the terminal; only the beginning if it is long."""
    printable = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text[: MAX_TEXT_CHARACTERS + 1])
    width = max(40, shutil.get_terminal_size().columns - 24)
    lines = [
        piece for line in printable[:MAX_TEXT_CHARACTERS].splitlines() for piece in textwrap.wrap(line, width) or [""]
    ]
    return clipped("\n".join(lines) + (" …" if len(text) > MAX_TEXT_CHARACTERS else "")) or "empty"


def shown_json(value: Any) -> str:
    """A plain value as JSON, with long strings and lists cut."""
    short = _shortened(value)
    line = json.dumps(short, ensure_ascii=False)
    return line if len(line) <= 60 else clipped(json.dumps(short, indent=2, ensure_ascii=False))


def clipped(text: str) -> str:
    """The first lines of a text."""
    lines = text.splitlines()
    more = len(lines) - MAX_LINES
    return "\n".join([*lines[:MAX_LINES], f"… {more} more lines (--json has all)"] if more > 2 else lines)


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
    """Whether JSON can represent it."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float, bool))
