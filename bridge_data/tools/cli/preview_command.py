"""`bridge-data preview`: the first samples, as stored in shards and as instances of their class."""

import dataclasses
import io
import json
import shutil
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from PIL import Image

from bridge_data.decode import Loader, SampleDecoder, open_loader
from bridge_data.decode.av import AV_EXTENSIONS, AVDecoder
from bridge_data.decode.image import IMAGE_EXTENSIONS
from bridge_data.errors import BridgeDataError, ConfigError, ForgottenSampleError, SampleError
from bridge_data.limits import Limits, allow_pixels
from bridge_data.plan import Source, opening
from bridge_data.samples import CrudeSample
from bridge_data.shards import RawSample, RecordReader
from bridge_data.shards.joined_records import JoinedRawSample
from bridge_data.shards.plain_data import parse_json
from bridge_data.shards.records import bytes_of, reader_of
from bridge_data.shards.sample_lookup import find_sample
from bridge_data.tools.cli.terminal import (
    ON_DISK,
    counted,
    limits_option,
    note,
    sized,
    split_options,
    trust_options,
    where_options,
)
from bridge_data.tools.view.catalog import CatalogSource, SplitCatalog, open_split

TEXT_PARTS = frozenset({"txt", "text", "transcript", "cls", "cls2", "index", "csv", "md", "yaml", "yml", "html"})

DEFAULT_COUNT = 3

MAX_LINES = 12

MAX_CHARACTERS = 400

MAX_ITEMS = 5


@click.command()
@click.argument("path", type=ON_DISK)
@click.option("--count", "-n", default=DEFAULT_COUNT, show_default=True, help="How many samples, of each data set.")
@click.option("--start", default=0, show_default=True, help="The number of the first.")
@click.option("--key", help="Show this sample alone: its `__key__`, SHARD:KEY, or KEY; of a JSONL file its number.")
@split_options("The part of the split; of several, such as train,val, the first that has samples.  [default: of all]")
@click.option("--html", type=click.Path(path_type=Path), help="Write them to this file instead, as a single HTML page.")
@where_options
@trust_options
@limits_option
def preview(
    path: Path,
    count: int,
    start: int,
    key: str | None,
    html: Path | None,
    split_parts: tuple[str, ...],
    dataset_config: str | None,
    where: str | None,
    columns: str | None,
    trusted_module: tuple[str, ...],
    trust_dataset_code: bool,
    limits: Limits,
) -> None:
    """Show samples of PATH: keys, parts, sizes, texts, what kind of images they are, and the fields they become.

    PATH is a prepared data set, a metadataset or a JSONL file.
    """
    if count < 1 or start < 0:
        raise ConfigError(f"--count {count} --start {start}: expected a count of at least 1 and a start of at least 0")
    trust: dict[str, Any] = {
        "trusted_modules": trusted_module,
        "trust_dataset_code": trust_dataset_code,
        "limits": limits,
        "where": where,
        "columns": columns,
    }
    if dataset_config is not None:
        trust["dataset_config"] = dataset_config
    allow_pixels(limits)
    parts = split_parts or opening.split_parts(path, limits)
    if key is not None:
        if start or count != DEFAULT_COUNT or html is not None:
            raise ConfigError("--key shows one sample: give it without --start, --count and --html")
        opened = [catalog for catalog in (open_split(path, part, trust) for part in parts) if catalog is not None]
        _preview_key(key, opened)
        return
    found = next(filter(None, (open_split(path, part, trust) for part in parts)), None)
    if found is None:
        raise ConfigError(f"{path}: no samples in {' or '.join(parts) or 'the split'}")
    if found.notice:
        note(found.notice)
    if len(found.sources) == 1 and start >= found.num_samples:
        raise ConfigError(f"--start {start}: {found.name} has {found.num_samples} samples")
    if html is not None:
        from bridge_data.tools.view.sample_cards import write_sheet

        click.echo(f"{html}: {counted(write_sheet(html, str(path), found, start, count), 'sample')} of {path}")
        return
    for shown in found.sources:
        if len(found.sources) > 1 or (shown.source is not None and shown.source.aux):
            click.echo(click.style(_heading(shown), underline=True))
        reader, loader = reader_of(shown.records), _loader(shown)
        for index in range(start, min(start + count, shown.num_samples)):
            click.echo("\n".join(_sample(index, shown, reader, loader)))


