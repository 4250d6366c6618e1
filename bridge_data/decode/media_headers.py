"""The metadata of a medium, read from its header: of images with Pillow, of clips with PyAV.

Reads an open file and its kind. Returns its `MediaMetadata`. Pixels are decoded only if the header lacks size or mode;
audio once.
"""

import contextlib
import warnings
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from bridge_data.decode.av import AVDecoder
from bridge_data.decode.image import Orientation, orientation_of, turned_size
from bridge_data.decode.media_kinds import MediaKind
from bridge_data.decode.media_metadata import ImageMetadata, MediaMetadata
from bridge_data.errors import HEAD_BYTES, BridgeDataError, ConfigError, SampleError, why_pointer

_KNOWN_WHEN_LOADED = frozenset({"ICO", "ICNS", "CUR"})
"""Formats of which the header does not have the size or the mode."""


def extract(kind: MediaKind, file: BinaryIO, name: str, orientation: Orientation = "ignore") -> MediaMetadata:
    """The metadata of `file`; `name` is for messages. `orientation` says of what the size of an image is.

    Raises:
        SampleError: if it cannot be read as `kind`.
        ConfigError: if PyAV is needed and not installed.
    """
    try:
        return _image(file, orientation) if kind == "image" else _clip(file)
    except (ConfigError, MemoryError):
        raise
    except UnidentifiedImageError:  # its text is the address of the file in memory
        file.seek(0)
        head = file.read(HEAD_BYTES)
        what = why_pointer(head) or (f"unknown format, which begins with {head[:24]!r}" if head else "empty")
        raise SampleError(f"{name}: not a readable image: {what}") from None
    except (BridgeDataError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise SampleError(f"{name}: not a readable {'image' if kind == 'image' else 'clip'}: {error}") from error


def _image(file: BinaryIO, orientation: Orientation) -> ImageMetadata:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.closing(Image.open(file)) as image:
            if image.format in _KNOWN_WHEN_LOADED:
                image.load()
            size = image.height, image.width
            height, width = turned_size(size, orientation_of(image)) if orientation == "apply" else size
            return ImageMetadata(width=width, height=height, format=image.format or "UNKNOWN", mode=image.mode)


def _clip(file: BinaryIO) -> MediaMetadata:
    return AVDecoder(file).get_metadata(get_audio_num_samples=True)
