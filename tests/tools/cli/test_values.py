import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data.decode.av import AVDecoder
from bridge_data.tools.cli.values import describe_value
from tests.prepare.files import film, sound


@dataclasses.dataclass
class Box:
    """Something with fields."""

    label: str
    corners: list[int]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a text", "a text"),
        ("", "empty"),
        (None, "None"),
        (7, "7"),
        (True, "True"),
        (["a", "b"], '["a", "b"]'),
        (list(range(9)), '[0, 1, 2, 3, 4, "… 4 more"]'),
        ({"a": [1]}, '{"a": [1]}'),
        (b"", "no bytes"),
        (bytes(3), "3 bytes: 00 00 00"),
        (torch.zeros(3, 4, 5), "float32 3×4×5, 0 … 0"),
        (torch.tensor(2), "int64 scalar: 2"),
        (np.arange(3, dtype=np.int16), "int16 3: [0, 1, 2]"),
        (torch.zeros(0, 2), "float32 0×2"),
        (Image.new("L", (4, 3)), "Pillow image 4×3 L"),
        ([torch.zeros(9), torch.ones(9)], "0: float32 9, 0 … 0\n1: float32 9, 1 … 1"),
        ({"image": torch.zeros(9)}, "image: float32 9, 0 … 0"),
        (Box("cat", [1, 2]), 'Box {"label": "cat", "corners": [1, 2]}'),
    ],
)
def test_descriptions(value: Any, expected: str) -> None:
    assert describe_value(value) == expected


def test_clips_are_described_by_their_streams() -> None:
    assert describe_value(AVDecoder(film())) == "10 frames 64×48, 25 fps; audio 2 channels, 44100 Hz; 1.00 s"
    assert describe_value(AVDecoder(sound())) == "audio 1 channel, 8000 Hz; 0.50 s"
    assert describe_value(AVDecoder(b"neither")).startswith("not a readable clip: ")


def test_long_values_are_cut() -> None:
    assert len(describe_value([torch.zeros(9)] * 1000).splitlines()) == 6
    assert len(describe_value("word " * 10_000)) < 500
    assert len(describe_value({str(number): "x" * 1000 for number in range(1000)}).splitlines()) == 13
