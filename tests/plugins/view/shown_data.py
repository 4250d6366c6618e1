"""What the page is tested on: photos with captions, films, tones, and a blend of them; a run with packs."""

import io
import json
import math
import wave
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.decode.av import media
from tests.prepared import CRUDE, write_dataset

CAPTIONING = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "jpg", "caption": "txt"},
}

PHOTOS = ("astronaut", "coffee", "cat", "rocket")


def photo(number: int, size: tuple[int, int]) -> bytes:
    """A crop of one of four photos."""
    from skimage import data

    name = PHOTOS[number % len(PHOTOS)]
    image = Image.fromarray(np.asarray(getattr(data, name)()))
    width, height = size
    left, top = 13 * number % max(1, image.width - width), 7 * number % max(1, image.height - height)
    file = io.BytesIO()
    image.crop((left, top, left + width, top + height)).save(file, "JPEG", quality=80)
    return file.getvalue()


def tone(hertz: float, seconds: float = 0.5) -> bytes:
    """A tone as a WAV file."""
    samples = array("h", (int(9000 * math.sin(2 * math.pi * hertz * n / 8000)) for n in range(int(8000 * seconds))))
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 8000, 0, "NONE", ""))
        out.writeframes(samples.tobytes())
    return file.getvalue()


def write_photos(folder: Path, count: int, large: bool = False) -> Path:
    """Photos with captions, in two split parts."""

    def samples() -> Iterator[dict[str, Any]]:
        for number in range(count):
            size = (240 + number % 5 * 32, 200 + number % 3 * 24) if large else (24, 18)
            text = f"a picture of {PHOTOS[number % 4]}, cut at {number}"
            yield {"__key__": f"photo{number:05d}", "jpg": photo(number, size), "txt": text}

    return write_dataset(folder, samples(), per_shard=max(4, count // 8), ratio="7,1,0", definition=CAPTIONING)


def write_clips(folder: Path, count: int) -> Path:
    """Films with tones beside them, crude."""
    film = media.write("webm", video="libvpx", times=range(20))

    def samples() -> Iterator[dict[str, Any]]:
        for number in range(count):
            turns = {"question": f"what does film {number} say?", "answer": str(number)}
            parts = {"webm": film, "wav": tone(220 + 40 * number), "json": json.dumps(turns).encode()}
            yield {"__key__": f"clip{number:04d}", **parts}

    return write_dataset(folder, samples(), definition=CRUDE)


def write_site(folder: Path, *, large: bool = False) -> Path:
    """The metadataset of photos and clips."""
    write_photos(folder / "photos", 320 if large else 40, large)
    write_clips(folder / "clips", 6)
    blend = folder / "blend.yaml"
    blend.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        "      - {path: photos, weight: 3, subflavors: {task: caption}}\n"
        "      - {path: clips, weight: 1, subflavors: {task: film}}\n"
        "  val: {path: photos}\n"
    )
    return blend
