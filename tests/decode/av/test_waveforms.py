"""WAV files are read without FFmpeg where the samples are the same, bit by bit; else FFmpeg reads them."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest

from bridge_data.decode.av import AVDecoder
from bridge_data.decode.av.waveform import open_waveform
from bridge_data.errors import SampleError
from bridge_data.limits import Limits
from tests.decode.av import media, waveforms
from tests.decode.av.waveforms import form, heard, heard_by_ffmpeg, riff, wav
from tests.later import av


def is_ours(data: bytes) -> bool:
    return open_waveform(io.BytesIO(data), is_whole=True, max_bytes=1 << 30) is not None


EXTENSION = struct.pack("<HHIH", 22, 16, 3, 1) + bytes.fromhex("0000 0000 1000 8000 00aa 0038 9b71")
PCM, NOISE = (b"fmt ", form(1, 2, 16_000, 16)), (b"data", np.random.default_rng(2).bytes(20_000))

READ = {
    "8 bits": wav("u1"),
    "16 bits": wav("<i2"),
    "16 bits, stereo": wav("<i2", channels=2, rate=44_100),
    "16 bits, 6 channels": wav("<i2", channels=6, rate=48_000),
    "24 bits": wav("<i4", bits=24, rate=12_345),
    "24 bits, stereo": wav("<i4", bits=24, channels=2),
    "32 bits": wav("<i4", channels=2),
    "float": wav("<f4", channels=2, rate=22_050),
    "double": wav("<f8"),
    "one sample": wav(num_samples=1),
    "extensible": riff((b"fmt ", form(0xFFFE, 2, 16_000, 16, EXTENSION)), NOISE),
    "other chunks": riff((b"LIST", b"INFOINAM\4\0\0\0abc\0"), PCM, (b"fact", bytes(4)), NOISE, (b"cue ", bytes(3))),
    "bytes behind fmt": riff((b"fmt ", form(1, 2, 16_000, 16, bytes(2))), NOISE),
}


@pytest.mark.parametrize("name", READ)
def test_wav_files_have_the_samples_that_ffmpeg_gives(name: str) -> None:
    data = READ[name]
    assert is_ours(data)
    assert heard(data) == heard_by_ffmpeg(data)
    with AVDecoder(data) as decoder:
        (whole,) = decoder.get_audio().audio_clips
    np.testing.assert_array_equal(whole.numpy(), media.hear_all(data), strict=True)


LEFT = {
    "cut off": wav()[:-1_000],
    "no length": riff(PCM, NOISE).replace(b"data" + struct.pack("<I", 20_000), b"data" + b"\xff" * 4),
    "a length of 0": riff(PCM, NOISE).replace(b"data" + struct.pack("<I", 20_000), b"data" + bytes(4)),
    "half a sample": riff(PCM, (b"data", NOISE[1][:-2])),
    "two data chunks": riff(PCM, NOISE, NOISE),
    "data first": riff(NOISE, PCM),
    "a chunk that FFmpeg reads": riff(PCM, NOISE, (b"bext", bytes(9))),
    "bytes at the end": riff(PCM, NOISE) + b"TAG" + bytes(125),
    "padded samples": riff((b"fmt ", struct.pack("<HHIIHH", 1, 2, 16_000, 128_000, 8, 24)), NOISE),
    "A-law": riff((b"fmt ", form(6, 1, 8_000, 8)), NOISE),
    "no rate": riff((b"fmt ", form(1, 1, 0, 16)), NOISE),
    "no channel": riff((b"fmt ", form(1, 0, 16_000, 16)), NOISE),
    "no data": riff(PCM),
    "a header alone": wav()[:12],
}


@pytest.mark.parametrize("name", LEFT)
def test_other_wav_files_are_left_to_ffmpeg(name: str) -> None:
    assert not is_ours(LEFT[name])
    assert heard(LEFT[name]) == heard_by_ffmpeg(LEFT[name])


@pytest.mark.parametrize("container", ["spdif", "ac3"])
def test_compressed_audio_that_is_called_plain_samples_is_decoded(container: str) -> None:
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream("ac3", rate=48_000, layout="stereo")
        for frame in [*media.sounds(stream, 96_000, 48_000), None]:
            for packet in stream.encode(frame):
                output.mux(packet)
    content = file.getvalue()
    data = riff((b"fmt ", form(1, 2, 48_000, 16)), (b"data", content[: len(content) // 4 * 4]))
    assert not is_ours(data)
    with AVDecoder(data) as decoder:
        assert decoder.get_audio().audio_clips[0].dtype.is_floating_point


@pytest.mark.seconds
@pytest.mark.parametrize("name", ["16 bits, stereo", "24 bits", "float", "other chunks", "extensible"])
def test_damaged_wav_files_are_heard_as_by_ffmpeg(name: str) -> None:
    waveforms.check_damaged(READ[name], 60, seed=0)


def test_the_container_reads_on_where_it_was() -> None:
    with AVDecoder(wav()) as decoder:
        assert decoder.get_metadata(get_audio_num_samples=True).audio_num_samples == 5_000
        first = decoder.get_audio().audio_clips[0].clone()
        decoder.get_audio().audio_clips[0].zero_()
        assert decoder.get_metadata().audio_duration == 5_000 / 16_000
        np.testing.assert_array_equal(decoder.get_audio().audio_clips[0].numpy(), first.numpy())


def test_a_file_is_read_where_it_is_needed(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(num_samples=200_000))
    with (tmp_path / "a.wav").open("rb") as file, AVDecoder(file) as decoder:
        (clip,), _ = decoder.get_audio_clips([(150_000, 150_010)], "samples")
    np.testing.assert_array_equal(clip.numpy(), media.hear_all(wav(num_samples=200_000))[:, 150_000:150_010])


def test_clips_of_waveforms_that_would_not_fit_into_memory_are_refused() -> None:
    with AVDecoder(wav(channels=2), limits=Limits(max_audio_bytes=19_999)) as decoder:
        decoder.get_audio_clips([(0, 4_999)], "samples")
        for take in (decoder.get_audio, lambda: decoder.get_audio_clips([(0, 2_500), (0, 2_500)], "samples")):
            with pytest.raises(SampleError, match=r"max_audio_bytes"):
                take()
