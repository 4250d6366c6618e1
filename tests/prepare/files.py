"""Real media for tests: pictures by Pillow, sounds by the wave module, a short film by PyAV."""

import io
import wave
from pathlib import Path

from PIL import Image

from bridge_data.decode.media_metadata import AVMetadata, ImageMetadata, MediaMetadata
from tests.decode.av import media


def picture(format: str = "PNG", size: tuple[int, int] = (8, 6), mode: str = "RGB") -> bytes:
    """An image in one color."""
    file = io.BytesIO()
    Image.new(mode, size).save(file, format)
    return file.getvalue()


def sound(num_samples: int = 4000, rate: int = 8000, channels: int = 1) -> bytes:
    """Silence as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as target:
        target.setnchannels(channels)
        target.setsampwidth(2)
        target.setframerate(rate)
        target.writeframes(bytes(2 * channels * num_samples))
    return file.getvalue()


def film() -> bytes:
    """Ten frames of 64 x 48 at 25 a second, with a second of sound."""
    return media.write("mp4", video="mpeg4", audio="aac", times=range(10), num_samples=44_100)


FILES = {
    "a.png": picture(),
    "deep/b.JPG": picture("JPEG", (30, 20), "L"),
    "deep/c.wav": sound(),
    "notes.txt": b"nothing to see",
    "unnamed": picture("GIF", (4, 4), "P"),
}
"""A folder of files."""

METADATA: dict[str, MediaMetadata] = {
    "a.png": ImageMetadata(width=8, height=6, format="PNG", mode="RGB"),
    "deep/b.JPG": ImageMetadata(width=30, height=20, format="JPEG", mode="L"),
    "deep/c.wav": AVMetadata(audio_duration=0.5, audio_channels=1, audio_sample_rate=8000, audio_num_samples=4000),
    "unnamed": ImageMetadata(width=4, height=4, format="GIF", mode="P"),
}
"""What they are."""


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    """These files below `folder`."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
