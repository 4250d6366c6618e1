"""Questions about up to two squares of a colour, and their answers: a small prepared data set, the same everywhere, to
show that something runs."""

import io
import json
from pathlib import Path
from typing import Any

from PIL import Image

from bridge_data import write

COLOURS = {"red": (200, 30, 30), "green": (30, 160, 40), "blue": (40, 60, 200), "white": (240, 240, 240)}
NUM_SAMPLES = 24
SPLIT = {"train": 3, "val": 1}


def write_conversations(folder: Path) -> Path:
    """Write the data set to `folder`: `.json` with the turns, and a `.png` for each square."""
    samples = ({"__key__": f"{number:03d}", **_conversation(number)} for number in range(NUM_SAMPLES))
    write(samples, folder, max_samples=NUM_SAMPLES // 4, split=SPLIT, split_by="shard")
    return folder


def _colour(number: int) -> str:
    return list(COLOURS)[number % len(COLOURS)]


def _square(number: int) -> bytes:
    size = 16 + number * 5 % 24, 16 + number * 7 % 24
    file = io.BytesIO()
    Image.new("RGB", size, COLOURS[_colour(number)]).save(file, "png")
    return file.getvalue()


def _conversation(number: int) -> dict[str, Any]:
    count = number % 3
    turns = [
        {"role": "user", "content": "<image>" * count + "which colour?"},
        {"role": "assistant", "content": " and ".join(_colour(number + n) for n in range(count)) or "none"},
        {"role": "user", "content": "thank you"},
        {"role": "assistant", "content": "you are welcome"},
    ]
    return {"json": json.dumps(turns).encode()} | {f"{n}.png": _square(number + n) for n in range(count)}
