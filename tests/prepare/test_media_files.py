import functools
import io
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bridge_data import storage
from bridge_data.errors import ConfigError, SampleError
from bridge_data.prepare import MediaRule
from bridge_data.prepare.media_files import extract, kind_of_name, open_range
from bridge_data.shards.media_metadata import AVMetadata, ImageMetadata
from tests.prepare.files import film, picture, sound


def test_flags_make_a_rule() -> None:
    assert MediaRule.parse(None, True, False) == MediaRule("HEADER")
    assert MediaRule.parse(None, False, True) == MediaRule("EXTENSION")
    assert MediaRule.parse("*.jpg, a/*", False, False) == MediaRule("GLOB", ("*.jpg", "a/*"))


@pytest.mark.parametrize("flags", [(None, False, False), ("*.jpg", True, False), (None, True, True)])
def test_one_flag_is_needed(flags: tuple[str | None, bool, bool]) -> None:
    with pytest.raises(ConfigError, match="Give exactly one of --media-metadata-by-extension"):
        MediaRule.parse(*flags)


@pytest.mark.parametrize("patterns", ["", "*.jpg,", ","])
def test_empty_patterns_are_refused(patterns: str) -> None:
    with pytest.raises(ConfigError, match="none empty"):
        MediaRule.parse(patterns, False, False)


def test_patterns_match_the_name_or_the_path() -> None:
    rule = MediaRule("GLOB", ("IMG*.jpg", "clips/*.mp4"))
    assert rule.may_be_media("a/b/img1.JPG")
    assert rule.may_be_media("clips/a.mp4")
    assert not rule.may_be_media("other/a.mp4")


def test_by_extension_the_content_does_not_count() -> None:
    rule = MediaRule("EXTENSION")
    assert rule.kind("a.png", sound()) == "image"
    assert rule.kind("a.bin", picture()) is None
    assert not rule.may_be_media("a.bin")


@pytest.mark.parametrize("rule", [MediaRule("HEADER"), MediaRule("GLOB", ("*",))])
def test_otherwise_the_content_counts_and_then_the_name(rule: MediaRule) -> None:
    assert rule.kind("a.png", sound()) == "av"
    assert rule.kind("a.bin", picture()) == "image"
    assert rule.kind("a.mp4", b"?") == "av"
    assert rule.kind("a.bin", b"?") is None


def test_a_name_tells_by_its_last_piece() -> None:
    kinds = [kind_of_name(name) for name in ("a/b.JPG", "x.left.png", "a.jpg/b.mp4", "a.opus", "a.txt", "a.json", "a.")]
    assert kinds == ["image", "image", "av", "av", None, None, None]


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


DATA = bytes(range(256)) * 10

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 3000)),
        st.tuples(st.just("seek"), st.integers(0, 3000)),
        st.tuples(st.just("end"), st.integers(-100, 0)),
    ),
    max_size=10,
)


@given(steps=STEPS, start=st.integers(0, 2560), end=st.integers(0, 2560))
def test_it_is_a_file_of_these_bytes(tmp_path_factory, steps, start, end) -> None:  # type: ignore[no-untyped-def]
    start, end = sorted((start, end))
    path = tmp_path_factory.getbasetemp() / "data.bin"
    path.write_bytes(DATA)
    file, plain = (
        open_range(functools.partial(storage.read, str(path)), start, end - start),
        io.BytesIO(DATA[start:end]),
    )
    for action, number in steps:
        if action == "read":
            assert file.read(number) == plain.read(number)
        elif action == "seek" or end - start + number < 0:
            assert file.seek(abs(number)) == plain.seek(abs(number))
        else:
            assert file.seek(number, io.SEEK_END) == plain.seek(number, io.SEEK_END)
        assert file.tell() == plain.tell()


def test_nothing_is_read_ahead_of_need(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(b"head")
    with open(path, "r+b") as file:
        file.truncate(1 << 40)
    part = open_range(functools.partial(storage.read, str(path)), 0, 1 << 40)
    assert part.read(4) == b"head"
    assert part.seek(-1, io.SEEK_END) == (1 << 40) - 1
    assert part.read() == b"\0"
