"""Formats beside images and media: bytes to text, numbers, arrays, tensors and plain data.

Enters: the bytes of a part. Leaves: an object. Guarantees: no byte is ever run as code, so pickles are refused; what
unpacks to far more than it is gets refused before it fills the memory.

Source: the extensions are those of `webdataset.autodecode`, which Energon follows.
"""

import gzip
import importlib
import importlib.util
import io
import json
import zipfile
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from bridge_data.errors import ConfigError
from bridge_data.later import torch

Handler: TypeAlias = Callable[[bytes], Any]
"""Turns the bytes of a part into an object, or raises."""

MAX_UNPACKED_BYTES = 4 << 30
"""What a compressed part may become."""

PICKLES = frozenset({"pickle", "pkl", "pyd"})


def unpack_gzip(content: bytes) -> bytes:
    """The contents of a gzip file.

    Raises:
        ValueError: if they are more than `MAX_UNPACKED_BYTES`.
    """
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        unpacked = file.read(MAX_UNPACKED_BYTES + 1)
    if len(unpacked) > MAX_UNPACKED_BYTES:
        raise ValueError(f"it unpacks to more than the {MAX_UNPACKED_BYTES} bytes allowed")
    return unpacked


def check_format(name: str, part: str) -> None:
    """See that parts with the extension `name` can be decoded here.

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
"""Extension to handler."""

PLAIN: tuple[Handler, ...] = (_text, int, json.loads)
"""Handlers that make text, numbers and what JSON has."""
