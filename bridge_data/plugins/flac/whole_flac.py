"""Whole FLAC files, decoded to the samples that FFmpeg gives by a library that is faster: miniaudio, or soundfile.

Reads the content of a file. Returns its samples, (channels, samples) as int16, or as int32 with 24 bits in the upper
ones; or None where FFmpeg must decode it: the file is damaged, cut off, spliced or goes on after its end; its header
states no length, its blocks have several sizes, or its samples another number of bits; or neither library is installed.

A whole file has one meaning, as FLAC is lossless. Of others, these libraries take the frames as they come and stop at
the length that the header states, while FFmpeg places them by their numbers and goes on. So the headers of all frames
are compared with that of the file, which takes 2 to 8% of the time of decoding.

Source: RFC 9639 (FLAC), sections 8 and 9.
"""

import dataclasses
import functools
import importlib
import io
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DTYPES, _BITS_CODES = {16: "int16", 24: "int32"}, {16: 4, 24: 6}
"""By the bits of a sample: the type of samples, and the code in headers of frames."""
_RATES = (0, 88_200, 176_400, 192_000, 8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000)
"""By their codes in headers of frames; 0 is that of the file."""
_OWN_RATES = {12: (1, 1000), 13: (2, 1), 14: (2, 10)}
"""By its code: bytes and unit of a rate behind the number of a frame."""
_FRAME = re.compile(rb"\xff\xf8")
"""How a frame begins in a file with blocks of one size; a search is three times as fast as `bytes.find`."""
_MAX_HEADER, _MIN_FRAME = 16, 10
"""Bytes of the longest header of a frame, and of the shortest frame."""


def read_flac(content: bytes, max_bytes: int) -> tuple[NDArray[np.generic], int] | None:
    """(samples, rate) of a FLAC file; None if they take more than `max_bytes`, or FFmpeg must decode it."""
    decode = _decoder()
    stream = _Stream.parsed(content) if decode else None
    if decode is None or stream is None or stream.num_bytes > max_bytes or not _is_whole(content, stream):
        return None
    samples = decode(content, stream)
    if samples is None or samples.shape != (stream.num_samples, stream.channels):
        return None
    return np.ascontiguousarray(samples.T), stream.rate


@functools.cache
def _decoder() -> "Callable[[bytes, _Stream], NDArray[np.generic] | None] | None":
    """How the first of `LIBRARIES` that is installed decodes."""
    for name, decode in LIBRARIES.items():
        try:
            return functools.partial(decode, importlib.import_module(name))
        except (ImportError, OSError):  # OSError: it does not find what it loads
            continue
    return None


def _by_miniaudio(miniaudio: Any, content: bytes, stream: "_Stream") -> NDArray[np.generic] | None:
    read = miniaudio.flac_read_s16 if stream.bits == 16 else miniaudio.flac_read_s32
    try:
        sound = read(content)
    except miniaudio.MiniaudioError:
        return None
    if (sound.nchannels, sound.sample_rate) != (stream.channels, stream.rate):
        return None
    return np.frombuffer(sound.samples, _DTYPES[stream.bits]).reshape(-1, stream.channels)


def _by_soundfile(soundfile: Any, content: bytes, stream: "_Stream") -> NDArray[np.generic] | None:
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            if (file.frames, file.channels, file.samplerate) != (stream.num_samples, stream.channels, stream.rate):
                return None
            samples: NDArray[np.generic] = file.read(dtype=_DTYPES[stream.bits], always_2d=True)
    except soundfile.SoundFileError:
        return None
    return samples


