"""Audio as it comes with waveforms read by us, and as FFmpeg gives it; and damage to compare them on."""

import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bridge_data.decode.av import AVDecoder, av_decoder
from bridge_data.errors import SampleError
from bridge_data.limits import DEFAULT_LIMITS, Limits

CODES = {"u1": 1, "<i2": 1, "<i4": 1, "<f4": 3, "<f8": 3}
"""The code of a WAV file, by the type of its samples."""


def form(code: int, channels: int, rate: int, bits: int, extension: bytes = b"") -> bytes:
    """The `fmt ` chunk of a WAV file."""
    stride = channels * bits // 8
    return struct.pack("<HHIIHH", code, channels, rate, rate * stride, stride, bits) + extension


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    """A WAV file of chunks."""
    parts = [name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2) for name, content in chunks]
    body = b"WAVE" + b"".join(parts)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def wav(dtype: str = "<i2", channels: int = 1, rate: int = 16_000, num_samples: int = 5_000, bits: int = 0) -> bytes:
    """Noise as a WAV file, of 24 bits if `bits` says so."""
    rng = np.random.default_rng(0)
    if dtype.startswith("<f"):
        noise = rng.normal(0, 0.2, (num_samples, channels)).astype(dtype)
    else:
        limits = np.iinfo(dtype)
        noise = rng.integers(limits.min, limits.max, (num_samples, channels), dtype, endpoint=True)
    content = noise.tobytes()
    if bits == 24:
        content = noise.reshape(-1, 1).view(np.uint8)[:, 1:].tobytes()
    bits = bits or 8 * noise.itemsize
    return riff((b"fmt ", form(CODES[dtype], channels, rate, bits)), (b"data", content))


def heard(data: bytes, limits: Limits = DEFAULT_LIMITS) -> list[Any]:
    """What a decoder makes of a medium: all of it, clips, metadata; errors by their class."""
    answers: list[Any] = []
    for take in (
        lambda decoder: decoder.get_audio(),
        lambda decoder: decoder.get_clips(audio_clip_ranges=[(0.1, 0.2), (0, 0.05), (0.15, 9)]),
        lambda decoder: decoder.get_clips(audio_clip_ranges=[(3, 700)], audio_unit="samples"),
        lambda decoder: decoder.get_metadata(get_audio_num_samples=True),
    ):
        with AVDecoder(data, limits=limits) as decoder:
            try:
                answer = take(decoder)
            except SampleError:
                answers.append(SampleError)
                continue
            if isinstance(answer, av_decoder.AVData):
                clips = [(clip.dtype, clip.shape, clip.numpy().tobytes()) for clip in answer.audio_clips or ()]
                answers.append((clips, answer.audio_timestamps))
            else:
                answers.append(answer)
    return answers


def heard_by_ffmpeg(data: bytes) -> list[Any]:
    """The same, without waveforms of ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(av_decoder, "open_waveform", lambda *_, **__: None)
        return heard(data)


def damaged(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Copies of a file that are cut off, or in which bytes are changed, left out, or put in; often near its start."""
    rng = random.Random(seed)
    for number in range(count):
        copy = bytearray(data)
        at = rng.randrange(len(data) if rng.random() < 0.6 else min(100, len(data)))
        match number % 6:
            case 0:
                del copy[at + 1 :]
            case 1:
                copy[at] ^= 1 << rng.randrange(8)
            case 2:
                del copy[at : at + rng.randrange(1, 300)]
            case 3:
                copy[at : at + 200] = rng.randbytes(len(copy[at : at + 200]))
            case 4:
                copy[at:at] = rng.randbytes(rng.randrange(1, 400))
            case 5:
                copy[at:at] = copy[at : at + rng.randrange(1, 4_000)]
        yield bytes(copy)


def check_damaged(data: bytes, count: int, seed: int) -> None:
    """Whatever happens to a file, it is heard as by FFmpeg."""
    for number, copy in enumerate(damaged(data, count, seed)):
        assert heard(copy) == heard_by_ffmpeg(copy), f"damage {number} of seed {seed}"
