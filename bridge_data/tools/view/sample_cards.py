"""How a sample is shown: its parts as pictures, players and texts; and the bytes that the browser gets.

Enters: a stored sample. Leaves: a `SampleCard` for the templates; content with a content type from a fixed table; for
`bridge-data preview --html FILE`, a contact sheet: one file with small copies of pictures and short clips, which needs
no network and no script. Guarantee: anything a browser could run (HTML, SVG, scripts) is shown as text, and sent only
as a download; captions and keys are always text.
"""

import base64
import dataclasses
import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from bridge_data.errors import BridgeDataError, ConfigError
from bridge_data.shards import RawSample
from bridge_data.shards.joined_records import JoinedRawSample
from bridge_data.shards.records import bytes_of
from bridge_data.storage.atomic import write_file
from bridge_data.tools.cli.terminal import sized
from bridge_data.tools.descriptions import TEXT_PARTS, describe
from bridge_data.tools.view.catalog import SampleAddress, SplitCatalog

if TYPE_CHECKING:
    from jinja2 import Environment

DOWNLOAD = "application/octet-stream"

CONTENT_TYPES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "webp": "image/webp",
    "gif": "image/gif",
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "m4a": "audio/mp4",
    "mp4": "video/mp4",
    "m4v": "video/mp4",
    "webm": "video/webm",
    "mov": "video/quicktime",
    "mkv": "video/x-matroska",
    "avi": "video/x-msvideo",
}
"""Content types of parts that a browser shows or plays, by the last piece of their name; others are downloads."""

_CONVERTED = frozenset({"tif", "tiff", "ppm", "pgm", "pbm", "bmp"})
"""Pictures sent as PNG because browsers do not show them (or they are large)."""

SMALL_BYTES = 200_000
"""Larger pictures are scaled down for lists."""

THUMBNAIL_PIXELS = 480
"""The longer side of a picture in a list."""

MAX_PIXELS = 200_000_000
"""Larger pictures are not decoded here."""

MAX_CARD_CHARACTERS, MAX_CHARACTERS = 300, 50_000
"""Characters of a text in a list, and on the page of the sample."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShownPart:
    """A part of a sample: `kind` is picture, audio, video or text; `text` is its content or a description. `member` (of
    a join) and `number` locate it in the sample."""

    name: str
    kind: str
    size: str
    text: str
    member: int
    number: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SampleCard:
    """A sample in a list, or on its page. `error` says why it cannot be shown."""

    address: SampleAddress
    key: str
    source: str
    parts: tuple[ShownPart, ...] = ()
    error: str = ""

    @property
    def media(self) -> list[ShownPart]:
        """The parts shown as pictures or players."""
        return [part for part in self.parts if part.kind != "text"]

    @property
    def texts(self) -> list[ShownPart]:
        """The parts shown as text."""
        return [part for part in self.parts if part.kind == "text"]


def card(part: SplitCatalog, address: SampleAddress, *, whole: bool = False) -> SampleCard:
    """The card of a sample; `whole`: with long texts."""
    source = part.source(address)
    try:
        raw = part.read(address)
    except BridgeDataError as error:
        return SampleCard(address=address, key=f"number {address.index}", source=source.name, error=str(error))
    parts = tuple(_shown(raw, MAX_CHARACTERS if whole else MAX_CARD_CHARACTERS))
    return SampleCard(address=address, key=raw.full_key, source=source.name, parts=parts)


def members_of(raw: RawSample) -> tuple[RawSample | None, ...]:
    """The samples joined in it, or the sample itself."""
    return raw.members if isinstance(raw, JoinedRawSample) else (raw,)


def _shown(raw: RawSample, limit: int) -> Iterator[ShownPart]:
    members = members_of(raw)
    for at, member in enumerate(members):
        for number, (name, data) in enumerate(() if member is None else member.parts.items()):
            kind = kind_of(name)
            shown = name if len(members) == 1 else f"{at}: {name}"
            text = _text(name, data, limit) if kind == "text" else ""
            yield ShownPart(name=shown, kind=kind, size=sized(len(bytes_of(data))), text=text, member=at, number=number)


def extension(name: str) -> str:
    """The last piece of the name of a part, in lower case."""
    return name.rpartition(".")[2].lower()


def kind_of(name: str) -> str:
    """picture, audio, video or text, by the name of a part; other parts are text with a description."""
    if extension(name) in _CONVERTED:
        return "picture"
    kind = CONTENT_TYPES.get(extension(name), "").partition("/")[0]
    return "picture" if kind == "image" else kind or "text"


def _text(name: str, data: Any, limit: int) -> str:
    """The text of a part, or a description of other content."""
    if isinstance(data, str):
        return data if len(data) <= limit else data[:limit] + " …"
    kind = extension(name)
    if kind in TEXT_PARTS or kind in ("json", "jsonl", "xml", "svg", "htm", "js", "css"):
        try:
            text: str = data[: 4 * limit].decode("utf-8", "ignore" if len(data) > 4 * limit else "strict")
        except UnicodeDecodeError as error:
            return f"not UTF-8: {error}"
        return text if len(text) <= limit else text[:limit] + " …"
    return describe(name, data)


@dataclasses.dataclass(frozen=True, slots=True)
class MediaContent:
    """The response for a part; `inline`: the browser may show it."""

    data: bytes
    content_type: str

    @property
    def inline(self) -> bool:
        """Whether the browser may show it."""
        return self.content_type != DOWNLOAD


def content(raw: RawSample, member: int, number: int, *, small: bool) -> MediaContent:
    """The content of part `number` of member `member`; if `small`, large pictures are scaled down.

    Raises:
        LookupError: if there is no such part.
    """
    members = members_of(raw)
    found = members[member] if 0 <= member < len(members) else None
    parts = [] if found is None else list(found.parts.items())
    if not 0 <= number < len(parts):
        raise LookupError(f"{raw.full_key} has no part number {number}")
    name, data = parts[number][0], bytes_of(parts[number][1])
    kind = extension(name)
    if kind in _CONVERTED or (small and kind_of(name) == "picture" and len(data) > SMALL_BYTES):
        made = _converted(data, THUMBNAIL_PIXELS if small else None)
        return MediaContent(data, DOWNLOAD) if made is None else made
    return MediaContent(data, CONTENT_TYPES.get(kind, DOWNLOAD))


def _converted(data: bytes, side: int | None) -> MediaContent | None:
    """A picture as JPEG with a longer side of at most `side`, or as PNG; None if it cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image: Image.Image = Image.open(io.BytesIO(data))
            if image.width * image.height > MAX_PIXELS:
                return None
            if side is not None:
                image.draft("RGB", (side, side))
                image.thumbnail((side, side))
        file = io.BytesIO()
        is_opaque = image.mode in ("RGB", "L", "CMYK")
        image.convert("RGB" if is_opaque else "RGBA").save(file, "JPEG" if is_opaque and side else "PNG", quality=85)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None
    return MediaContent(file.getvalue(), "image/jpeg" if is_opaque and side else "image/png")


