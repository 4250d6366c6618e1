"""Decoders leave nothing behind."""

import io
import random
from pathlib import Path

import pytest

from bridge_data.decode.av import AVDecoder
from tests.decode.av.media import video


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def take_clips(data: bytes, count: int, rng: random.Random) -> None:
    """Clips as training takes them: a decoder each, half of them closed, half of them only dropped."""
    for number in range(count):
        first = rng.randrange(40)
        decoder = AVDecoder(io.BytesIO(data))
        decoder.get_video_clips([(first, first + 7)], "frames", (56, 56))
        if number % 5 == 0:
            decoder.get_audio_clips([(0.2, 0.7)])
        if number % 2:
            decoder.close()


@pytest.mark.parametrize(
    ("count", "most"),
    [
        pytest.param(25, 8 << 20, marks=pytest.mark.processes),
        pytest.param(500, 4 << 20, marks=pytest.mark.slow),
    ],
)
def test_memory_stays_flat_over_many_clips(count: int, most: int) -> None:
    media, rng = [video(name)[0] for name in ("mp4 with audio, late", "mkv with audio")], random.Random(0)
    sizes = []
    for number in range(12):
        take_clips(media[number % 2], count, rng)
        sizes.append(resident_bytes())
    assert max(sizes[7:]) - sizes[4 if count < 100 else 1] < most, sizes