LIBRARIES = {"miniaudio": _by_miniaudio, "soundfile": _by_soundfile}
"""Functions of a library, a content and its header, which return (samples, channels) or None; the fastest first."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Stream:
    """What the header of a file says, and where its first frame begins."""

    block: int
    min_frame_bytes: int
    rate: int
    channels: int
    bits: int
    num_samples: int
    begin: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the samples."""
        return self.num_samples * self.channels * np.dtype(_DTYPES[self.bits]).itemsize

    @property
    def num_frames(self) -> int:
        """All of them but the last have a whole block."""
        return -(-self.num_samples // self.block)

    @classmethod
    def parsed(cls, content: bytes) -> "_Stream | None":
        """None if the content is no FLAC file, or one that is left to FFmpeg."""
        if content[:4] != b"fLaC" or content[4:5] not in (b"\0", b"\x80") or content[5:8] != b"\0\0\x22":
            return None
        block, numbers = int.from_bytes(content[10:12]), int.from_bytes(content[18:26])
        rate, bits, num_samples = numbers >> 44, (numbers >> 36 & 31) + 1, numbers & ((1 << 36) - 1)
        if content[8:10] != content[10:12] or not (block and rate and num_samples) or bits not in _DTYPES:
            return None
        begin, is_last = 4, False
        while not is_last and begin < len(content):
            is_last = content[begin] >= 0x80
            begin += 4 + int.from_bytes(content[begin + 1 : begin + 4])
        return cls(
            block=block,
            min_frame_bytes=int.from_bytes(content[12:15]),
            rate=rate,
            channels=(numbers >> 41 & 7) + 1,
            bits=bits,
            num_samples=num_samples,
            begin=begin,
        )


def _is_whole(content: bytes, stream: _Stream) -> bool:
    """Whether the frames of a file are those that its header says, each once and in order, and no others."""
    num_frames, at = stream.num_frames, stream.begin
    first = _parsed_header(content, at)
    if num_frames > sys.maxunicode or first is None or first[1] not in (0, stream.rate):
        return False
    channels = {stream.channels - 1, *((8, 9, 10) if stream.channels == 2 else ())}
    layouts = {channel << 4 | bits << 1 for channel in channels for bits in (0, _BITS_CODES[stream.bits])}
    size_and_rate, step = content[at + 2], max(2, stream.min_frame_bytes)
    number, last, end = 0, at, len(content) - _MIN_FRAME
    found = _FRAME.match(content, at)
    while found and (at := found.start()) <= end:
        is_next = content[at + 3] in layouts and content.startswith(_number_code(number), at + 4)
        if is_next and (content[at + 2] == size_and_rate or number == num_frames - 1):
            number, last = number + 1, at
            found = _FRAME.search(content, at + step)
        elif _parsed_header(content, at) is not None:
            return False
        else:
            found = _FRAME.search(content, at + 2)
    left = stream.num_samples - (num_frames - 1) * stream.block
    return number == num_frames and _parsed_header(content, last) in ((left, 0), (left, stream.rate))


@functools.lru_cache(maxsize=4096)
def _number_code(number: int) -> bytes:
    """The number of a frame as its header has it: in UTF-8."""
    return chr(number).encode("utf-8", "surrogatepass")


def _parsed_header(content: bytes, at: int) -> tuple[int, int] | None:
    """(samples, rate) of the frame that begins at `at`; None if none does. A rate of 0 is that of the file."""
    header = content[at : at + _MAX_HEADER].ljust(_MAX_HEADER, b"\0")
    size_code, rate_code, layout = header[2] >> 4, header[2] & 15, header[3]
    if not _FRAME.match(header) or not size_code or rate_code == 15 or layout >= 0xB0 or layout & 1:
        return None
    size_at = 4 + (8 - (header[4] ^ 0xFF).bit_length() or 1)
    rate_at = size_at + {6: 1, 7: 2}.get(size_code, 0)
    rate_bytes, unit = _OWN_RATES.get(rate_code, (0, 0))
    end = rate_at + rate_bytes
    checksum = 0
    for byte in header[:end]:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum << 1 ^ (0x107 if checksum & 0x80 else 0)
    if checksum != header[end]:
        return None
    if size_code in (6, 7):
        block = int.from_bytes(header[size_at:rate_at]) + 1
    elif size_code < 6:
        block = 192 if size_code == 1 else 144 << size_code
    else:
        block = 1 << size_code
    return block, int.from_bytes(header[rate_at:end]) * unit if unit else _RATES[rate_code]
