"""What is shown of samples and batches: for `view`, its charts and contact sheets.

`card` reads a stored sample, and returns a `SampleCard` for the templates; `content` returns the bytes of a part with a
content type from a fixed table; `write_sheet` (for `bridge-data info --html FILE`) writes one file with small copies
of pictures and short clips, which needs no network and no script. Anything a browser could run (HTML, SVG, scripts) is
shown as text, and sent only as a download; captions and keys are always text.

`contents` reads a batch, of our encoders or of a user's: a dataclass or a dict. It returns rows of tokens with their
loss mask, and packs with their waste; `pictures_of` returns its pictures. Fields are found by their usual names; others
are described in words. Pixels are de-normalised by the mean and deviation of the image processor; without them, they
are stretched from the minimum to the maximum, and the page says so. Patches of the Qwen-VL families are assembled by
their grids.
"""

import base64
import dataclasses
import io
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor

from bridge_data.cli.terminal import sized
from bridge_data.data import RawSample
from bridge_data.data.blocks import bytes_of
from bridge_data.decode.image import in_mode
from bridge_data.encoders.pixel_table import looked_up
from bridge_data.errors import BridgeDataError, ConfigError
from bridge_data.extensions import importing
from bridge_data.plugins.view.catalog import SampleAddress, SplitCatalog
from bridge_data.plugins.view.data_catalog import BrowsedSplit
from bridge_data.plugins.view.sample_facts import TEXT_PARTS, facts_of, part_facts, text_of
from bridge_data.storage.atomic import write_file

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


def card(part: BrowsedSplit, address: SampleAddress, *, whole: bool = False) -> SampleCard:
    """The card of a sample; `whole`: with long texts."""
    source = part.source(address)
    try:
        raw = part.read(address)
    except BridgeDataError as error:
        return SampleCard(address=address, key=f"number {address.index}", source=source.name, error=str(error))
    parts = tuple(_shown(raw, MAX_CHARACTERS if whole else MAX_CARD_CHARACTERS))
    return SampleCard(address=address, key=raw.full_key, source=source.name, parts=parts)


def _shown(raw: RawSample, limit: int) -> Iterator[ShownPart]:
    members = raw.made_of
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
    return text_of(part_facts(name, data))


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
    members = raw.made_of
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
            is_opaque = image.mode in ("RGB", "L", "CMYK") or not image.has_transparency_data
            image = in_mode(image, "RGB" if is_opaque else "RGBA")
            if side is not None:
                image.thumbnail((side, side))
        file = io.BytesIO()
        image.save(file, "JPEG" if is_opaque and side else "PNG", quality=85)
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


def write_sheet(file: Path, title: str, part: SplitCatalog, chosen: Sequence[SampleAddress]) -> None:
    """Write the `chosen` samples to `file`.

    Raises:
        ConfigError: if they are too many, or the file cannot be written.
        DatasetError: if they cannot be read.
    """
    if len(chosen) > MAX_SAMPLES:
        raise ConfigError(f"--html: {len(chosen):,} samples are too many for one file, at most {MAX_SAMPLES:,}")
    write_page(file, "sheet.html", title=title, part=part, cards=_cards(BrowsedSplit.of(part), chosen))


def write_page(file: Path, template: str, **values: Any) -> None:
    """Write a page that needs no other file.

    Raises:
        ConfigError: if the file cannot be written, or a package is missing.
    """
    with importing("--html"):
        page = templates().get_template(template)
    made = page.render(style=(_FOLDER / "static" / "view.css").read_text(), **values)
    try:
        write_file(file, made.encode("utf-8", "backslashreplace"))  # keys may hold surrogates
    except OSError as error:
        raise ConfigError(f"--html {file}: cannot be written: {error.strerror}") from error


