"""How rows and the turns of chats name images and videos: the shapes of public data, read in one place.

Reads the value at `image`, `images`, `video` or `videos` of a row, or a part of a turn. Returns `NamedVisual`s: where
an image or a video is, and what else is said of it. Raises a `SampleError` for what is neither. Nothing is opened.

    "cat.jpg"   b"..."   {"path": "cat.jpg"}   {"bytes": b"...", "path": None}      an image, or a video that is a file
    ["0.jpg", "1.jpg"]   {"frames": ["0.jpg", "1.jpg"]}   "frames/clip7"            a video stored as pictures; a folder
    {"video": "a.mp4", "fps": 1}                                                    what else is said of it
    "data:image/png;base64,iVBO..."   "iVBO..."                                     its content itself

A picture is no video. In a list at `videos`, pictures alone are the frames of one video; a single one is refused there.
"""

import base64
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from bridge_data.decode.media_kinds import kind_of_name, known_by_content
from bridge_data.errors import SampleError

VisualKind: TypeAlias = Literal["image", "video"]

NAMED_AT = ("path", "url", "file", "file_name", "filename")
"""Where a dict has the name of a file."""

MOVING_ENDINGS = frozenset({"gif"})
"""Endings of pictures that FFmpeg reads as videos."""

_FIRST_SHOWN = 80


@dataclasses.dataclass(frozen=True, slots=True)
class NamedVisual:
    """An image or a video of a row. `source` is a name, bytes, or for the frames of a video a tuple of these; None: it
    stands elsewhere in the row, or its name is empty. `said` is what else the row says of it."""

    source: Any
    said: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_MAX_NAME = 4096
"""Characters of a path, at most."""

_BASE64_HEADS = ("/9j/", "iVBORw0KGgo", "UklGR", "R0lGOD", "AAAA")
"""How the base64 of JPEG, PNG, WebP, GIF and MP4 begins."""


def content_of_text(text: str) -> bytes | None:
    """The content of an image or a video that a text is itself, as a `data:` URL or in base64; None if it is a name.

    Raises:
        SampleError: if it is longer than any name, or a `data:` URL, and no base64.
    """
    is_url, is_long = text.startswith("data:"), len(text) > _MAX_NAME
    if not (is_url or is_long or text.startswith(_BASE64_HEADS)):
        return None
    try:
        content = base64.b64decode(text.partition("base64,")[2] if is_url else text, validate=True)
    except ValueError as error:
        if not (is_url or is_long):
            return None
        what = "a data: URL" if is_url else f"a text of {len(text):,} characters, which is no name of a file,"
        raise SampleError(f"{what} is no base64: {error}") from None
    return content if is_url or is_long or known_by_content(content, by_magic=True) else None


def visuals_at(value: Any, kind: VisualKind, *, is_one: bool = False) -> list[NamedVisual]:
    """The images or videos that `value` names; `is_one` says that it stands for one, as in a part of a turn.

    Raises:
        SampleError: if it names something else, or a picture as a video.
    """
    if value is None or value in ({}, []):
        return []
    if kind == "video" and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return _videos_in(value, is_one)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [found for one in value for found in visuals_at(one, kind)]
    if isinstance(value, str | bytes):
        return [NamedVisual(value or None)]
    if isinstance(value, Mapping):
        at = next((at for at in names_of(kind) if value.get(at)), None)
        if at is None and all(not one for one in value.values()):
            return [NamedVisual(None)]
        if at is not None:
            also = NAMED_AT if at == "bytes" else ()
            said = {name: one for name, one in value.items() if name != at and name not in also and one is not None}
            inner = visuals_at(value[at], kind, is_one=True)
            return [NamedVisual(found.source, {**found.said, **said}) for found in inner]
    raise SampleError(f"names an image or video as {repr(value)[:_FIRST_SHOWN]}; expected the name of a file")


def visual_in(part: Any) -> tuple[VisualKind, list[NamedVisual]] | None:
    """(kind, images or videos) of a part of a turn; None if it is text or anything else."""
    said = part.get("type") if isinstance(part, Mapping) else None
    kinds: tuple[VisualKind, ...] = ("image", "video")
    for kind in kinds:
        if said in (kind, f"{kind}_url", f"input_{kind}"):
            more = {name: value for name, value in part.items() if name != "type"}
            if any(more.get(at) for at in names_of(kind)):
                return kind, visuals_at(more, kind, is_one=True)
            return kind, [NamedVisual(None, {name: one for name, one in more.items() if one is not None})]
    return None


