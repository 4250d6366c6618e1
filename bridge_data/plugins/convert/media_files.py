"""Media that records hold or name, as bytes with the file ending of their kind.

Reads bytes, the name of a file, a `data:` URL, or a dict of these as in Hugging Face data sets. Returns the ending
(`jpg`, `mp4`, `wav`) and the bytes. Raises a `SampleError` that says why, for media whose header cannot be decoded, and
for files outside of the media root, which are not read.
"""

import codecs
import functools
import importlib.util
import io
import itertools
import os
import re
import shlex
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image, ImageFile, ImageOps, JpegImagePlugin

from bridge_data.data.plain_data import parse_json
from bridge_data.decode.image import frame_numbers, orientation_of
from bridge_data.decode.media_headers import extract
from bridge_data.decode.media_kinds import IMAGE_ENDINGS, ending_of, kind_of_name
from bridge_data.decode.named_media import content_of_text
from bridge_data.errors import BridgeDataError, SampleError
from bridge_data.limits import DEFAULT_LIMITS, Limits
from bridge_data.prepare.part_encoding import JPEG_QUALITY

_TEXTS = ("txt", "text", "transcript")

_MAX_SHOWN = 200
"""Maximum characters of a name in a message."""

_MAX_NEAR = 100
"""Maximum folders in which a missing file is looked for."""

_URL = re.compile(r"[a-z][a-z0-9+.-]*://")


