"""FLAC files are decoded by miniaudio or soundfile where these give the samples of FFmpeg, bit by bit; else by it."""

import io
import sys
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
import soundfile

from bridge_data.decode.av import AVDecoder
from bridge_data.plugins.flac import whole_flac
from bridge_data.plugins.flac.whole_flac import LIBRARIES, read_flac
from tests.decode.av import media, waveforms
from tests.decode.av.waveforms import heard, heard_by_ffmpeg
from tests.later import av

MOST = 1 << 30


@pytest.fixture(autouse=True, params=LIBRARIES)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this one is installed."""
    module = pytest.importorskip(request.param)
    decode = partial(LIBRARIES[request.param], module)
    monkeypatch.setattr(whole_flac, "_decoder", lambda: decode)


def flac(rate: int = 16_000, channels: int = 1, bits: str = "PCM_16", num_samples: int = 30_001) -> bytes:
    """A tone with noise, as libFLAC writes it."""
    rng = np.random.default_rng(channels)
    samples = np.resize(media.tone(num_samples, rate), (channels, num_samples)) / 2
    file = io.BytesIO()
    noise = rng.normal(0, 0.02, samples.shape)
    soundfile.write(file, (samples + noise).T, rate, format="FLAC", subtype=bits)
    return file.getvalue()


RATES = (1_000, 8_000, 11_025, 12_345, 16_000, 22_050, 44_100, 48_000, 96_000, 192_000)

READ: dict[str, Callable[[], bytes]] = {f"{rate} Hz": partial(flac, rate) for rate in RATES}
READ |= {f"{rate} Hz, 24 bits, stereo": partial(flac, rate, 2, "PCM_24") for rate in (16_000, 44_100)}
READ |= {f"{channels} channels": partial(flac, channels=channels) for channels in (2, 3, 6)}
READ |= {f"{count} samples": partial(flac, num_samples=count) for count in (1, 17, 4096, 8192, 8193)}
READ |= {"200 frames": partial(flac, num_samples=200 * 4096, channels=2)}
READ |= {"of FFmpeg": partial(media.write, "flac", audio="flac")}


@pytest.mark.parametrize("name", READ)
def test_flac_files_have_the_samples_that_ffmpeg_gives(name: str) -> None:
    data = READ[name]()
    assert read_flac(data, MOST) is not None
    assert heard(data) == heard_by_ffmpeg(data)
    with AVDecoder(data) as decoder:
        (whole,) = decoder.get_audio().audio_clips
    np.testing.assert_array_equal(whole.numpy(), media.hear_all(data), strict=True)


@cache
def whole() -> bytes:
    return flac(rate=22_050, channels=2)


@cache
def parts() -> tuple[bytes, list[bytes]]:
    """The header of that file, and its frames."""
    data = whole()
    with av.open(io.BytesIO(data)) as container:
        frames = [bytes(packet) for packet in container.demux(audio=0) if packet.size]
    return data[: data.index(frames[0])], frames


def in_ogg(data: bytes) -> bytes:
    """The same in another container."""
    file = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(file, "w", format="ogg") as target:
        stream = target.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(audio=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    return file.getvalue()


def of(*numbers: int) -> bytes:
    """The header and some of the frames."""
    header, frames = parts()
    return header + b"".join(frames[number] for number in numbers)


def with_length(num_samples: int, rate: int = 22_050) -> bytes:
    """The file, whose header states this length and rate."""
    numbers = rate << 44 | 1 << 41 | 15 << 36 | num_samples
    return whole()[:18] + numbers.to_bytes(8) + whole()[26:]


def with_a_bit_changed() -> bytes:
    return whole()[:20_000] + bytes([whole()[20_000] ^ 4]) + whole()[20_001:]


LEFT: dict[str, Callable[[], bytes]] = {
    "cut off": lambda: whole()[:-1_000],
    "cut off after a frame": lambda: of(*range(7)),
    "begins late": lambda: of(*range(2, 8)),
    "a frame is missing": lambda: of(0, 1, 2, 4, 5, 6, 7),
    "a frame is there twice": lambda: of(0, 1, 2, 2, 3, 4, 5, 6, 7),
    "a frame is there instead of another": lambda: of(0, 1, 2, 2, 4, 5, 6, 7),
    "frames are exchanged": lambda: of(0, 1, 3, 2, 4, 5, 6, 7),
    "two files": lambda: whole() + whole(),
    "more frames behind the end": lambda: of(0, 1, 2, 3, 4, 5, 6, 7, 7),
    "length not stated": lambda: with_length(0),
    "length too short by a sample": lambda: with_length(30_000),
    "length too short by a frame": lambda: with_length(30_001 - 4096),
    "length too long": lambda: with_length(30_002),
    "another rate in the header": lambda: with_length(30_001, 24_000),
    "a bit in the middle": with_a_bit_changed,
    "a tag in front": lambda: b"ID3\3\0\0\0\0\0\x0a" + bytes(10) + whole(),
    "8 bits": lambda: flac(bits="PCM_S8"),
    "in Ogg": lambda: in_ogg(whole()),
    "a header alone": of,
    "cut off in the header": lambda: whole()[:20],
}


def test_the_file_that_is_damaged_is_whole_itself() -> None:
    assert len(parts()[1]) == 8
    assert read_flac(of(*range(8)), MOST) is not None and of(*range(8)) == with_length(30_001) == whole()


@pytest.mark.parametrize("name", LEFT)
def test_other_flac_files_are_left_to_ffmpeg(name: str) -> None:
    data = LEFT[name]()
    assert read_flac(data, MOST) is None
    assert heard(data) == heard_by_ffmpeg(data)


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["2 channels", "of FFmpeg", "8000 Hz"])
def test_damaged_flac_files_are_heard_as_by_ffmpeg(name: str) -> None:
    waveforms.check_damaged(READ[name](), 60, seed=0)


def test_flac_files_with_a_tag_behind_the_end_are_whole() -> None:
    data = whole() + b"TAG" + bytes(125)
    assert read_flac(data, MOST) is not None
    assert heard(data) == heard_by_ffmpeg(data)


def test_without_the_library_the_samples_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = heard(whole())
    monkeypatch.setattr(whole_flac, "_decoder", lambda: None)
    assert read_flac(whole(), MOST) is None
    assert heard(whole()) == expected


def test_files_that_would_not_fit_are_not_decoded() -> None:
    num_bytes = 2 * 2 * 30_001
    assert read_flac(whole(), num_bytes) is not None
    assert read_flac(whole(), num_bytes - 1) is None


def test_samples_handed_out_are_the_callers() -> None:
    with AVDecoder(whole()) as decoder:
        first = decoder.get_audio().audio_clips[0]
        copy = first.clone()
        first.zero_()
        assert decoder.get_audio().audio_clips[0].equal(copy)


def test_the_first_library_that_can_be_imported_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    whole_flac._decoder.cache_clear()
    monkeypatch.setitem(sys.modules, "miniaudio", None)
    decode = whole_flac._decoder()
    assert isinstance(decode, partial) and decode.func is LIBRARIES["soundfile"]
    whole_flac._decoder.cache_clear()
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert whole_flac._decoder() is None
    whole_flac._decoder.cache_clear()
