"""The sample decoder: chooses the handler of each part of a sample by its extension.

Input: part names and bytes. Output: images, video, audio, text, JSON, integers, arrays, tensors; parts without a
handler stay bytes. Guarantee: decoding never executes code from the data and never opens another file; pickles are
refused.

Source: the arguments are those of Energon's `SampleDecoder`, the extensions those of `webdataset.autodecode`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from bridge_data.decode.av import AV_EXTENSIONS, AVDecoderType, AVWebdatasetDecoder
from bridge_data.decode.formats import FORMATS, PICKLES, Handler, check_format, guess_kind, unpack_gzip
from bridge_data.decode.image import IMAGE_EXTENSIONS, ImageDecoderType, image_handler
from bridge_data.decode.pixels import ResizeType, Resizing
from bridge_data.errors import ConfigError, SampleError

PartHandler: TypeAlias = Callable[[str, bytes], Any]
"""(name of a part, its bytes) -> object, or None to leave the part to the other handlers."""


class SampleDecoder:
    """Decodes the parts of a sample by their extension; `.gz` parts are unpacked and decoded by the extension before.

    Args:
        image_decode: one of `IMAGE_FORMS`: `torchrgb` (float32 (3, H, W) in 0..1), `torchrgb8` (uint8), `pilrgb` ...
        av_decode: what video and audio become: an `AVDecoder`, which decodes lazily; with `torch` an `AVData` with
            everything decoded; with `pyav` a PyAV container.
        video_decode_audio: with `torch`, whether the audio of a video is decoded, too.
        image_size: (height, width) to which every image is resized, bicubically, ignoring its aspect ratio; None: as
            stored.
        resize: `pillow` gives Pillow's exact pixels; `torch` is several times faster, and within 2 of them.
        dct_scaling: with `image_size`, decode large JPEGs at 1/2, 1/4 or 1/8 of their size: faster, but pixels differ
            by more.
        guess_content: detect images and media by their first bytes, if the extension is unknown or that of an image or
            medium.
        handlers: your own handlers, tried first. Either a mapping: `{"xyz": decode_xyz}` for parts such as `xyz` and
            `a.xyz`, `{"seg.png": decode_mask}` for that part alone (longer names win); a handler gets the bytes. Or one
            function of (name, bytes), which returns None for parts that it does not handle.

    Raises:
        ConfigError: for an unknown `image_decode`, `av_decode` or `resize`, or `resize` or `dct_scaling` without
            `image_size`.
    """

    def __init__(
        self,
        *,
        image_decode: ImageDecoderType = "torchrgb",
        image_size: tuple[int, int] | None = None,
        resize: ResizeType = "pillow",
        dct_scaling: bool = False,
        av_decode: AVDecoderType = "AVDecoder",
        video_decode_audio: bool = False,
        guess_content: bool = False,
        handlers: Mapping[str, Handler] | PartHandler | None = None,
    ) -> None:
        image = image_handler(image_decode, _resizing(image_size, resize, dct_scaling))
        media = AVWebdatasetDecoder(video_decode_audio=video_decode_audio, av_decode=av_decode).decode
        self._media: dict[str, Handler] = {
            **dict.fromkeys(IMAGE_EXTENSIONS, image),
            **dict.fromkeys(AV_EXTENSIONS, media),
        }
        self._kinds: dict[str, Handler] = {"image": image, "av": media} if guess_content else {}
        self._own: dict[str, Handler] = {}
        self._own_function: PartHandler | None = None
        if isinstance(handlers, Mapping):
            self._own = {name.lower().removeprefix("."): handler for name, handler in handlers.items()}
        elif handlers is not None:
            self._own_function = handlers

    @property
    def is_ours_alone(self) -> bool:
        """Whether no user code is involved: neither a subclass nor own handlers."""
        return type(self) is SampleDecoder and not self._own and self._own_function is None

    def handler(self, part: str) -> Handler | None:
        """The function that decodes parts with this name; None if they stay bytes.

        Raises:
            ConfigError: if the format is a pickle, or needs a package that is not installed.
        """
        if self._own_function is not None:
            return functools.partial(_own_first, self._own_function, part, self._built_in)
        name = _longest(part, self._own)
        return self._own[name] if name is not None else self._built_in(part)

    def _built_in(self, part: str) -> Handler | None:
        extension = part.lower().rpartition(".")[2]
        if extension == "gz":
            inner = part[: -len(".gz")]
            return functools.partial(_unpacked, self.handler(inner) if inner else None)
        if extension in FORMATS or extension in PICKLES:
            check_format(extension, part)
            return FORMATS[extension]
        handler = self._media.get(extension)
        return functools.partial(_by_content, self._kinds, handler) if self._kinds else handler

    def decode(self, fname: str, raw: bytes) -> Any:
        """Decode `raw`, the content of a file called `fname`.

        Raises:
            SampleError: if it cannot be decoded.
            ConfigError: see `handler`.
        """
        handler = self.handler(fname)
        return raw if handler is None else decode_part(handler, raw, fname, fname)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """A copy of a crude sample with all parts that are still bytes decoded."""
        key = str(sample.get("__key__", "of unknown key"))
        decoded = {}
        for part, content in sample.items():
            handler = self.handler(part) if isinstance(content, bytes) and not part.startswith("__") else None
            decoded[part] = content if handler is None else decode_part(handler, content, key, part)
        return decoded


def decode_part(handler: Handler, content: bytes, key: str, part: str) -> Any:
    """`handler(content)`, with any failure to decode turned into a `SampleError` that names key and part.

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


def _resizing(image_size: tuple[int, int] | None, resize: ResizeType, dct_scaling: bool) -> Resizing | None:
    if image_size is not None:
        return Resizing(size=image_size, resize=resize, dct_scaling=dct_scaling)
    if resize != "pillow" or dct_scaling:
        raise ConfigError(
            f"resize={resize!r}, dct_scaling={dct_scaling} without image_size: there is nothing to resize to; "
            "set image_size=(height, width)"
        )
    return None


def _longest(part: str, names: Mapping[str, Handler]) -> str | None:
    """The longest of `names` that equals `part`, or its end after a dot."""
    name = part.lower()
    while name not in names:
        _, dot, name = name.partition(".")
        if not dot:
            return None
    return name


def _own_first(own: PartHandler, part: str, others: Callable[[str], Handler | None], content: bytes) -> Any:
    result = own(part, content)
    if result is not None:
        return result
    handler = others(part)
    return content if handler is None else handler(content)


def _unpacked(handler: Handler | None, content: bytes) -> Any:
    unpacked = unpack_gzip(content)
    return unpacked if handler is None else handler(unpacked)


def _by_content(kinds: Mapping[str, Handler], otherwise: Handler | None, content: bytes) -> Any:
    kind = guess_kind(content)
    handler = otherwise if kind is None else kinds[kind]
    return content if handler is None else handler(content)
