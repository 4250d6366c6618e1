"""The sample decoder: chooses the handler of each part of a sample by its extension.

Reads names and bytes of parts. Returns images, video, audio, text, JSON, integers, arrays or tensors; parts without a
handler stay bytes. Decoding never runs code from the data and never opens another file: pickles are refused. Raises
`SampleError` for content beyond one of the `Limits`, before it fills the memory.

Source: the arguments are those of Energon's `SampleDecoder`, the extensions those of `webdataset.autodecode`.
"""

import copy
import functools
import gzip
import importlib
import importlib.util
import io
import zipfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias

import numpy as np

from bridge_data.data.plain_data import parse_json
from bridge_data.decode.image import (
    IMAGE_EXTENSIONS,
    IMAGE_WARNINGS,
    Frames,
    ImageDecoderType,
    Orientation,
    image_handler,
    image_within,
    log_image_warnings,
)
from bridge_data.decode.media_kinds import AV_EXTENSIONS, guess_kind
from bridge_data.decode.resizing import ResizeType, resizing
from bridge_data.errors import ConfigError, SampleError, why_pointer
from bridge_data.later import torch
from bridge_data.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from bridge_data.decode.av import AVDecoderType, AVWebdatasetDecoder

Handler: TypeAlias = Callable[[bytes], Any]
"""Bytes of a part -> object."""

PICKLES = frozenset({"pickle", "pkl", "pyd"})


def unpack_gzip(content: bytes, max_bytes: int = DEFAULT_LIMITS.max_unpacked_bytes) -> bytes:
    """The content of a gzip file; `ValueError` if it exceeds `max_bytes`."""
    with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
        unpacked = file.read(max_bytes + 1)
    if len(unpacked) > max_bytes:
        raise ValueError(f"it unpacks to more than the {max_bytes} bytes allowed (Limits(max_unpacked_bytes))")
    return unpacked


