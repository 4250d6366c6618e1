"""Encoding values as the parts of a sample, the inverse of decoding, and samples as members of a tar.

Reads a sample as a dict, `{"__key__": "0001", "png": image, "json": {...}}`. Returns its key, and bytes by part, which
the endings of names decide. The decoder turns these bytes into an equal value (for `jpg` and `webp`, which are lossy,
an image of the same size), and a reader of the tar finds the same key and parts; else a `ConfigError` names both.
"""

import gzip
import io
import json
import math
import operator
import re
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from bridge_data.data.index_file import is_meta_member, split_name
from bridge_data.decode.sample_decoder import HANDLERS, PICKLES
from bridge_data.errors import ConfigError
from bridge_data.later import Image, is_tensor, numpy, torch

if TYPE_CHECKING:
    pass

Encode: TypeAlias = Callable[[Any], bytes]
"""From a value to the bytes of its part. A TypeError or ValueError says why that is not possible."""

JPEG_QUALITY = 95
"""Pillow's quality for `jpg` and `webp`. To use another, give encoded bytes."""

MAX_NAME_BYTES = 255
"""Maximum length of a file name on the usual file systems."""

_NOT_IN_NAMES = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and what is not Unicode."""

_IMAGE_FORMATS = {
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif"), ("JPEG", {"quality": JPEG_QUALITY})),
    "webp": ("WEBP", {"quality": JPEG_QUALITY}),
    "png": ("PNG", {}),
    "bmp": ("BMP", {}),
    **dict.fromkeys(("tif", "tiff"), ("TIFF", {})),
}


BLOCK_BYTES = 512
"""Headers and contents of a tar are padded to a multiple of this."""


class EncodedSample(NamedTuple):
    """A sample as it is stored: its key, and (name, content) of each part."""

    key: str
    parts: list[tuple[str, bytes]]


def encode_sample(sample: Mapping[str, Any]) -> EncodedSample:
    """`sample`, encoded. Its key is `__key__`; other names of the form `__name__` are provenance, and are not stored.

    Bytes, and the contents of files given as a `Path`, are stored unchanged. Other values are encoded by the ending
    of their name: Pillow images and uint8 arrays (H, W) or (H, W, 3) as `png`, `jpg`, `webp`, `bmp` or `tiff`; arrays
    and tensors as `npy`; dicts of arrays as `npz`; tensors, and plain containers of them, as `pth`; text as `txt`;
    JSON values as `json`; whole numbers as `cls`, `id` or `index`. With `.gz` at the end, they are compressed.

    Raises:
        ConfigError: for a key or name that readers would not find again, or a value that its ending cannot store.
    """
    if not isinstance(sample, Mapping):
        raise ConfigError(f'expected a sample such as {{"__key__": "0001", "txt": "text"}}, got a {_kind(sample)}')
    key = sample.get("__key__")
    if not isinstance(key, str):
        shown = "without a __key__" if key is None else f"whose __key__ is {key!r}"
        raise ConfigError(f"a sample {shown}: give each a text of its own, such as '000001'")
    parts = [(name, value) for name, value in sample.items() if not _is_provenance(name)]
    if not parts:
        raise ConfigError(f"sample {key!r} has no parts: give some, such as txt")
    for name, _ in parts:
        _check_names(key, name)
    return EncodedSample(key, [(name, encode_part(key, name, value)) for name, value in parts])


def encode_part(key: str, name: str, value: Any) -> bytes:
    """The bytes of the part `name` of sample `key`; see `encode_sample`."""
    if name.lower().rpartition(".")[2] in PICKLES:
        raise ConfigError(f"sample {key!r}: part {name!r}: pickles are never read: store it as npy, pth or json")
    try:
        if isinstance(value, Path):
            return value.read_bytes()
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        return _encoder(name)(value)
    except (TypeError, ValueError, OverflowError, RecursionError, OSError) as error:
        raise ConfigError(f"sample {key!r}: part {name!r}, a {_kind(value)}, cannot be stored: {error}") from error


def _is_provenance(name: object) -> bool:
    return isinstance(name, str) and name.startswith("__") and name.endswith("__")


def _check_names(key: str, name: object) -> None:
    """Ensure that readers of the tar find this key and this part."""
    where = f"sample {key!r}: part {name!r}"
    if not isinstance(name, str) or not name or "/" in name:
        raise ConfigError(f"{where}: expected the name of a part, such as 'txt' or 'left.png'")
    member = f"{key}.{name}"
    if _NOT_IN_NAMES.search(member):
        raise ConfigError(f"{where}: has characters that a file name should not have")
    if is_meta_member(member):
        raise ConfigError(f"{where}: names like __name__ are not read as data; choose another key")
    folders = key.split("/")
    if not all(folders) or {".", ".."} & {*folders}:
        raise ConfigError(f"{where}: a key is a path without empty names, '.' and '..', such as 'cats/0001'")
    if split_name(member) != (key, name):
        raise ConfigError(
            f"{where}: readers take what follows the first dot of a file name for the name of the part, so a key has "
            f"no dot after its last '/': write {key.rpartition('/')[2].replace('.', '_')!r} there"
        )
    if len(member) > 60 and max(len(one.encode()) for one in member.split("/")) > MAX_NAME_BYTES:
        raise ConfigError(f"{where}: is too long for the name of a file; choose a shorter key")


def _encoder(name: str) -> Encode:
    """The encoder of values of a part with this name."""
    stem, _, ending = name.lower().rpartition(".")
    if ending == "gz" and stem:
        inner = _encoder(stem)
        return lambda value: gzip.compress(inner(value), mtime=0)
    if ending in _IMAGE_FORMATS:
        return lambda value: _encode_image(value, *_IMAGE_FORMATS[ending])
    found = _ENCODERS.get(ending)
    if found is None:
        raise TypeError(
            f"values with the ending {ending!r} are given as bytes, or as the Path of a file"
            + ("" if ending in HANDLERS else f"; others may end with {', '.join((*_ENCODERS, *_IMAGE_FORMATS))}")
        )
    return found


def _encode_image(value: Any, image_format: str, options: dict[str, Any]) -> bytes:
    if is_tensor(value):
        raise TypeError("expected a Pillow image or a uint8 array (H, W, 3); of a tensor (3, H, W), make one of these")
    if isinstance(value, numpy.ndarray):
        if value.dtype != numpy.uint8:
            raise TypeError(f"expected an array of uint8, got {value.dtype}")
        value = Image.fromarray(value)
    if not isinstance(value, Image.Image):
        raise TypeError("expected a Pillow image, a uint8 array, bytes, or the Path of a file")
    if image_format == "WEBP" and (value.mode == "F" or value.mode[0] == "I"):
        raise TypeError(
            f"an image of mode {value.mode} would be clipped to 8 bits; scale it, or store it as png or tiff"
        )
    stream = io.BytesIO()
    value.save(stream, image_format, **options)
    return stream.getvalue()


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError("expected text")
    return value.encode()


def _encode_int(value: Any) -> bytes:
    if isinstance(value, bool):
        raise TypeError("expected a whole number")
    return str(operator.index(value)).encode()


def _encode_json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        if (found := _not_json(value)) is None:
            raise
        raise ValueError(f"{found}, which JSON does not have: write null there, or leave it out") from error


def _not_json(value: Any) -> str | None:
    """Where the first bytes or number are that JSON does not have, and what; None if there are none."""
    if isinstance(value, bytes):
        return f"is {len(value):,} bytes"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"is {value}"
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    found = ((name, _not_json(one)) for name, one in inner)
    return next((f"[{name!r}]{' ' * (said[:1] != '[')}{said}" for name, said in found if said is not None), None)


def _array(value: Any) -> Any:
    if is_tensor(value):
        value = value.detach().cpu().numpy()
    if not isinstance(value, (numpy.ndarray, numpy.generic)):
        raise TypeError("expected an array or a tensor")
    if value.dtype.hasobject:
        raise TypeError("an array of Python objects would be pickled; store numbers")
    return numpy.asarray(value)


def _encode_npy(value: Any) -> bytes:
    stream = io.BytesIO()
    numpy.lib.format.write_array(stream, _array(value), allow_pickle=False)
    return stream.getvalue()


def _encode_npz(value: Any) -> bytes:
    if not isinstance(value, Mapping):
        raise TypeError("expected a dict of arrays")
    stream = io.BytesIO()
    numpy.savez(stream, **{str(name): _array(array) for name, array in value.items()})
    return stream.getvalue()


def _encode_pth(value: Any) -> bytes:
    stream = io.BytesIO()
    try:
        torch.save(_on_cpu(value), stream)
        data = stream.getvalue()
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:  # the pickler and the unpickler raise several kinds
        raise TypeError("only tensors, numbers, text, lists and dicts of these are read again") from error
    return data


def _on_cpu(value: Any) -> Any:
    """`value` with tensors copied into their own storage: torch saves all of a view's underlying storage."""
    if is_tensor(value):
        return value.detach().cpu().clone()
    if type(value) is dict:
        return {name: _on_cpu(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_on_cpu, value))
    return value


