"""Which files are media, by the ending of their names and by their first bytes: the one table of both.

Reads a name, or the beginning of a content. Returns `image` or `av` (video or audio), and the usual ending.
"""

import re
from typing import Literal, TypeAlias

MediaKind: TypeAlias = Literal["image", "av"]
"""An image; or video, audio or both."""

_IMAGES = """apng avif blp bmp bw cur dcx dds dib fit fits flc fli ftc ftu gbr gif icb icns ico im j2c j2k
jfif jp2 jpc jpe jpeg jpf jpg jpx msp pbm pcd pcx pgm png pnm ppm psd pxr qoi ras rgb rgba sgi tga tif tiff vda vst webp
xbm xpm"""
IMAGE_EXTENSIONS = frozenset(_IMAGES.split())

_MEDIA = "aac avi flac flv m4a m4v mkv mov mp3 mp4 mpeg mpg oga ogg ogv opus wav webm"
AV_EXTENSIONS = frozenset(_MEDIA.split())

_BIT_RATES = b"".join(rb"\x%x0-\x%xb" % (rate, rate) for rate in range(1, 15))

_FORMATS: tuple[tuple[str, MediaKind, bytes], ...] = (
    ("jpg", "image", rb"\xff\xd8\xff"),
    ("png", "image", rb"\x89PNG\r\n\x1a\n"),
    ("webp", "image", rb"RIFF.{4}WEBP"),
    ("gif", "image", rb"GIF8[79]a"),
    ("bmp", "image", rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0"),
    ("tiff", "image", rb"II\*\0|MM\0\*"),
    ("avif", "image", rb".{4}ftypavi[fs]"),
    ("jp2", "image", rb"\0\0\0\x0cjP  \r\n\x87\n"),
    ("j2k", "image", rb"\xff\x4f\xff\x51"),
    ("qoi", "image", rb"qoif"),
    ("heic", "image", rb".{4}ftyp(hei[cxms]|mif1)"),
    ("m4a", "av", rb".{4}ftypM4A"),
    ("mov", "av", rb".{4}ftypqt  "),
    ("mp4", "av", rb".{4}ftyp"),
    ("mkv", "av", rb"\x1a\x45\xdf\xa3.{0,40}matroska"),
    ("webm", "av", rb"\x1a\x45\xdf\xa3"),
    ("avi", "av", rb"RIFF.{4}AVI "),
    ("wav", "av", rb"RIFF.{4}WAVE"),
    ("flac", "av", rb"fLaC"),
    ("mp3", "av", rb"ID3"),
    ("ogg", "av", rb"OggS"),
    ("flv", "av", rb"FLV\x01"),
)
"""Ending and kind of each format, and how its content begins. The first one that fits is taken."""

_FRAMES: tuple[tuple[str, MediaKind, bytes], ...] = (
    ("mpg", "av", rb"\0\0\x01[\xba\xb3]"),
    # A frame of ADTS or of MPEG audio: a sync word, and no reserved values.
    ("aac", "av", rb"\xff[\xf0\xf1\xf8\xf9][\x00-\x33\x40-\x73\x80-\xb3\xc0-\xf3]."),
    ("mp3", "av", rb"\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff][" + _BIT_RATES + rb"]."),
)
"""Formats without a magic number, as `_FORMATS` has the others: arbitrary bytes, such as pixels, may begin like
these."""

_BY_CONTENT = [(ending, kind, re.compile(start, re.DOTALL)) for ending, kind, start in _FORMATS + _FRAMES]

SOUND_ENDINGS = frozenset({"wav", "flac", "mp3", "ogg", "m4a", "aac"})
"""Endings, of those by content, that are usually audio alone."""

IMAGE_ENDINGS = tuple(dict.fromkeys(ending for ending, kind, _ in _FORMATS if kind == "image"))
AV_ENDINGS = tuple(dict.fromkeys(ending for ending, kind, _ in _FORMATS + _FRAMES if kind == "av"))
"""Endings of the formats that are known by their content, the usual ones first."""


def known_by_content(content: bytes, *, by_magic: bool = False) -> tuple[str, MediaKind] | None:
    """(usual ending, kind) of a medium by its first bytes; None if it is none. With `by_magic`, only of a format with a
    magic number, for bytes that may be anything."""
    head = content[:64]
    formats = _BY_CONTENT[: len(_FORMATS)] if by_magic else _BY_CONTENT
    return next(((ending, kind) for ending, kind, start in formats if start.match(head)), None)


def guess_kind(content: bytes) -> MediaKind | None:
    """Whether `content` is an image or a medium (video or audio), by its first bytes; None if neither."""
    found = known_by_content(content)
    return None if found is None else found[1]


def kind_of_name(name: str) -> MediaKind | None:
    """The kind of a file by the extension of its name."""
    extension = name.lower().rpartition("/")[2].rpartition(".")[2]
    return "image" if extension in IMAGE_EXTENSIONS else "av" if extension in AV_EXTENSIONS else None


def ending_of(data: bytes, name: str = "") -> str | None:
    """The ending of a medium by its content, else by its name; None if it is no medium."""
    found = known_by_content(data)
    if found is not None:
        return found[0]
    return name.lower().rpartition(".")[2] if kind_of_name(name) else None


def kind_of_ending(ending: str) -> str:
    """`image`, or `clip` for video and sound."""
    return "image" if ending in IMAGE_EXTENSIONS or ending in IMAGE_ENDINGS else "clip"


def names_media(text: str) -> bool:
    """Whether a text is the name of an image or a clip, or holds one as a `data:` URL."""
    if text.startswith(("data:image/", "data:video/", "data:audio/")):
        return True
    has_ending = "." in text.rpartition("/")[2]  # else it is an ending itself, as in a column of formats
    return len(text) < 4096 and has_ending and "\n" not in text and kind_of_name(text) is not None