def _preview_key(key: str, opened: Sequence[SplitCatalog]) -> None:
    """Show one sample; once if it is in several split parts, or in a blend more than once."""
    for notice in dict.fromkeys(catalog.notice for catalog in opened if catalog.notice):
        note(notice)
    several = [source for catalog in opened for source in catalog.sources]
    place = find_sample([shown.records for shown in several], key)[0]
    shown = several[place.records]
    if len({str(other.records.root) for other in several}) > 1:
        click.echo(click.style(_heading(shown), underline=True))
    click.echo("\n".join(_sample(place.index, shown, reader_of(shown.records), _loader(shown))))


def _loader(shown: CatalogSource) -> Loader | None:
    return None if shown.source is None else open_loader(shown.source, SampleDecoder(image_decode="torchrgb8"))


def _heading(shown: CatalogSource) -> str:
    if shown.source is None:
        return str(shown.records.root)
    aux = f", aux {', '.join(shown.source.aux)}" if shown.source.aux else ""
    return f"{shown.source.path}{aux}"


def _sample(index: int, shown: CatalogSource, reader: RecordReader, loader: Loader | None) -> Iterator[str]:
    try:
        raw = reader.read(index)
    except ForgottenSampleError:
        key = reader.read(index, ()).full_key
        yield click.style(f"{shown.records.split_part} {index}  {key}  (forgotten: no run sees it)", bold=True)
        yield ""
        return
    yield click.style(f"{shown.records.split_part} {index}  {raw.full_key}", bold=True)
    yield from _parts(raw)
    if shown.source is not None and loader is not None:
        yield from _made(index, shown.source, loader)
    yield ""


def _parts(raw: RawSample) -> Iterator[str]:
    """The stored parts; of a join, those of each member."""
    for member in raw.members if isinstance(raw, JoinedRawSample) else (raw,):
        if isinstance(raw, JoinedRawSample):
            yield f"  {'no match' if member is None else member.full_key}"
        if member is None:
            continue
        width = max(map(len, member.parts), default=0)
        for part, data in member.parts.items():
            yield from _lines(f"  {part:<{width}}  {sized(len(bytes_of(data))):>8}  ", describe(part, data))


def _made(index: int, source: Source, loader: Loader) -> Iterator[str]:
    """The sample made from the parts."""
    try:
        sample = loader.build(loader.read(index), index)
    except BridgeDataError as error:
        yield from _lines("  → ", f"cannot be made: {error}")
        return
    subflavors = f", subflavors {shown_json(dict(source.subflavors))}" if source.subflavors else ""
    if isinstance(sample, CrudeSample):
        yield f"  → crude, for a cooker{subflavors}"
        return
    yield f"  → {type(sample).__name__}{subflavors}"
    fields = [field.name for field in dataclasses.fields(sample) if not field.name.startswith("__")]
    width = max(map(len, fields), default=0)
    for name in fields:
        yield from _lines(f"    {name:<{width}}  ", describe_value(getattr(sample, name)))


def _lines(head: str, text: str) -> Iterator[str]:
    """`text` after `head`, further lines below the first."""
    first, *more = text.splitlines() or [""]
    yield head + first
    yield from (" " * len(head) + line for line in more)


def describe(part: str, data: Any) -> str:
    """A short description of a part's content, by the last piece of its name, or of a value stored without encoding."""
    if not isinstance(data, bytes):
        return describe_value(data)
    kind = part.rpartition(".")[2].lower()
    if kind == "json":
        return _json(data)
    if kind == "jsonl" or kind in TEXT_PARTS:
        return _text(data)
    if kind in IMAGE_EXTENSIONS:
        return _image(data)
    if kind in AV_EXTENSIONS:
        return describe_value(AVDecoder(data))
    return f"{data[:16].hex(' ')}{' …' if len(data) > 16 else ''}" if data else "empty"


def _json(data: bytes) -> str:
    try:
        return clipped(shown_json(parse_json(data)))
    except ValueError as error:
        return f"not JSON: {error}"


def _text(data: bytes) -> str:
    try:
        return shown_text(data.decode())
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error}"