def templates() -> "Environment":
    """The templates of pages and sheets."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(_FOLDER / "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def _cards(part: BrowsedSplit, chosen: Sequence[SampleAddress]) -> list[SheetCard]:
    found = []
    for address in chosen:
        shown = card(part, address)
        media = tuple((one, _data_uri(part, address, one)) for one in shown.media[:4])
        found.append(SheetCard(shown, media))
    return found


def _data_uri(part: BrowsedSplit, address: SampleAddress, shown: ShownPart) -> str:
    found = content(part.read(address), shown.member, shown.number, small=True)
    if not found.inline or (shown.kind != "picture" and len(found.data) > MAX_CLIP_BYTES):
        return ""
    return f"data:{found.content_type};base64,{base64.b64encode(found.data).decode()}"


MAX_SHOWN_TOKENS = 2048
"""Maximum tokens shown of a row."""

MAX_PICTURES = 64
"""Maximum pictures shown of a batch."""

_TOKENS = ("tokens", "input_ids")

_PATCHES = (("pixel_values", "image_grid_thw"), ("pixel_values_videos", "video_grid_thw"))


@dataclasses.dataclass(frozen=True, slots=True)
class ShownToken:
    """A token of a row; `learnt`: it counts in the loss, as the label of the position before it."""

    text: str
    number: int
    position: int
    learnt: bool


@dataclasses.dataclass(frozen=True, slots=True)
class PackSegment:
    """A sample in a row: its first token and its length; `share` is its fraction of the row, `start` its beginning,
    both from 0 to 1."""

    key: str
    first: int
    length: int
    start: float
    share: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """A row of a batch: `length` tokens; `used` of them are not padding."""

    length: int
    used: int
    num_learnt: int
    segments: tuple[PackSegment, ...]
    tokens: tuple[ShownToken, ...]
    cu_seqlens: tuple[int, ...]

    @property
    def waste(self) -> float:
        """The share of the row that is padding."""
        return 1 - self.used / max(1, self.length)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchContents:
    """A batch: its sequences, if it has tokens, and descriptions of all its fields."""

    kind: str
    keys: tuple[str, ...]
    rows: tuple[BatchRow, ...]
    fields: tuple[tuple[str, str], ...]


def fields_of(batch: Any) -> Mapping[str, Any]:
    """The fields of a batch: a dict, or an object with attributes."""
    if isinstance(batch, Mapping):
        return batch
    if dataclasses.is_dataclass(batch):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return dict(vars(batch)) if hasattr(batch, "__dict__") else {"batch": batch}


def contents(batch: Any, tokenizer: Any = None) -> BatchContents:
    """The contents of a batch; `tokenizer` (of transformers; None: show numbers) decodes its tokens."""
    fields = fields_of(batch)
    keys = fields.get("__key__", fields.get("__keys__", ()))
    names = [keys] if isinstance(keys, str) else [str(key) for key in keys or ()]
    shown = tuple((name, text_of(facts_of(value))) for name, value in fields.items() if not name.startswith("__"))
    return BatchContents(
        kind=type(batch).__name__,
        keys=tuple(key for name in names for key in name.split(",")),
        rows=tuple(_rows(fields, names, tokenizer)),
        fields=shown,
    )


def _rows(fields: Mapping[str, Any], names: Sequence[str], tokenizer: Any) -> list[BatchRow]:
    tokens = next((fields[name] for name in _TOKENS if isinstance(fields.get(name), Tensor)), None)
    if tokens is None:
        return []
    tokens = tokens if tokens.ndim > 1 else tokens[None]
    mask = _like(fields.get("loss_mask"), tokens)
    positions = _like(fields.get("position_ids"), tokens)
    bounds = _bounds(fields, tokens)
    texts = TokenTexts(tokenizer)
    rows = []
    for number, row in enumerate(tokens):
        own = names[number].split(",") if len(names) == len(tokens) else list(names)
        learnt = [False] * len(row) if mask is None else [False, *(mask[number][:-1] > 0).tolist()]
        at = list(range(len(row))) if positions is None else positions[number].tolist()
        shown = row[:MAX_SHOWN_TOKENS].tolist()
        rows.append(
            BatchRow(
                length=len(row),
                used=bounds[number][-1],
                num_learnt=sum(learnt) if mask is None else int((mask[number] > 0).sum()),
                segments=tuple(_segments(bounds[number], own, len(row))),
                tokens=tuple(ShownToken(texts[token], token, at[n], learnt[n]) for n, token in enumerate(shown)),
                cu_seqlens=tuple(bounds[number]),
            )
        )
    return rows


def _like(value: Any, tokens: Tensor) -> Tensor | None:
    """The tensor with one number for each token; of mRoPE's three positions the first; None for any other value."""
    if not isinstance(value, Tensor):
        return None
    value = value if value.ndim > 1 else value[None]
    while value.ndim > 2:
        value = value[:, 0] if value.shape[0] == tokens.shape[0] else value[0]
    return value if value.shape == tokens.shape else None


def _bounds(fields: Mapping[str, Any], tokens: Tensor) -> list[list[int]]:
    """The first token of each sample of each row, and the end of the last: from `cu_seqlens`, else from `lengths` or an
    attention mask, else the whole row."""
    length, found = tokens.shape[1], fields.get("cu_seqlens")
    if isinstance(found, Tensor) and found.numel():
        rows = found if found.ndim > 1 else found[None]
        if len(rows) == len(tokens):
            return [sorted({min(length, int(bound)) for bound in row if bound >= 0} | {0}) for row in rows]
    mask = fields.get("attention_mask")
    if isinstance(mask, Tensor) and mask.shape == tokens.shape:
        return [[0, int(row.sum())] for row in mask]
    return [[0, length] for _ in tokens]


def _segments(bounds: Sequence[int], keys: Sequence[str], length: int) -> list[PackSegment]:
    found = []
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        key = keys[number] if number < len(keys) else f"sample {number}"
        found.append(PackSegment(key, first, end - first, first / length, (end - first) / length))
    return found


