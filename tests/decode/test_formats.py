"""Kinds of media by their first bytes."""

import io

import pytest
from PIL import Image

from bridge_data.decode.formats import guess_kind
from tests.decode.av.media import sound, video


def image(kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (9, 7), (1, 2, 3)).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "JPEG2000", "AVIF", "QOI"])
def test_images(kind: str) -> None:
    assert guess_kind(image(kind)) == "image"


@pytest.mark.parametrize(
    "name", ["mp4 with B-frames", "mkv with audio", "webm, VP8", "avi with B-frames", "mov, MPEG-4", "flv"]
)
def test_videos(name: str) -> None:
    assert guess_kind(video(name)[0]) == "av"


def test_program_streams() -> None:
    assert guess_kind(video("mpeg program stream")[0]) == "av"


@pytest.mark.parametrize("name", ["wav", "flac", "mp3", "m4a", "aac", "ogg, Opus"])
def test_sounds(name: str) -> None:
    assert guess_kind(sound(name)[0]) == "av"


def test_mp3_without_a_tag_begins_with_a_frame() -> None:
    content = sound("mp3")[0]
    frame = content.index(b"\xff\xfb")
    assert guess_kind(content[frame:]) == "av"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"BM is a text of some length",
        b"RIFF....WAVY",
        b'{"json": true}',
        b"\xff\xfe\x00u\x00t\x00f",
        b"\xff\xff\xff\xff",
        b"\x93NUMPY",
        bytes(64),
    ],
)
def test_anything_else(content: bytes) -> None:
    assert guess_kind(content) is None
