"""Small data for tiny recipes: `python -m recipes.tiny_data tiny_data` writes five prepared data sets in a second.

    captions        .png + .txt     squares of a colour, and which colour
    conversations   .png + .json    questions about up to two squares
    dialogs         .json           questions without images
    documents       .txt            sentences
    speech          .wav + .txt     tones, and how high they are

They are the same on every machine, and only show that a recipe runs.
"""

import functools
import io
import json
import math
import sys
import wave
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

COLOURS = {"red": (200, 30, 30), "green": (30, 160, 40), "blue": (40, 60, 200), "white": (240, 240, 240)}
NUM_SAMPLES = 24

_CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}


def write_tiny_data(folder: Path) -> None:
    """Write the data sets that are not there yet below `folder`."""
    makers: dict[str, tuple[Callable[[int], dict[str, Any]], dict[str, Any]]] = {
        "captions": (_caption, _definition("CaptioningSample", image="png", caption="txt")),
        "conversations": (functools.partial(_conversation, most_images=2), _CRUDE),
        "dialogs": (functools.partial(_conversation, most_images=0), _CRUDE),
        "documents": (_document, _definition("TextSample", text="txt")),
        "speech": (_recording, _CRUDE),
    }
    for name, (make, definition) in makers.items():
        if not (folder / name / ".nv-meta").exists():
            _write(folder / name, ({"__key__": f"{n:03d}", **make(n)} for n in range(NUM_SAMPLES)), definition)


def _write(folder: Path, samples: Iterator[dict[str, Any]], definition: dict[str, Any]) -> None:
    import webdataset as wds

    from bridge_data.prepare.splits import parse_ratio, split_by_ratio
    from bridge_data.prepare.tars import prepare, write_dataset_yaml

    folder.mkdir(parents=True, exist_ok=True)
    with wds.ShardWriter(str(folder / "data-%03d.tar"), maxcount=NUM_SAMPLES // 4, verbose=0) as sink:
        for sample in samples:
            sink.write(sample)
    prepare(folder, functools.partial(split_by_ratio, ratio=parse_ratio("3,1,0")))
    write_dataset_yaml(folder, definition, "dataset.yaml")


def _definition(kind: str, **fields: str) -> dict[str, Any]:
    return {"sample_type": {"__module__": "megatron.energon", "__class__": kind}, "field_map": fields}


def _colour(number: int) -> str:
    return list(COLOURS)[number % len(COLOURS)]


def _square(number: int) -> bytes:
    from PIL import Image

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


if __name__ == "__main__":
    write_tiny_data(Path(sys.argv[1] if len(sys.argv) > 1 else "tiny_data"))
