"""Formats: text, numbers, arrays, tensors and plain data; and whether unknown bytes are an image or a medium.

Input: the bytes of a part. Output: an object, or the kind of medium. Guarantee: no data is executed as code, so pickles
are refused; a compressed part that would unpack to more than `MAX_UNPACKED_BYTES` is refused before it fills memory.

Source: the extensions are those of `webdataset.autodecode`, which Energon follows.
"""

import gzip
import importlib
import importlib.util
import io
import json
import zipfile
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

from bridge_data.errors import ConfigError
from bridge_data.later import torch

Handler: TypeAlias = Callable[[bytes], Any]
"""Bytes of a part -> object."""

MAX_UNPACKED_BYTES = 4 << 30
"""Maximum size of a part after decompression."""

PICKLES = frozenset({"pickle", "pkl", "pyd"})


def unpack_gzip(content: bytes) -> bytes:
    """The content of a gzip file; `ValueError` if it exceeds `MAX_UNPACKED_BYTES`."""
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        unpacked = file.read(MAX_UNPACKED_BYTES + 1)
    if len(unpacked) > MAX_UNPACKED_BYTES:
        raise ValueError(f"it unpacks to more than the {MAX_UNPACKED_BYTES} bytes allowed")
    return unpacked


def check_format(name: str, part: str) -> None:
    """Check that parts with the extension `name` can be decoded.

    Raises:
        ConfigError: if they are pickles, or need a package that is not installed.
    """
    if name in PICKLES:
        raise ConfigError(
            f"part {part!r} is a pickle, which can run any code when it is loaded, and is never unpickled here. Store "
            "it as npy, pth, json or msgpack; or leave it out (part_filter, field_map), or keep its bytes: "
            f"SampleDecoder(handlers={{{name!r}: bytes}})"
        )
    package = _PACKAGES.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        raise ConfigError(
            f'part {part!r} needs the package {package}: pip install "bridge-data[formats]" (or give SampleDecoder a '
            "handler for it, or leave the part out of the field map)"
        )


def _text(content: bytes) -> str:
    return str(content, "utf-8")


def _npy(content: bytes) -> Any:
    try:
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except MemoryError:
        raise ValueError("the array it declares does not fit into memory") from None


def _npz(content: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        unpacked = sum(info.file_size for info in archive.infolist())
    if unpacked > MAX_UNPACKED_BYTES:
        raise ValueError(f"it unpacks to {unpacked} bytes, more than the {MAX_UNPACKED_BYTES} allowed")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


def _pth(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")


def _tenbin(content: bytes) -> Any:
    return importlib.import_module("webdataset.tenbin").decode_buffer(content)


def _msgpack(content: bytes) -> Any:
    return importlib.import_module("msgpack").unpackb(content)


def _cbor(content: bytes) -> Any:
    return importlib.import_module("cbor2").loads(content)


_PACKAGES = {**dict.fromkeys(("mp", "msg", "msgpack"), "msgpack"), "cbor": "cbor2"}

FORMATS: dict[str, Handler] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": _npy,
    "npz": _npz,
    "pth": _pth,
    **dict.fromkeys(("ten", "tb"), _tenbin),
    **dict.fromkeys(("mp", "msg", "msgpack"), _msgpack),
    "cbor": _cbor,
}
"""Handler by extension."""

PLAIN: tuple[Handler, ...] = (_text, int, json.loads)
"""Handlers whose results are only text, numbers and JSON types."""

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
    """Whether `content` is an image or a medium (video or audio), by its first bytes; None if neither."""
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
    """Whether it starts with a frame of MPEG audio (MP3) or ADTS (AAC): a sync word, and no reserved field values."""
    if len(content) < 4 or content[0] != 0xFF or content[1] & 0xE0 != 0xE0:
        return False
    version, layer = content[1] >> 3 & 3, content[1] >> 1 & 3
    if layer == 0:
        return content[1] & 0xF6 == 0xF0 and content[2] >> 2 & 15 < 13
    return version != 1 and content[2] >> 4 not in (0, 15) and content[2] >> 2 & 3 != 3
