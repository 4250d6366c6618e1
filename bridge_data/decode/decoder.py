"""The sample decoder: which part of a sample becomes which kind of object, by the extension of its name.

Enters: part names and bytes. Leaves: images, text, JSON, integers, arrays, tensors; what has no handler stays bytes.
Guarantee: nothing that is decoded can execute code; so pickles stay bytes, and `.pth` holds tensors and plain types.

Source: the extensions are those of `webdataset.autodecode`, which Energon follows.
"""

import importlib
import importlib.util
import io
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from bridge_data.decode.image import IMAGE_EXTENSIONS, image_handler
from bridge_data.errors import ConfigError, SampleError

Handler: TypeAlias = Callable[[bytes], Any]
"""Turns the bytes of a part into an object, or raises."""


class SampleDecoder:
    """Decodes the parts of a sample by their extension.

    `image_decode` is one of `IMAGE_FORMS`: `torchrgb` (float32 (3, H, W) in 0..1), `torchrgb8` (uint8), `pilrgb` ...
    `handlers` adds to the built-in ones or replaces them: `{"xyz": decode_xyz}` for parts such as `xyz` and `a.xyz`,
    `{"seg.png": decode_mask}` for that part alone, the longer name first; the function gets the part's bytes.

    Raises:
        ConfigError: for an unknown `image_decode`.
    """

    def __init__(self, *, image_decode: str = "torchrgb", handlers: Mapping[str, Handler] | None = None) -> None:
        images = dict.fromkeys(IMAGE_EXTENSIONS, image_handler(image_decode))
        own = {name.lower().removeprefix("."): handler for name, handler in (handlers or {}).items()}
        self._handlers: dict[str, Handler] = {**_HANDLERS, **images, **own}

    def handler(self, part: str) -> Handler | None:
        """The function that decodes parts with this name; None if they stay bytes.

        Raises:
            ConfigError: if the part's format needs a package that is not installed.
        """
        name = part.lower()
        while name not in self._handlers:
            _, dot, name = name.partition(".")
            if not dot:
                return None
        handler = self._handlers[name]
        if handler is _msgpack and importlib.util.find_spec("msgpack") is None:
            raise ConfigError(
                f"part {part!r} is MessagePack, which needs a package: pip install msgpack "
                "(or give SampleDecoder a handler for it, or leave the part out of the field map)"
            )
        return handler

    def decode(self, fname: str, raw: bytes) -> Any:
        """The object in `raw`, the content of a file called `fname`.

        Raises:
            SampleError: if it cannot be decoded.
        """
        handler = self.handler(fname)
        return raw if handler is None else decode_part(handler, raw, fname, fname)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """A copy of a crude sample with every part that is still bytes decoded."""
        key = str(sample.get("__key__", "of unknown key"))
        decoded = {}
        for part, content in sample.items():
            handler = self.handler(part) if isinstance(content, bytes) and not part.startswith("__") else None
            decoded[part] = content if handler is None else decode_part(handler, content, key, part)
        return decoded


def decode_part(handler: Handler, content: bytes, key: str, part: str) -> Any:
    """`handler(content)`; whatever goes wrong with the content is a `SampleError` that names key and part.

    Raises:
        SampleError: if the content cannot be decoded.
    """
    try:
        return handler(content)
    except (MemoryError, ImportError, ConfigError):
        raise
    except Exception as error:
        raise SampleError(
            f"sample {key!r}: part {part!r} ({len(content)} bytes) cannot be decoded: {type(error).__name__}: {error}"
        ) from error


def _text(content: bytes) -> str:
    return str(content, "utf-8")


def _npy(content: bytes) -> Any:
    try:
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except MemoryError:
        raise ValueError("the array it declares does not fit into memory") from None


def _pth(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")


def _msgpack(content: bytes) -> Any:
    return importlib.import_module("msgpack").unpackb(content)


_HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": _npy,
    "pth": _pth,
    **dict.fromkeys(("mp", "msg", "msgpack"), _msgpack),
}