class TokenTexts(dict[int, str]):
    """The text of each token, decoded on demand."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> str:
        decode = getattr(self._tokenizer, "decode", None)
        text = str(token)
        if decode is not None and token >= 0:
            text = str(decode([token]))
        self[token] = text
        return text


def tokenizer_of(encoder: Any) -> Any:
    """The tokenizer of a task encoder; None if it has none."""
    return getattr(encoder, "tokenizer", None)


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessedPicture:
    """A picture of a batch: `field` is its location; `pixels` are the processor's, (1 or 3, height, width)."""

    field: str
    pixels: Tensor
    processor: Any

    @property
    def width(self) -> int:
        """In pixels."""
        return self.pixels.shape[2]

    @property
    def height(self) -> int:
        """In pixels."""
        return self.pixels.shape[1]

    @property
    def is_exact(self) -> bool:
        """Whether its pixels are de-normalised, not stretched."""
        return self._as_bytes()[1]

    @property
    def image(self) -> Image.Image:
        """The picture."""
        array = self._as_bytes()[0].round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
        return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)

    @property
    def png(self) -> bytes:
        """The picture as a PNG file."""
        file = io.BytesIO()
        self.image.save(file, "PNG")
        return file.getvalue()

    def _as_bytes(self) -> tuple[Tensor, bool]:
        """(pixels from 0 to 255, whether they are exact)."""
        pixels = self.pixels.detach().to("cpu")
        if pixels.dtype == torch.uint8:
            return pixels, True
        pixels = pixels.to(torch.float32)
        mean, deviation = (getattr(self.processor, name, None) for name in ("image_mean", "image_std"))
        if mean is not None and deviation is not None and len(mean) == len(pixels):
            pixels = pixels * torch.tensor(deviation)[:, None, None] + torch.tensor(mean)[:, None, None]
            return pixels * 255, True
        low, high = float(pixels.min()), float(pixels.max())
        if low >= 0 and high <= 1:
            return pixels * 255, True
        return (pixels - low) / max(high - low, 1e-9) * 255, False


def pictures_of(batch: Any, encoder: Any) -> list[ProcessedPicture]:
    """The first pictures of a batch that `encoder` made."""
    fields = fields_of(batch)
    if isinstance(media := fields.get("media"), Mapping):
        fields = {**fields, "media": looked_up(media)}
    return list(itertools.islice(_pictures(fields, _processor_of(encoder)), MAX_PICTURES))


def _processor_of(encoder: Any) -> Any:
    """The image processor of a task encoder, or of its model family; None if it has none."""
    owners = (encoder, getattr(encoder, "family", None))
    return next((found for owner in owners if (found := getattr(owner, "image_processor", None)) is not None), None)


def _pictures(fields: Mapping[str, Any], processor: Any) -> Iterator[ProcessedPicture]:
    flat = _flat(fields)
    for pixels, grid in _PATCHES:
        if isinstance(flat.get(pixels), Tensor) and isinstance(flat.get(grid), Tensor) and flat[pixels].ndim == 2:
            for image in _from_patches(flat[pixels], flat[grid], processor):
                yield ProcessedPicture(pixels, image, processor)
    for name, value in flat.items():
        if _is_picture(value):
            for image in value.reshape(-1, *value.shape[-3:]):
                if image.any():  # padding tiles are zeros
                    yield ProcessedPicture(name, image, processor)


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, and those of nested mappings, lists and objects: `media`, `visual_inputs`."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            flat.update(value)
        elif isinstance(value, (list, tuple)):
            flat.update({f"{name}[{number}]": one for number, one in enumerate(value)})
        elif not isinstance(value, (Tensor, str, bytes)) and hasattr(value, "__dict__") and not name.startswith("__"):
            flat.update(vars(value))
        else:
            flat[name] = value
    return flat


def _from_patches(patches: Tensor, grids: Tensor, processor: Any) -> Iterator[Tensor]:
    """Pictures (3, H, W), one per time step of a video, from patches (N, 3 · frames · patch²) in the order of merged
    tokens. Source: the image processor of Qwen2-VL in transformers."""
    names = ("patch_size", "merge_size", "temporal_patch_size")
    sizes = [getattr(processor, name, None) for name in names]
    if None in sizes:
        return
    patch, merge, frames = (int(size) for size in sizes if size is not None)
    first = 0
    for steps, rows, columns in grids.tolist():
        own = patches[first : first + steps * rows * columns]
        first += steps * rows * columns
        cut = own.reshape(steps, rows // merge, columns // merge, merge, merge, -1, frames, patch, patch)
        whole = cut.permute(0, 6, 5, 1, 3, 7, 2, 4, 8).reshape(steps, frames, -1, rows * patch, columns * patch)
        yield from whole[:, 0]


def _is_picture(value: Any) -> bool:
    """Whether a value is one or more pictures: bytes or floats (..., 1 or 3, height, width)."""
    if not isinstance(value, Tensor) or value.ndim < 3 or value.shape[-3] not in (1, 3) or min(value.shape) == 0:
        return False
    return value.dtype == torch.uint8 or value.is_floating_point()  # the three positions of mRoPE are integers