def is_still(value: Any) -> bool:
    """Whether `value`, as a row names a medium, is a picture rather than a video."""
    if isinstance(value, Mapping):
        content = value.get("bytes")
        name = next((value[at] for at in ("image", "image_url", *NAMED_AT) if value.get(at)), None)
        value = content if isinstance(content, bytes) else name
    if isinstance(value, bytes):
        found = known_by_content(value, by_magic=True)
        return found is not None and found[1] == "image" and found[0] not in MOVING_ENDINGS
    if not isinstance(value, str):
        return False
    if value.startswith("data:"):
        return value.startswith("data:image/") and not value.startswith("data:image/gif")
    return kind_of_name(value) == "image" and value.lower().rpartition(".")[2] not in MOVING_ENDINGS


def check_moving(source: Any) -> None:
    """Raise a SampleError if `source`, a video, is a picture."""
    if is_still(source):
        shown = repr(source)[:_FIRST_SHOWN] if isinstance(source, str) else "a picture"
        raise SampleError(
            f"a video is {shown}: a picture is no video. Name it as an image; or, for a video of one frame, as a list "
            "of pictures at `video`"
        )


def _video_of(frames: Sequence[NamedVisual]) -> NamedVisual:
    """The video of these pictures, with what is said of them: a value for all, or a list; and their `times`."""
    said: dict[str, Any] = {}
    for name in dict.fromkeys(name for frame in frames for name in frame.said):
        values = [frame.said.get(name) for frame in frames]
        is_time = name in ("time", "timestamp", "second", "seconds")
        said["times" if is_time else name] = values if is_time or any(one != values[0] for one in values) else values[0]
    return NamedVisual(tuple(frame.source for frame in frames), said)


DOCUMENT_TEXTS = ("texts", "text_list")
"""Where a document of texts and pictures has its texts."""

DOCUMENT_PARTS = ("sequence", "content", "parts")
"""Or both, in order."""

DOCUMENT_IMAGES = "image_info"
"""Where pictures that belong to texts are."""

_PICTURE_AT = ("bytes", "image", "image_base64", "image_path", "image_name", "image_url")


def picture_at(part: Any) -> str | None:
    """The field of a part of a document that has its picture, or names it; None if it has none."""
    return next((at for at in _PICTURE_AT if part.get(at)), None) if isinstance(part, Mapping) else None


def is_document(row: Mapping[str, Any]) -> bool:
    """Whether a row is a document of texts and pictures, such as those of OBELICS and MMC4."""
    texts = next((row[name] for name in DOCUMENT_TEXTS if isinstance(row.get(name), list)), None)
    if texts is not None:
        return all(isinstance(text, str | None) for text in texts)
    parts = next((row[name] for name in DOCUMENT_PARTS if isinstance(row.get(name), list)), ())
    return any(visual_in(part) or picture_at(part) for part in parts)


def by_number(name: str) -> list[tuple[int, str]]:
    """The order of names, with numbers compared as numbers: 2.jpg before 10.jpg."""
    return [(int(piece or 0), text) for text, piece in re.findall(r"(\D*)(\d*)", name)]


def frames_among(names: Iterable[str]) -> list[str]:
    """The pictures among the files of a folder that is a video, in order; hidden files are none."""
    shown = [name for name in names if not name.rpartition("/")[2].startswith(".")]
    return sorted((name for name in shown if kind_of_name(name) == "image"), key=by_number)


def names_of(kind: VisualKind) -> tuple[str, ...]:
    """Where a dict has an image or a video, its bytes first: then a name says where they came from."""
    return ("bytes", kind, f"{kind}_url", *(("frames",) if kind == "video" else ()), *NAMED_AT)


def _videos_in(values: Sequence[Any], is_one: bool) -> list[NamedVisual]:
    """The videos of a list: pictures are the frames of one."""
    stills = [is_still(value) for value in values]
    if values and all(stills) and (is_one or len(values) > 1):
        return [_video_of([found for value in values for found in visuals_at(value, "image")])]
    if any(stills):
        which = repr(values[stills.index(True)])[:_FIRST_SHOWN]
        raise SampleError(
            f"its videos are {len(values)}, and {which} is a picture, which is no video: write the frames of a video "
            "as a list of their own (one frame too), and other pictures at `images`"
        )
    return [found for value in values for found in visuals_at(value, "video", is_one=True)]
