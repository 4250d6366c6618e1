"""Small data for tiny models: five prepared data sets, written in a second.

    captions        .png + .txt     squares of a colour, and which colour
    conversations   .png + .json    questions about up to two squares
    dialogs         .json           questions without images
    documents       .txt            sentences
    speech          .wav + .txt     tones, and how high they are

They are the same on every machine, and only show that something runs.
"""

import functools
import io
import json
import math
import sys
import wave
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from bridge_data import write

COLOURS = {"red": (200, 30, 30), "green": (30, 160, 40), "blue": (40, 60, 200), "white": (240, 240, 240)}
NUM_SAMPLES = 24
SPLIT = {"train": 3, "val": 1}


def write_tiny_data(folder: Path) -> None:
    """Write the data sets that are not there yet below `folder`."""
    makers: dict[str, tuple[Callable[[int], dict[str, Any]], dict[str, Any]]] = {
        "captions": (
            _caption,
            {"sample_type": "CaptioningSample", "field_map": {"image": "png", "caption": "txt"}},
        ),
        "conversations": (functools.partial(_conversation, most_images=2), {}),
        "dialogs": (functools.partial(_conversation, most_images=0), {}),
        "documents": (_document, {"sample_type": "TextSample", "field_map": {"text": "txt"}}),
        "speech": (_recording, {}),
    }
    for name, (make, definition) in makers.items():
        if not (folder / name / ".nv-meta").exists():
            samples = ({"__key__": f"{n:03d}", **make(n)} for n in range(NUM_SAMPLES))
            write(samples, folder / name, max_samples=NUM_SAMPLES // 4, split=SPLIT, split_by="shard", **definition)


def _colour(number: int) -> str:
    return list(COLOURS)[number % len(COLOURS)]


def _square(number: int) -> bytes:
    size = 16 + number * 5 % 24, 16 + number * 7 % 24
    file = io.BytesIO()
    Image.new("RGB", size, COLOURS[_colour(number)]).save(file, "png")
    return file.getvalue()


def _caption(number: int) -> dict[str, Any]:
    return {"png": _square(number), "txt": f"a {_colour(number)} square"}


def _conversation(number: int, *, most_images: int) -> dict[str, Any]:
    count = number % (most_images + 1)
    turns = [
        {"role": "user", "content": "<image>" * count + "which colour?"},
        {"role": "assistant", "content": " and ".join(_colour(number + n) for n in range(count)) or "none"},
        {"role": "user", "content": "thank you"},
        {"role": "assistant", "content": "you are welcome"},
    ]
    return {"json": json.dumps(turns).encode()} | {f"{n}.png": _square(number + n) for n in range(count)}


def _document(number: int) -> dict[str, Any]:
    return {"txt": " ".join(f"a {_colour(number + n)} square." for n in range(number + 1))}


def _recording(number: int) -> dict[str, Any]:
    hertz = 200 + 100 * (number % 4)
    samples = array("h", (int(8000 * math.sin(2 * math.pi * hertz * n / 16_000)) for n in range(4000 + 300 * number)))
    if sys.byteorder == "big":
        samples.byteswap()
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 16_000, 0, "NONE", ""))
        out.writeframes(samples.tobytes())
    return {"wav": file.getvalue(), "txt": f"{hertz} hertz"}
