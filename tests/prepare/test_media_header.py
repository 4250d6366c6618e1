import io
import warnings

import pytest
from PIL import Image

from bridge_data.errors import SampleError
from bridge_data.prepare.media_header import extract
from bridge_data.shards.media_metadata import AVMetadata, ImageMetadata
from tests.prepare.files import film, picture, sound


@pytest.mark.parametrize(
    ("format", "mode"),
    [("PNG", "RGBA"), ("PNG", "P"), ("PNG", "I;16"), ("JPEG", "CMYK"), ("GIF", "L"), ("ICO", "RGBA")],
)
def test_an_image_is_what_pillow_says(format: str, mode: str) -> None:
    data = picture(format, (16, 16), mode)
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        expected = ImageMetadata(width=16, height=16, format=format, mode=image.mode)
    assert extract("image", io.BytesIO(data), "a") == expected


def test_no_pixel_is_decoded() -> None:
    data = picture("PNG", (30, 20))
    assert extract("image", io.BytesIO(data[:60]), "a") == ImageMetadata(width=30, height=20, format="PNG", mode="RGB")


def test_a_large_image_is_measured_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert extract("image", io.BytesIO(picture(size=(30, 20))), "a") is not None
    with pytest.raises(SampleError, match=r"b\.png: not a readable image: .*exceeds limit"):
        extract("image", io.BytesIO(picture(size=(300, 200))), "b.png")


def test_a_film_has_frames_and_sound() -> None:
    clip = extract("av", io.BytesIO(film()), "a")
    assert isinstance(clip, AVMetadata)
    assert (clip.video_num_frames, clip.video_fps, clip.audio_sample_rate) == (10, 25.0, 44_100)


def test_a_sound_has_no_frames() -> None:
    clip = extract("av", io.BytesIO(sound()), "a")
    assert clip == AVMetadata(audio_duration=0.5, audio_channels=1, audio_sample_rate=8000, audio_num_samples=4000)


@pytest.mark.parametrize("kind", ["image", "av"])
def test_what_is_neither_is_named(kind) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SampleError, match=r"deep/a\.x: not a readable"):
        extract(kind, io.BytesIO(b"neither"), "deep/a.x")