MAX_CLIP_BYTES = 2 << 20
"""Larger clips are only named, not included."""

MAX_SAMPLES = 1000
"""Maximum samples of a sheet."""

_FOLDER = Path(__file__).parent


@dataclasses.dataclass(frozen=True, slots=True)
class SheetCard:
    """A card with its media as data URIs; empty for media that are left out."""

    shown: SampleCard
    media: tuple[tuple[ShownPart, str], ...]


def write_sheet(file: Path, title: str, part: SplitCatalog, start: int, count: int) -> int:
    """Write the samples `start` to `start + count - 1` of each source to `file`; return their number.

    Raises:
        ConfigError: if they are too many, or the file cannot be written. DatasetError: if they cannot be read.
    """
    chosen = [
        SampleAddress(source.number, index)
        for source in part.sources
        for index in range(start, min(start + count, source.num_samples))
    ]
    if len(chosen) > MAX_SAMPLES:
        raise ConfigError(f"--html: {len(chosen):,} samples are too many for one file, at most {MAX_SAMPLES:,}")
    try:
        page = templates().get_template("sheet.html")
    except ImportError as error:
        raise ConfigError(f'--html needs a package ({error}): pip install "bridge-data[view]"') from error
    style = (_FOLDER / "static" / "view.css").read_text()
    made = page.render(title=title, part=part, style=style, cards=_cards(part, chosen))
    try:
        write_file(file, made.encode("utf-8", "backslashreplace"))  # keys may hold surrogates
    except OSError as error:
        raise ConfigError(f"--html {file}: cannot be written: {error.strerror}") from error
    return len(chosen)


def templates() -> "Environment":
    """The templates of pages and sheets."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(_FOLDER / "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def _cards(part: SplitCatalog, chosen: Sequence[SampleAddress]) -> list[SheetCard]:
    found = []
    for address in chosen:
        shown = card(part, address)
        media = tuple((one, _data_uri(part, address, one)) for one in shown.media[:4])
        found.append(SheetCard(shown, media))
    return found


def _data_uri(part: SplitCatalog, address: SampleAddress, shown: ShownPart) -> str:
    found = content(part.read(address), shown.member, shown.number, small=True)
    if not found.inline or (shown.kind != "picture" and len(found.data) > MAX_CLIP_BYTES):
        return ""
    return f"data:{found.content_type};base64,{base64.b64encode(found.data).decode()}"
