"""The metadata of one file: of an image from its header alone, of a clip by PyAV.

Enters: an open file and its kind. Leaves: `ImageMetadata` or `AVMetadata`. Guarantee: no pixel is decoded, but of the
few formats that keep their true size or mode in the image itself; audio is decoded once, to count its samples.
"""

import contextlib
import warnings
from typing import BinaryIO

from PIL import Image

from bridge_data.decode.av import AVDecoder
from bridge_data.errors import BridgeDataError, ConfigError, SampleError
from bridge_data.prepare.media_rules import MediaKind
from bridge_data.shards.media_metadata import ImageMetadata, MediaMetadata

_KNOWN_WHEN_LOADED = frozenset({"ICO", "ICNS", "CUR"})


def extract(kind: MediaKind, file: BinaryIO, name: str) -> MediaMetadata:
    """The metadata of `file`, which is called `name`.

    Raises:
        SampleError: if it cannot be read as what it is said to be. ConfigError: if PyAV is needed and not installed.
    """
    try:
        return _image(file) if kind == "image" else _clip(file)
    except (ConfigError, MemoryError):
        raise
    except (BridgeDataError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise SampleError(f"{name}: not a readable {'image' if kind == 'image' else 'clip'}: {error}") from error


def _image(file: BinaryIO) -> ImageMetadata:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.closing(Image.open(file)) as image:
            if image.format in _KNOWN_WHEN_LOADED:
                image.load()
            return ImageMetadata(
                width=image.width, height=image.height, format=image.format or "UNKNOWN", mode=image.mode
            )


def _clip(file: BinaryIO) -> MediaMetadata:
    return AVDecoder(file).get_metadata(get_audio_num_samples=True)