_ENCODERS: dict[str, Encode] = {
    **dict.fromkeys(("txt", "text", "transcript"), _encode_text),
    **dict.fromkeys(("json", "jsn"), _encode_json),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), _encode_int),
    "npy": _encode_npy,
    "npz": _encode_npz,
    "pth": _encode_pth,
}


def _kind(value: object) -> str:
    return type(value).__name__


def members_of(sample: EncodedSample) -> bytes:
    """The members of a tar that hold a sample, without time and owner."""
    blocks = []
    for name, content in sample.parts:
        header = tar_header(f"{sample.key}.{name}", len(content))
        blocks += [header, content, bytes(-len(content) % BLOCK_BYTES)]
    return b"".join(blocks)


def tar_header(name: str, num_bytes: int) -> bytes:
    """The header of a member: the same as from `tarfile`, which is ten times as slow."""
    if not name.isascii() or len(name) > _MAX_SHORT_NAME or num_bytes >= _MAX_SHORT_SIZE:
        info = tarfile.TarInfo(name)
        info.size, info.mode = num_bytes, _MODE
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8")
    header = bytearray(_HEADER)
    header[: len(name)] = name.encode()
    header[124:135] = b"%011o" % num_bytes
    header[148:155] = b"%06o\0" % sum(header)  # the checksum is taken with spaces in its own field
    return bytes(header)


def _empty_header() -> bytes:
    info = tarfile.TarInfo("")
    info.mode = _MODE
    header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    header[148:156] = b" " * 8
    return bytes(header)


_MODE = 0o444
_HEADER = _empty_header()
_MAX_SHORT_NAME, _MAX_SHORT_SIZE = 100, 8**11
"""Maximum name and size for a header alone."""
