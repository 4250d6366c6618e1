"""Every image of Pillow's own tests, odd and damaged ones too: the same pixels as Pillow's, or refused as it does."""

import collections
import contextlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from bridge_data.decode.image import IMAGE_FORMS, image_handler

pytestmark = pytest.mark.data

HANDLERS = {name: image_handler(name) for name in ("rgb8", "torchrgb8", "l8", "rgba8", "pilrgb")}
MODES = ("RGB", "L", "RGBA")


def by_pillow(data: bytes) -> dict[str, NDArray[np.uint8]]:
    """The pixels in each mode that Pillow can bring the image to; none if it needs another program to decode it."""
    made = {}
    with contextlib.suppress(Exception), Image.open(io.BytesIO(data)) as image:
        if image.format != "EPS":
            image.load()
            for mode in MODES:
                with contextlib.suppress(ValueError):  # of some modes there is no way to gray
                    made[mode] = np.asarray(image.convert(mode))
    return made


def by_us(name: str, data: bytes) -> NDArray[np.uint8] | None:
    try:
        made = HANDLERS[name](data)
    except Exception:
        return None
    return np.asarray(made.permute(1, 2, 0) if isinstance(made, torch.Tensor) else made)


def outcome(ours: NDArray[np.uint8] | None, expected: NDArray[np.uint8] | None) -> str:
    if ours is None or expected is None:
        return "refused" if ours is expected else "refused by us" if ours is None else "refused by Pillow"
    return "equal" if np.array_equal(ours, expected) else "different"


@pytest.fixture
def files(package: Callable[[str], Path]) -> list[Path]:
    return sorted(path for path in (package("pillow") / "Tests" / "images").rglob("*") if path.is_file())


def test_every_image_that_pillow_decodes_has_the_same_pixels_and_the_others_are_refused(files: list[Path]) -> None:
    outcomes: dict[str, list[str]] = collections.defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # too large for us
        for path in files:
            data = path.read_bytes()
            expected = by_pillow(data)
            for name in HANDLERS:
                wanted = expected.get(IMAGE_FORMS[name].mode)
                outcomes[outcome(by_us(name, data), wanted)].append(f"{name} {path.name}")
    print({kind: len(found) for kind, found in outcomes.items()})
    assert {kind: found for kind, found in outcomes.items() if kind not in ("equal", "refused")} == {}
    assert len(outcomes["equal"]) > 800 * len(HANDLERS)
    assert len(outcomes["refused"]) > 200 * len(HANDLERS)
