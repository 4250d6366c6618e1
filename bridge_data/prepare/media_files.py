"""Which files of a data set are media, and what their headers say.

Enters: names, and where they do not decide, first bytes; an open file and its kind. Leaves: the kind of medium, or
None; `ImageMetadata` from the header alone, or `AVMetadata` by PyAV. Guarantee: no pixel is decoded, but of the few
formats that keep their true size or mode in the image itself; audio is decoded once, to count its samples.

Source: the three strategies, under these names, are those of Energon's `media_filters` table.
"""

import contextlib
import dataclasses
import enum
import fnmatch
import io
import warnings
from collections.abc import Callable, Sequence
from typing import BinaryIO, Literal, TypeAlias

from PIL import Image

from bridge_data.decode.av import AV_EXTENSIONS, AVDecoder
from bridge_data.decode.formats import guess_kind
from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.errors import BridgeDataError, ConfigError, SampleError
from bridge_data.shards.media_metadata import ImageMetadata, MediaMetadata

MediaKind: TypeAlias = Literal["image", "av"]
"""An image; or video, audio or both."""

HEAD_BYTES = 512
"""Bytes of a file by which its kind is recognised."""

_FLAGS = "--media-metadata-by-extension, --media-metadata-by-header or --media-metadata-by-glob PATTERNS"

_KNOWN_WHEN_LOADED = frozenset({"ICO", "ICNS", "CUR"})

Read = Callable[[int, int], bytes]
"""Called with an offset and a number of bytes, returns exactly these."""


class MediaFilterStrategy(enum.StrEnum):
    """By what media are told."""

    EXTENSION = "EXTENSION"
    HEADER = "HEADER"
    GLOB = "GLOB"


@dataclasses.dataclass(frozen=True, slots=True)
class MediaRule:
    """A strategy and, for `GLOB`, the patterns, of which one must match a file's name or its whole path."""

    strategy: MediaFilterStrategy | Literal["EXTENSION", "HEADER", "GLOB"]
    patterns: Sequence[str] = ()

    @classmethod
    def parse(cls, by_glob: str | None, by_header: bool, by_extension: bool) -> "MediaRule":
        """The rule that the flags ask for; patterns are separated by commas.

        Raises:
            ConfigError: if they ask for none, or for several.
        """
        if (by_glob is not None) + by_header + by_extension != 1:
            raise ConfigError(f"which files are media? Give exactly one of {_FLAGS}")
        if by_glob is None:
            return cls("HEADER" if by_header else "EXTENSION")
        patterns = tuple(pattern.strip() for pattern in by_glob.split(","))
        if not all(patterns):
            raise ConfigError(
                f"--media-metadata-by-glob {by_glob!r}: expected patterns such as '*.jpg,clips/*.mp4', and none empty"
            )
        return cls("GLOB", patterns)

    def may_be_media(self, name: str) -> bool:
        """Whether the file must be opened, judged by its name. Case does not count."""
        if self.strategy == "EXTENSION":
            return kind_of_name(name) is not None
        if self.strategy == "HEADER":
            return True
        whole, last = name.lower(), name.lower().rpartition("/")[2]
        return any(fnmatch.fnmatchcase(text, pattern.lower()) for pattern in self.patterns for text in (whole, last))

    def kind(self, name: str, head: bytes) -> MediaKind | None:
        """The kind of a file that may be media, judged by its first bytes."""
        if self.strategy == "EXTENSION":
            return kind_of_name(name)
        return guess_kind(head) or kind_of_name(name)

    def __str__(self) -> str:
        return ":".join((self.strategy, *self.patterns))


def kind_of_name(name: str) -> MediaKind | None:
    """The kind of a file by the extension of its name."""
    extension = name.lower().rpartition("/")[2].rpartition(".")[2]
    return "image" if extension in IMAGE_EXTENSIONS else "av" if extension in AV_EXTENSIONS else None


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


class _Range(io.RawIOBase):
    def __init__(self, read: Read, offset: int, num_bytes: int) -> None:
        self._read, self._offset, self._num_bytes = read, offset, num_bytes
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = min(len(buffer), max(0, self._num_bytes - self._position))
        if wanted:
            buffer[:wanted] = self._read(self._offset + self._position, wanted)
            self._position += wanted
        return wanted

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._num_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position


def open_range(read: Read, offset: int, num_bytes: int) -> io.BufferedReader:
    """Bytes `offset` to `offset + num_bytes` of what `read` reads, read when they are asked for."""
    return io.BufferedReader(_Range(read, offset, num_bytes), 1 << 16)
