"""`bridge-data preview`: what the first samples look like."""

import io
import json
import shutil
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

import click
from PIL import Image

from bridge_data.cli.layout import sized
from bridge_data.errors import ConfigError
from bridge_data.index.dataset import PreparedDataset
from bridge_data.index.reader import RawSample, ShardReader

TEXT_PARTS = frozenset({"txt", "text", "transcript", "cls", "cls2", "index", "csv", "md", "yaml", "yml", "html"})
IMAGE_PARTS = frozenset({"png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm"})

_MAX_LINES = 12
_MAX_CHARACTERS = 400
_MAX_ITEMS = 5


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--count", "-n", default=3, show_default=True, help="How many samples.")
@click.option("--start", default=0, show_default=True, help="The number of the first.")
@click.option("--split-part", help="The part of the split.  [default: the first that has samples]")
def preview(path: Path, count: int, start: int, split_part: str | None) -> None:
    """Show samples of the data set in the folder PATH: keys, parts, sizes, texts and what kind of images they are."""
    if count < 1 or start < 0:
        raise ConfigError(f"--count {count} --start {start}: expected a count of at least 1 and a start of at least 0")
    dataset = PreparedDataset.open(path)
    parts = [split_part] if split_part is not None else dataset.split_parts()
    sets = [dataset.split(part) for part in parts]
    shards = next((found for found in sets if found.num_samples), None)
    if shards is None:
        raise ConfigError(f"{path}: no samples in {' or '.join(parts) or 'the split'}")
    if start >= shards.num_samples:
        raise ConfigError(f"--start {start}: {shards.split_part} has {shards.num_samples} samples")
    reader = ShardReader(shards)
    for index in range(start, min(start + count, shards.num_samples)):
        click.echo("\n".join(_shown(reader.read(index), shards.split_part)))


def _shown(sample: RawSample, split_part: str) -> Iterator[str]:
    yield click.style(f"{split_part} {sample.index}  {sample.full_key}", bold=True)
    name_width = max(map(len, sample.parts))
    for part, data in sample.parts.items():
        head, *more = describe(part, data).splitlines() or [""]
        yield f"  {part:<{name_width}}  {sized(len(data)):>8}  {head}"
        yield from (" " * (name_width + 14) + line for line in more)
    yield ""


def describe(part: str, data: bytes) -> str:
    """A few words or lines on the content of a part, by the last piece of its name."""
    kind = part.rpartition(".")[2].lower()
    if kind == "json":
        return _json(data)
    if kind == "jsonl" or kind in TEXT_PARTS:
        return _text(data)
    if kind in IMAGE_PARTS:
        return _image(data)
    return f"{data[:16].hex(' ')}{' …' if len(data) > 16 else ''}" if data else "empty"


def _json(data: bytes) -> str:
    try:
        return _clipped(json.dumps(_shortened(json.loads(data)), indent=2, ensure_ascii=False))
    except ValueError as error:
        return f"not JSON: {error}"


def _shortened(value: object) -> object:
    """`value` with long strings and lists cut."""
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    if isinstance(value, list):
        rest = len(value) - _MAX_ITEMS
        return [_shortened(item) for item in value[:_MAX_ITEMS]] + ([f"… {rest} more"] if rest > 0 else [])
    if isinstance(value, str):
        return textwrap.shorten(value, 100, placeholder=" …") if len(value) > 100 else value
    return value


def _text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return f"not UTF-8: {error}"
    printable = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text[: _MAX_CHARACTERS + 1])
    width = max(40, shutil.get_terminal_size().columns - 24)
    lines = [piece for line in printable[:_MAX_CHARACTERS].splitlines() for piece in textwrap.wrap(line, width) or [""]]
    return _clipped("\n".join(lines) + (" …" if len(text) > _MAX_CHARACTERS else "")) or "empty"


def _clipped(text: str) -> str:
    lines = text.splitlines()
    more = len(lines) - _MAX_LINES
    return "\n".join([*lines[:_MAX_LINES], f"… {more} more lines"] if more > 0 else lines)


def _image(data: bytes) -> str:
    """Size and mode, from the header; no pixel is decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        return f"not a readable image: {error}"
    return f"{image.format} {image.width}×{image.height} {image.mode}"