def _image(data: bytes) -> str:
    """Size and mode, from the header; no pixel is decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        return f"not a readable image: {error}"
    return f"{image.format} {image.width}×{image.height} {image.mode}"


def describe_value(value: Any) -> str:
    """A short description of `value`: the content if it is short, the shape and range of arrays."""
    if isinstance(value, str):
        return shown_text(value)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return _array(value)
    if isinstance(value, Image.Image):
        return f"Pillow image {value.width}×{value.height} {value.mode}"
    if isinstance(value, AVDecoder):
        return _clip(value)
    if isinstance(value, bytes):
        return f"{len(value):,} bytes: {value[:16].hex(' ')}{' …' if len(value) > 16 else ''}" if value else "no bytes"
    if isinstance(value, (list, tuple)) and not all(isinstance(item, (str, int, float, bool)) for item in value):
        return _items(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return f"{type(value).__name__} {describe_value(fields)}"
    if isinstance(value, Mapping) and not _is_plain(value):
        return "\n".join(f"{key}: {describe_value(item)}" for key, item in value.items()) or "{}"
    if isinstance(value, (Mapping, list, tuple)):
        return shown_json(value)
    return clipped(repr(value))


def shown_text(text: str) -> str:
    """A text in lines that fit the terminal; only the beginning if it is long."""
    printable = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text[: MAX_CHARACTERS + 1])
    width = max(40, shutil.get_terminal_size().columns - 24)
    lines = [piece for line in printable[:MAX_CHARACTERS].splitlines() for piece in textwrap.wrap(line, width) or [""]]
    return clipped("\n".join(lines) + (" …" if len(text) > MAX_CHARACTERS else "")) or "empty"


def shown_json(value: Any) -> str:
    """A plain value as JSON, with long strings and lists cut."""
    short = _shortened(value)
    line = json.dumps(short, ensure_ascii=False)
    return line if len(line) <= 60 else clipped(json.dumps(short, indent=2, ensure_ascii=False))


def clipped(text: str) -> str:
    """The first lines of a text."""
    lines = text.splitlines()
    more = len(lines) - MAX_LINES
    return "\n".join([*lines[:MAX_LINES], f"… {more} more lines"] if more > 0 else lines)


def _shortened(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _shortened(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        rest = len(value) - MAX_ITEMS
        return [_shortened(item) for item in value[:MAX_ITEMS]] + ([f"… {rest} more"] if rest > 0 else [])
    if isinstance(value, str):
        return textwrap.shorten(value, 100, placeholder=" …") if len(value) > 100 else value
    return value


def _is_plain(value: Any) -> bool:
    """Whether JSON can represent it."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float, bool))


def _items(value: list[Any] | tuple[Any, ...]) -> str:
    """One line or more for each of the first items."""
    lines = [f"{number}: {describe_value(item)}" for number, item in enumerate(value[:MAX_ITEMS])]
    more = len(value) - MAX_ITEMS
    return "\n".join([*lines, f"… {more} more"] if more > 0 else lines)


def _array(value: torch.Tensor | np.ndarray[Any, Any]) -> str:
    shape = "×".join(map(str, value.shape)) or "scalar"
    kind = str(value.dtype).removeprefix("torch.")
    array = value.numpy() if isinstance(value, torch.Tensor) else value
    if not array.size:
        return f"{kind} {shape}"
    if array.size <= MAX_ITEMS:
        return f"{kind} {shape}: {array.tolist()}"
    if array.dtype.kind not in "biuf":
        return f"{kind} {shape}"
    return f"{kind} {shape}, {array.min():.4g} … {array.max():.4g}"


def _clip(value: AVDecoder) -> str:
    try:
        metadata = value.get_metadata()
    except SampleError as error:
        return f"not a readable clip: {error}"
    pieces = []
    if metadata.video_width:
        frames = f"{metadata.video_num_frames} frames" if metadata.video_num_frames else "video"
        pieces.append(f"{frames} {metadata.video_width}×{metadata.video_height}{_rate(metadata.video_fps, 'fps')}")
    if metadata.audio_sample_rate:
        channels = f"{metadata.audio_channels} channel{'' if metadata.audio_channels == 1 else 's'}"
        pieces.append(f"audio {channels}{_rate(metadata.audio_sample_rate, 'Hz')}")
    seconds = max(metadata.video_duration or 0, metadata.audio_duration or 0)
    return f"{'; '.join(pieces) or 'a clip without streams'}; {seconds:.2f} s"


def _rate(number: float | None, unit: str) -> str:
    return f", {number:g} {unit}" if number else ""