def _check_zip(content: bytes, max_bytes: int) -> None:
    """Check the total unpacked size of the members of a zip file."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        unpacked = sum(info.file_size for info in archive.infolist())
    if unpacked > max_bytes:
        raise ValueError(
            f"it unpacks to {unpacked} bytes, more than the {max_bytes} allowed (Limits(max_unpacked_bytes))"
        )


def check_format(name: str, part: str) -> None:
    """Check that parts with the extension `name` can be decoded."""
    if name in PICKLES:
        raise ConfigError(
            f"part {part!r} is a pickle, which can run any code when it is loaded, and is never unpickled here. Store "
            "it as npy, pth, json or msgpack; or leave it out (part_filter, field_map), or keep its bytes: "
            f"SampleDecoder(handlers={{{name!r}: bytes}})"
        )
    package = _PACKAGES.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"part {part!r} needs the package {package}, which is not installed: pip install {package} (or pass "
            "SampleDecoder a handler for it, or leave the part out of the field map)"
        )


def _npy(content: bytes) -> Any:
    try:
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except MemoryError:
        raise ValueError("the array it declares does not fit into memory") from None


def _npz(content: bytes, limits: Limits = DEFAULT_LIMITS) -> dict[str, Any]:
    _check_zip(content, limits.max_unpacked_bytes)
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


def _pth(content: bytes, limits: Limits = DEFAULT_LIMITS) -> Any:
    if content[:4] == b"PK\3\4":
        _check_zip(content, limits.max_unpacked_bytes)
    return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")


def _tenbin(content: bytes) -> Any:
    return importlib.import_module("webdataset.tenbin").decode_buffer(content)


def _msgpack(content: bytes) -> Any:
    return importlib.import_module("msgpack").unpackb(content)


def _cbor(content: bytes) -> Any:
    return importlib.import_module("cbor2").loads(content)


_PACKAGES = {**dict.fromkeys(("mp", "msg", "msgpack"), "msgpack"), "cbor": "cbor2"}

HANDLERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), parse_json),
    "npy": _npy,
    "npz": _npz,
    "pth": _pth,
    **dict.fromkeys(("ten", "tb"), _tenbin),
    **dict.fromkeys(("mp", "msg", "msgpack"), _msgpack),
    "cbor": _cbor,
}
"""Handler by extension."""

_BOUNDED = frozenset({"json", "jsn", "npz", "pth"})
"""Formats whose handlers take `limits`."""

_MAX_GZ = 3
"""Maximum levels of nested compression of a part."""


def is_plain(handler: Handler | None) -> bool:
    """Whether the results of a handler are only text, numbers, JSON types and bytes."""
    return handler is None or getattr(handler, "func", handler) in (bytes.decode, int, parse_json)


PartHandler: TypeAlias = Callable[[str, bytes], Any]
"""(name of a part, its bytes) -> object, or None to leave the part to the other handlers."""


class SampleDecoder:
    """Decodes the parts of a sample by their extension; `.gz` parts are unpacked and decoded by the extension before.

    >>> decoder = SampleDecoder(handlers={"rev": lambda content: content[::-1].decode()})
    >>> decoder.decode("7.json", b'{"a": 1}'), decoder.decode("7.rev", b"abc")
    ({'a': 1}, 'cba')

    Args:
        image_decode: one of `IMAGE_FORMS`: `torchrgb` (float32 (3, H, W) in 0..1), `torchrgb8` (uint8), `pilrgb` ...
        av_decode: what video and audio become: an `AVDecoder`, which decodes lazily; with `torch` an `AVData` with
            everything decoded; with `pyav` a PyAV container.
        video_decode_audio: with `torch`, whether the audio of a video is decoded, too.
        image_size: (height, width) to which every image is resized, bicubically, ignoring its aspect ratio; None: as
            stored.
        orientation: `apply` turns images as their EXIF data say; `ignore` leaves them as stored (but Pillow always
            turns TIFF).
        frames: of an image with several frames or pages, `first`, or `all`; then each image becomes a list.
        resize: `pillow` gives Pillow's exact pixels; `torch` is several times faster, and within 2 of them.
        dct_scaling: with `image_size`, decode large JPEGs at 1/2, 1/4 or 1/8 of their size: faster, but pixels differ
            by more.
        guess_content: detect images and media by their first bytes, if the extension is unknown or that of an image or
            medium.
        handlers: your own handlers, tried first. Either a mapping: `{"xyz": decode_xyz}` for parts such as `xyz` and
            `a.xyz`, `{"seg.png": decode_mask}` for that part alone (longer names win); a handler gets the bytes. Or one
            function of (name, bytes), which returns None for parts that it does not handle.
        limits: size limits of a sample; None: those of the data set (`get_train_dataset(limits=...)`).

    Raises:
        ConfigError: for an unknown `image_decode`, `av_decode`, `orientation`, `frames` or `resize`; or `resize` or
            `dct_scaling` without `image_size`.
    """

    def __init__(
        self,
        *,
        image_decode: ImageDecoderType = "torchrgb",
        image_size: tuple[int, int] | None = None,
        orientation: Orientation = "ignore",
        frames: Frames = "first",
        resize: ResizeType = "pillow",
        dct_scaling: bool = False,
        av_decode: "AVDecoderType" = "AVDecoder",
        video_decode_audio: bool = False,
        guess_content: bool = False,
        handlers: Mapping[str, Handler] | PartHandler | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._image = functools.partial(
            image_handler, image_decode, resizing(image_size, resize, dct_scaling), orientation, frames
        )
        self._av_settings: dict[str, Any] = {"video_decode_audio": video_decode_audio, "av_decode": av_decode}
        if av_decode != "AVDecoder":
            _media_decoder(self._av_settings, DEFAULT_LIMITS)  # checks it
        self._guesses = guess_content
        self._has_limits = limits is not None
        self._bind(limits or DEFAULT_LIMITS)
        self._user_handlers: dict[str, Handler] = {}
        self._user_function: PartHandler | None = None
        if isinstance(handlers, Mapping):
            self._user_handlers = {name.lower().removeprefix("."): handler for name, handler in handlers.items()}
        elif handlers is not None:
            self._user_function = handlers

    @property
    def is_builtin_only(self) -> bool:
        """Whether only the built-in handlers decode: this is no subclass, and has no handlers of the user."""
        return type(self) is SampleDecoder and not self._user_handlers and self._user_function is None

    def is_users(self, part: str) -> bool:
        """Whether code of the user may decode parts with this name: a handler, or a subclass."""
        if self._user_function is not None or type(self).handler is not SampleDecoder.handler:
            return True
        stem = part.lower()
        while stem.endswith(".gz") and _longest(stem, self._user_handlers) is None:
            stem = stem.removesuffix(".gz")
        return _longest(stem, self._user_handlers) is not None

    def handler(self, part: str) -> Handler | None:
        """The function that decodes parts with this name; None if they stay bytes.

        Raises:
            ConfigError: if the format is a pickle, or needs a package that is not installed.
        """
        if self._user_function is not None:
            return functools.partial(_user_first, self._user_function, part, self._built_in)
        name = _longest(part, self._user_handlers)
        return self._user_handlers[name] if name is not None else self._built_in(part)

    def _built_in(self, part: str) -> Handler | None:
        extension = part.lower().rpartition(".")[2]
        if extension == "gz":
            if part.lower().endswith(".gz" * (_MAX_GZ + 1)):
                raise SampleError(f"part {part[-40:]!r} is compressed more than {_MAX_GZ} times over")
            inner = part[: -len(".gz")]
            unpack = functools.partial(unpack_gzip, max_bytes=self._limits.max_unpacked_bytes)
            return functools.partial(_unpacked, unpack, self.handler(inner) if inner else None)
        if extension in HANDLERS or extension in PICKLES:
            check_format(extension, part)
            handler = HANDLERS[extension]
            return functools.partial(handler, limits=self._limits) if extension in _BOUNDED else handler
        medium = self._media.get(extension)
        return functools.partial(_by_content, self._kinds, medium) if self._kinds else medium

    def within(self, limits: Limits) -> Self:
        """This decoder with `limits`; itself if it was made with limits of its own."""
        if self._has_limits or limits == self._limits:
            return self
        changed = copy.copy(self)
        changed._bind(limits)
        return changed

    def _bind(self, limits: Limits) -> None:
        image = functools.partial(image_within, limits.max_image_pixels, self._image(limits.max_video_bytes))
        media = functools.partial(_decode_medium, self._av_settings, limits)
        self._limits = limits
        self._media: dict[str, Handler] = {
            **dict.fromkeys(IMAGE_EXTENSIONS, image),
            **dict.fromkeys(AV_EXTENSIONS, media),
        }
        self._kinds: dict[str, Handler] = {"image": image, "av": media} if self._guesses else {}

    def decode(self, fname: str, raw: bytes) -> Any:
        """Decode `raw`, the content of a file called `fname`.

        Raises:
            SampleError: if it cannot be decoded.
            ConfigError: see `handler`.
        """
        handler = self.handler(fname)
        decoded = raw if handler is None else decode_part(handler, raw, fname, fname)
        if IMAGE_WARNINGS:
            log_image_warnings(fname)
        return decoded

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """A copy of a crude sample with all parts that are still bytes decoded."""
        key = str(sample.get("__key__", "of unknown key"))
        decoded = {}
        for part, content in sample.items():
            handler = self.handler(part) if isinstance(content, bytes) and not part.startswith("__") else None
            decoded[part] = content if handler is None else decode_part(handler, content, key, part)
        if IMAGE_WARNINGS:
            log_image_warnings(key)
        return decoded


def _media_decoder(settings: Mapping[str, Any], limits: Limits) -> "AVWebdatasetDecoder":
    from bridge_data.decode.av import AVWebdatasetDecoder  # here: few data have video or audio

    return AVWebdatasetDecoder(**settings, limits=limits)


def _decode_medium(settings: Mapping[str, Any], limits: Limits, content: bytes) -> Any:
    return _media_decoder(settings, limits).decode(content)


def decode_part(handler: Handler, content: bytes, key: str, part: str) -> Any:
    """`handler(content)`; if it fails, see `raise_undecodable`."""
    try:
        return handler(content)
    except Exception as error:
        raise_undecodable(error, content, key, part)


def raise_undecodable(error: Exception, content: bytes, key: str, part: str) -> NoReturn:
    """Raise the `SampleError` of a part that a handler failed to decode, which names key and part; or `error` itself,
    if the content is not at fault."""
    if isinstance(error, (MemoryError, ImportError, ConfigError)):
        raise error
    what = f"{type(error).__name__}: {error}"
    if type(error).__name__ == "UnidentifiedImageError":  # whose text is the address of the bytes in memory
        begins = f"begins with {content[:_FIRST_SHOWN]!r}, which is of no known format" if content else "is empty"
        what = f"it {why_pointer(content) or begins}"
    raise SampleError(f"sample {key!r}: part {part!r} ({len(content)} bytes) cannot be decoded: {what}") from error


_FIRST_SHOWN = 24


def _longest(part: str, names: Mapping[str, Handler]) -> str | None:
    """The longest of `names` that equals `part`, or its end after a dot."""
    name = part.lower()
    while name not in names:
        _, dot, name = name.partition(".")
        if not dot:
            return None
    return name


def _user_first(user: PartHandler, part: str, others: Callable[[str], Handler | None], content: bytes) -> Any:
    result = user(part, content)
    if result is not None:
        return result
    handler = others(part)
    return content if handler is None else handler(content)


def _unpacked(unpack: Callable[[bytes], bytes], handler: Handler | None, content: bytes) -> Any:
    unpacked = unpack(content)
    return unpacked if handler is None else handler(unpacked)


def _by_content(kinds: Mapping[str, Handler], otherwise: Handler | None, content: bytes) -> Any:
    kind = guess_kind(content)
    handler = otherwise if kind is None else kinds[kind]
    return content if handler is None else handler(content)