class MediaRoot:
    """The folder from which named media are read; with `follow_links`, also by links in it that lead out of it."""

    def __init__(self, folder: Path, *, follow_links: bool = False) -> None:
        self.folder, self._follows = folder, follow_links
        self._resolved = folder.resolve()

    def read(self, value: Any) -> tuple[str, bytes]:
        """(ending, content) of a medium.

        Raises:
            SampleError: if there is none, or it may not be read.
        """
        name, data = "", value
        if isinstance(value, Mapping):
            name, data = str(value.get("path") or ""), value.get("bytes")
            if data is None:
                value = name
        if isinstance(value, str):
            name, data = self._named(value)
        if not isinstance(data, bytes):
            raise SampleError(f"holds a {type(data).__name__}; expected a medium: bytes, or the name of a file")
        ending = ending_of(data, name)
        if ending is None:
            shown = f"{name!r}: " if name else ""
            raise SampleError(f"{shown}is neither an image nor a clip, by its content and its name")
        return ending, data

    def list_folder(self, name: str) -> list[str]:
        """The names of the files in the folder `name`; none if there is no such folder below the root."""
        name = name.removeprefix("file://")
        try:
            folder = (self.folder / name).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            return []
        if not (folder.is_relative_to(self._resolved) and folder.is_dir()):
            return []
        return [f"{name.rstrip('/')}/{file.name}" for file in folder.iterdir() if file.is_file()]

    def _way_out(self, name: str) -> str:
        """What to give so that a missing file is found: it may be in a folder beside or above."""
        for folder in self._near:
            if (folder / name).is_file():
                return f"give --media-root {shlex.quote(os.path.relpath(folder))}, which has it"
        return "is --media-root right?"

    @functools.cached_property
    def _near(self) -> list[Path]:
        """The folder above, and the folders in this one and beside it, as far as they are few."""
        above = self._resolved.parent
        inner, beside = (
            sorted(itertools.islice((one for one in folder.iterdir() if one.is_dir()), _MAX_NEAR))
            for folder in (self.folder, above)
        )
        return [above, *inner, *beside]

    def _named(self, name: str) -> tuple[str, bytes]:
        if (content := content_of_text(name)) is not None:
            return "", content
        if _URL.match(name) and not name.startswith("file://"):
            raise SampleError(
                f"names {name[:_MAX_SHOWN]!r}, which is not downloaded: store the files, and give --media-root"
            )
        if name.startswith("file://"):
            name = urllib.parse.unquote(name.removeprefix("file://"))
        return name, self._path(name).read_bytes()

    def _path(self, name: str) -> Path:
        """The file of this name."""
        if not name or "\0" in name:
            raise SampleError(f"names no file, but {name[:_MAX_SHOWN]!r}")
        shown = f"{name[:_MAX_SHOWN]!r} in {self.folder}"
        try:
            path = (self.folder / name).resolve(strict=True)
        except (OSError, RuntimeError, UnicodeEncodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SampleError(f"{shown}: cannot be read: {reason}; {self._way_out(name)}") from None
        written = Path(os.path.normpath(self.folder.absolute() / name))
        is_link = any(written.is_relative_to(folder) for folder in (self.folder.absolute(), self._resolved))
        if not (path.is_relative_to(self._resolved) or (self._follows and is_link)):
            fix = "--follow-links" if is_link else "a --media-root that holds it"
            raise SampleError(f"{name!r} leads out of {self.folder}, to {path}: give {fix}, if it is meant")
        if not path.is_file():
            raise SampleError(f"{shown}: is not a file")
        return path


def clips_are_checked() -> bool:
    """Whether PyAV, which reads the headers of clips, is installed."""
    return importlib.util.find_spec("av") is not None


def without_byte_order_mark(name: str, data: bytes) -> bytes:
    """The content of a part without the mark by which Windows begins texts in UTF-8."""
    return data.removeprefix(codecs.BOM_UTF8) if name.lower().rpartition(".")[2] in _TEXTS else data


def check_part(name: str, data: bytes, limits: Limits = DEFAULT_LIMITS) -> str | None:
    """Why the loader could not decode a part of this name, judged by its header; None if it could."""
    ending = name.lower().rpartition(".")[2]
    kind = "image" if ending in IMAGE_ENDINGS else kind_of_name(f"x.{ending}")
    try:
        if kind == "image" or (kind == "av" and clips_are_checked()):
            extract(kind, io.BytesIO(data), name)
        elif kind == "av" and not data:
            raise ValueError("it is empty")
        elif ending in ("json", "jsn"):
            parse_json(data, limits)
        elif ending in _TEXTS:
            data.decode()
    except (BridgeDataError, ValueError, OSError) as error:
        return f"part {name!r}: {error}"
    return None


def upright_image(name: str, data: bytes) -> bytes:
    """The content of a part that is an image, encoded anew if its EXIF orientation says that it must be turned. TIFF
    stays as it is: readers turn it.

    Raises:
        SampleError: if it cannot be decoded, or has several frames.
    """
    if kind_of_name(f"x.{name}") != "image":
        return data
    try:
        with Image.open(io.BytesIO(data)) as image:
            if orientation_of(image) == 1:
                return data
            if image.format != "MPO" and len(frame_numbers(image)) > 1:
                raise ValueError("it has several frames, which are not turned")
            return _turned_image(image, data)
    except (OSError, ValueError, SyntaxError) as error:
        raise SampleError(f"part {name!r}: cannot be turned as its EXIF orientation says: {error}") from error


def _turned_image(image: ImageFile.ImageFile, data: bytes) -> bytes:
    kind, options = image.format or "", {"quality": JPEG_QUALITY}
    if kind in ("JPEG", "MPO"):
        sampling: int = JpegImagePlugin.get_sampling(image)
        kind, options["subsampling"] = "JPEG", max(sampling, 0)
    elif kind == "WEBP":
        options["lossless"] = b"VP8L" in data[:_WEBP_HEADER]
    turned = ImageOps.exif_transpose(image)
    kept = {name: turned.info[name] for name in ("icc_profile", "exif", "dpi") if turned.info.get(name)}
    stream = io.BytesIO()
    turned.save(stream, kind, **options, **kept)
    return stream.getvalue()


_WEBP_HEADER = 1 << 16
"""Bytes in which a profile and the name of the first chunk of pixels are."""
