"""Which kind of medium some bytes are, by the bytes themselves.

Enters: the content of a part. Leaves: `"image"`, `"av"` (video or audio) or None for anything else.
"""

from typing import Literal

_STARTS: dict[bytes, Literal["image", "av"]] = {
    b"\xff\xd8\xff": "image",  # JPEG
    b"\x89PNG\r\n\x1a\n": "image",
    b"GIF87a": "image",
    b"GIF89a": "image",
    b"II*\0": "image",  # TIFF
    b"MM\0*": "image",
    b"\0\0\0\x0cjP  \r\n\x87\n": "image",  # JPEG 2000
    b"\xff\x4f\xff\x51": "image",
    b"qoif": "image",
    b"\x1a\x45\xdf\xa3": "av",  # Matroska, WebM
    b"OggS": "av",
    b"fLaC": "av",
    b"ID3": "av",  # MP3
    b"FLV\x01": "av",
    b"\0\0\x01\xba": "av",  # MPEG program stream
    b"\0\0\x01\xb3": "av",
}
_BMP_HEADER_SIZES = frozenset({12, 40, 52, 56, 64, 108, 124})
_RIFF_KINDS: dict[bytes, Literal["image", "av"]] = {b"WEBP": "image", b"AVI ": "av", b"WAVE": "av"}
_STILL_BRANDS = frozenset({b"avif", b"avis", b"heic", b"heix", b"mif1"})


def guess_kind(content: bytes) -> Literal["image", "av"] | None:
    """The kind of medium that `content` begins like."""
    for start, kind in _STARTS.items():
        if content.startswith(start):
            return kind
    if content[:4] == b"RIFF":
        return _RIFF_KINDS.get(content[8:12])
    if content[4:8] == b"ftyp":
        return "image" if content[8:12] in _STILL_BRANDS else "av"
    if content[:2] == b"BM" and int.from_bytes(content[14:18], "little") in _BMP_HEADER_SIZES:
        return "image"
    return "av" if _begins_with_audio_frame(content) else None


def _begins_with_audio_frame(content: bytes) -> bool:
    """Whether MPEG audio (MP3) or ADTS (AAC) begins here: a sync word, and no field with a value that is reserved."""
    if len(content) < 4 or content[0] != 0xFF or content[1] & 0xE0 != 0xE0:
        return False
    version, layer = content[1] >> 3 & 3, content[1] >> 1 & 3
    if layer == 0:
        return content[1] & 0xF6 == 0xF0 and content[2] >> 2 & 15 < 13
    return version != 1 and content[2] >> 4 not in (0, 15) and content[2] >> 2 & 3 != 3
