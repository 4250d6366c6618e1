"""Waveforms: audio that is read without FFmpeg, in WAV files of plain samples, and in FLAC files by a plug-in.

Reads a binary file. Returns a `Sound` whose samples equal those of FFmpeg, bit by bit; or None for files in which they
may not, and for all others: those that are damaged, cut off, or continue after their end. So what is installed, and
which clips are asked for, decide how long it takes, and never which samples come out.

Source: Multimedia Programming Interface and Data Specifications 1.0 (IBM, Microsoft), for WAV; RFC 9639, for FLAC.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bridge_data.decode.av.audio import MAX_KEPT_BYTES, Sound, check_fits
from bridge_data.decode.media_kinds import known_by_content
from bridge_data.extensions import Feature

Decoded: TypeAlias = tuple[NDArray[np.generic], int]
"""Samples (channels, samples), and how many there are in a second."""

ReadFlac: TypeAlias = Callable[[bytes, int], Decoded | None]
"""(content of a FLAC file, maximum bytes of its samples) -> its samples as FFmpeg gives them; None if they take more
bytes, or if they may not be the same."""

_FLAC = Feature[ReadFlac]("flac")

_WAV_DTYPES = {(1, 8): "u1", (1, 16): "<i2", (1, 24): "<i4", (1, 32): "<i4", (3, 32): "<f4", (3, 64): "<f8"}
"""By the format (integers or floats) and bits of a sample: its type, as FFmpeg gives it, 24 bits in the upper ones."""

_EXTENSIBLE, _GUID = 0xFFFE, bytes.fromhex("0000 0000 1000 8000 00aa 0038 9b71")
_OTHER_CHUNKS = frozenset((b"LIST", b"fact", b"JUNK", b"PAD ", b"FLLR", b"PEAK", b"cue "))
"""Chunks of a WAV file that say nothing about its samples, and never make FFmpeg refuse it."""

_MAX_CHANNELS, _MAX_RATE, _PROBED_BYTES = 8, 768_000, 1 << 16
_COMPRESSED = tuple(map(bytes.fromhex, ("72f81f4e", "7ffe8001", "fe7f0180", "1fffe800", "ff1f00e8", "f8726fba")))
"""Words with which frames of AC-3 for S/PDIF, of DTS and of TrueHD begin."""
_AC3 = (b"\x0b\x77", b"\x77\x0b")


def open_waveform(file: BinaryIO, *, is_whole: bool, max_bytes: int) -> Sound | None:
    """The audio of `file`, of which everything will be asked for if `is_whole`; None if it must be read by FFmpeg, or
    if it would be decoded at once and take more than `max_bytes`."""
    with _kept_position(file):
        file.seek(0)
        magic = file.read(4)
        if magic == b"RIFF":
            return WavSound.open(file)
        read_flac = _FLAC.find() if magic == b"fLaC" else None
        if read_flac is None:
            return None
        file.seek(0)
        decoded = read_flac(file.read(), max_bytes if is_whole else min(max_bytes, MAX_KEPT_BYTES))
        return None if decoded is None else Waveform(*decoded)


@contextlib.contextmanager
def _kept_position(file: BinaryIO) -> Iterator[None]:
    """FFmpeg may have opened the file, too, and reads on from where it was."""
    position = file.tell()
    yield
    file.seek(position)


class Waveform(Sound):
    """Samples (channels, samples) that are decoded, and handed out once."""

    def __init__(self, samples: NDArray[np.generic], rate: int) -> None:
        self._samples, self.rate = samples, rate
        self.start_s, self.num_samples = 0.0, samples.shape[1]

    def read_clips(self, clips: Sequence[range], max_bytes: int) -> list[NDArray[np.generic]]:
        check_fits(self._samples, clips, max_bytes)
        if len(clips) == 1 and len(clips[0]) == self.num_samples:
            return [self._samples]
        return [self._samples[:, clip.start : clip.stop].copy() for clip in clips]


class WavSound(Sound):
    """The samples of a WAV file, read as they are asked for."""

    def __init__(self, file: BinaryIO, form: _Form, offset: int, num_samples: int) -> None:
        self._file, self._form, self._offset = file, form, offset
        self.rate, self.start_s, self.num_samples = form.rate, 0.0, num_samples

    @classmethod
    def open(cls, file: BinaryIO) -> WavSound | None:
        """The samples of a file that has whole chunks, each known to say nothing else about them."""
        end = file.seek(0, io.SEEK_END)
        form: _Form | None = None
        data: tuple[int, int] | None = None
        offset = file.seek(8)
        if file.read(4) != b"WAVE":
            return None
        offset += 4
        while offset < end:
            name, size = struct.unpack("<4sI", file.read(8).ljust(8, b"\0"))
            offset += 8
            if offset + size > end:
                return None
            if name == b"fmt " and form is None and data is None:
                form = _Form.parsed(file.read(size))
            elif name == b"data" and form is not None and data is None:
                data = offset, size
                if _is_compressed(file.read(min(size, _PROBED_BYTES))):
                    return None
            elif name not in _OTHER_CHUNKS:
                return None
            offset = file.seek(offset + size + size % 2)
        if form is None or data is None or not data[1] or data[1] % form.stride:
            return None
        return cls(file, form, data[0], data[1] // form.stride)

    def read_clips(self, clips: Sequence[range], max_bytes: int) -> list[NDArray[np.generic]]:
        check_fits(np.empty((self._form.channels, 0), self._form.dtype), clips, max_bytes)
        with _kept_position(self._file):
            return list(map(self._read, clips))

    def _read(self, samples: range) -> NDArray[np.generic]:
        form = self._form
        self._file.seek(self._offset + samples.start * form.stride)
        content = self._file.read(len(samples) * form.stride)
        if form.bits == 24:
            shifted = np.zeros((len(samples) * form.channels, 4), np.uint8)
            shifted[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)
            values = shifted.view(form.dtype)
        else:
            values = np.frombuffer(content, form.dtype)
        return values.reshape(-1, form.channels).T.copy()


def _is_compressed(beginning: bytes) -> bool:
    """Whether what a WAV file calls plain samples may begin as AC-3, DTS, MP3 and the like do; FFmpeg decodes them."""
    start = beginning.lstrip(b"\0")
    is_other = known_by_content(start) is not None or start.startswith(_AC3)
    return is_other or any(word in beginning for word in _COMPRESSED)


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """The `fmt ` chunk of a WAV file."""

    channels: int
    rate: int
    bits: int
    dtype: str

    @property
    def stride(self) -> int:
        """Bytes of a sample of all channels."""
        return self.channels * self.bits // 8

    @classmethod
    def parsed(cls, chunk: bytes) -> _Form | None:
        """None for samples that are compressed, or not stored as usual."""
        if len(chunk) not in (16, 18, 40):
            return None
        code, channels, rate, _, stride, bits = struct.unpack_from("<HHIIHH", chunk)
        if code == _EXTENSIBLE and len(chunk) == 40:
            _, valid_bits, _, code = struct.unpack_from("<HHIH", chunk, 16)
            if valid_bits != bits or chunk[26:] != _GUID:
                return None
        form = cls(channels, rate, bits, _WAV_DTYPES.get((code, bits), ""))
        is_usual = 0 < rate <= _MAX_RATE and 0 < channels <= _MAX_CHANNELS and form.stride == stride
        return form if form.dtype and is_usual else None
