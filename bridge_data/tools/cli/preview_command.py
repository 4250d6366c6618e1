"""`bridge-data preview`: the first samples, as stored in shards and as instances of their class."""

import dataclasses
import io
import json
import math
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
    echo_json,
    json_option,
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
@json_option
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
    as_json: bool,
) -> None:
    """Show samples of PATH: keys, parts, sizes, texts, what kind of images they are, and the fields they become.

    PATH is a prepared data set, a metadataset or a JSONL file.
    """
    if count < 1 or start < 0:
        raise ConfigError(f"--count {count} --start {start}: expected a count of at least 1 and a start of at least 0")
    if html is not None and as_json:
        raise ConfigError("--html writes a page, --json a document: give one of them")
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
        _preview_key(path, key, opened, as_json=as_json)
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
    samples = []
    for shown in found.sources:
        if not as_json and (len(found.sources) > 1 or (shown.source is not None and shown.source.aux)):
            click.echo(click.style(_heading(shown), underline=True))
        reader, loader = reader_of(shown.records), _loader(shown)
        for index in range(start, min(start + count, shown.num_samples)):
            sample = _sample(index, shown, reader, loader)
            if as_json:
                samples.append(sample)
            else:
                click.echo("\n".join(_sample_lines(sample)))
    if as_json:
        _echo_samples(path, samples)


def _preview_key(path: Path, key: str, opened: Sequence[SplitCatalog], *, as_json: bool) -> None:
    """Show one sample; once if it is in several split parts, or in a blend more than once."""
    for notice in dict.fromkeys(catalog.notice for catalog in opened if catalog.notice):
        note(notice)
    several = [source for catalog in opened for source in catalog.sources]
    place = find_sample([shown.records for shown in several], key)[0]
    shown = several[place.records]
    sample = _sample(place.index, shown, reader_of(shown.records), _loader(shown))
    if as_json:
        _echo_samples(path, [sample])
        return
    if len({str(other.records.root) for other in several}) > 1:
        click.echo(click.style(_heading(shown), underline=True))
    click.echo("\n".join(_sample_lines(sample)))


def _echo_samples(path: Path, samples: Sequence[dict[str, Any]]) -> None:
    echo_json({"path": str(path), "samples": _for_json(samples)})


def _for_json(value: Any) -> Any:
    """`value` with texts for what JSON cannot represent, such as NaN."""
    if isinstance(value, Mapping):
        return {str(key): _for_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_for_json(item) for item in value]
    if value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _loader(shown: CatalogSource) -> Loader | None:
    return None if shown.source is None else open_loader(shown.source, SampleDecoder(image_decode="torchrgb8"))


def _heading(shown: CatalogSource) -> str:
    if shown.source is None:
        return str(shown.records.root)
    aux = f", aux {', '.join(shown.source.aux)}" if shown.source.aux else ""
    return f"{shown.source.path}{aux}"


def _sample(index: int, shown: CatalogSource, reader: RecordReader, loader: Loader | None) -> dict[str, Any]:
    """A sample as plain data: its key, its stored parts (of a join, those of each member), and what they become."""
    place = {"path": shown.path, "split_part": shown.records.split_part, "index": index}
    try:
        raw = reader.read(index)
    except ForgottenSampleError:
        return {**place, "key": reader.read(index, ()).full_key, "is_forgotten": True}
    sample = {**place, "key": raw.full_key, "is_forgotten": False}
    if isinstance(raw, JoinedRawSample):
        sample["members"] = [
            None if member is None else {"key": member.full_key, "parts": _parts(member)} for member in raw.members
        ]
    else:
        sample["parts"] = _parts(raw)
    made = None if shown.source is None or loader is None else _made(index, shown.source, loader)
    return {**sample, "made": made}


def _parts(raw: RawSample) -> dict[str, Any]:
    return {part: {"num_bytes": len(bytes_of(data)), **_part_facts(part, data)} for part, data in raw.parts.items()}


def _made(index: int, source: Source, loader: Loader) -> dict[str, Any]:
    """The sample made from the parts."""
    try:
        sample = loader.build(loader.read(index), index)
    except BridgeDataError as error:
        return {"error": str(error)}
    made = {"class": type(sample).__name__, "subflavors": dict(source.subflavors), "is_crude": False}
    if isinstance(sample, CrudeSample):
        return {**made, "is_crude": True}
    fields = [field.name for field in dataclasses.fields(sample) if not field.name.startswith("__")]
    return {**made, "fields": {name: _facts(getattr(sample, name)) for name in fields}}


def _sample_lines(sample: dict[str, Any]) -> Iterator[str]:
    forgotten = "  (forgotten: no run sees it)" if sample["is_forgotten"] else ""
    yield click.style(f"{sample['split_part']} {sample['index']}  {sample['key']}{forgotten}", bold=True)
    for member in sample.get("members", ()):
        yield f"  {'no match' if member is None else member['key']}"
        yield from _part_lines({} if member is None else member["parts"])
    yield from _part_lines(sample.get("parts", {}))
    if (made := sample.get("made")) is not None:
        yield from _made_lines(made)
    yield ""


def _part_lines(parts: dict[str, Any]) -> Iterator[str]:
    width = max(map(len, parts), default=0)
    for part, facts in parts.items():
        yield from _lines(f"  {part:<{width}}  {sized(facts['num_bytes']):>8}  ", _text_of(facts))


def _made_lines(made: dict[str, Any]) -> Iterator[str]:
    if "error" in made:
        yield from _lines("  → ", f"cannot be made: {made['error']}")
        return
    subflavors = f", subflavors {shown_json(made['subflavors'])}" if made["subflavors"] else ""
    yield f"  → {'crude, for a cooker' if made['is_crude'] else made['class']}{subflavors}"
    fields = made.get("fields", {})
    width = max(map(len, fields), default=0)
    for name, facts in fields.items():
        yield from _lines(f"    {name:<{width}}  ", _text_of(facts))


def _lines(head: str, text: str) -> Iterator[str]:
    """`text` after `head`, further lines below the first."""
    first, *more = text.splitlines() or [""]
    yield head + first
    yield from (" " * len(head) + line for line in more)


def describe(part: str, data: Any) -> str:
    """A short description of a part's content, by the last piece of its name, or of a value stored without encoding."""
    return _text_of(_part_facts(part, data))


def describe_value(value: Any) -> str:
    """A short description of `value`: the content if it is short, the shape and range of arrays."""
    return _text_of(_facts(value))


_NUM_FIRST_BYTES = 16


def _part_facts(part: str, data: Any) -> dict[str, Any]:
    """The `type` of a part's content and what that has, such as a size; or an `error`."""
    if not isinstance(data, bytes):
        return _facts(data)
    kind = part.rpartition(".")[2].lower()
    if kind == "json":
        try:
            return {"type": "json", "value": parse_json(data)}
        except ValueError as error:
            return {"type": "json", "error": f"not JSON: {error}"}
    if kind == "jsonl" or kind in TEXT_PARTS:
        try:
            return {"type": "text", "text": data.decode()}
        except UnicodeDecodeError as error:
            return {"type": "text", "error": f"not UTF-8: {error}"}
    if kind in IMAGE_EXTENSIONS:
        return _image(data)
    if kind in AV_EXTENSIONS:
        return _clip(AVDecoder(data))
    return {**_facts(data), "type": "unknown"}


def _image(data: bytes) -> dict[str, Any]:
    """Size and mode, from the header; no pixel is decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        return {"type": "image", "error": f"not a readable image: {error}"}
    return {"type": "image", "format": image.format, "width": image.width, "height": image.height, "mode": image.mode}


def _clip(value: AVDecoder) -> dict[str, Any]:
    try:
        return {"type": "clip", **dataclasses.asdict(value.get_metadata())}
    except SampleError as error:
        return {"type": "clip", "error": f"not a readable clip: {error}"}


def _facts(value: Any) -> dict[str, Any]:
    """The `type` of a value and what that has; of what is long or cannot be plain data, some."""
    if isinstance(value, str):
        return {"type": "text", "text": value}
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return _array(value)
    if isinstance(value, Image.Image):
        return {"type": "image", "format": None, "width": value.width, "height": value.height, "mode": value.mode}
    if isinstance(value, AVDecoder):
        return _clip(value)
    if isinstance(value, bytes):
        return {"type": "bytes", "num_bytes": len(value), "first_bytes": value[:_NUM_FIRST_BYTES].hex()}
    if isinstance(value, (list, tuple)) and not all(isinstance(item, (str, int, float, bool)) for item in value):
        return {"type": "list", "num_items": len(value), "items": [_facts(item) for item in value[:MAX_ITEMS]]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"type": "object", "class": type(value).__name__, "fields": _facts(fields)}
    if isinstance(value, Mapping) and not _is_plain(value):
        return {"type": "dict", "items": {key: _facts(item) for key, item in value.items()}}
    if isinstance(value, (Mapping, list, tuple)):
        return {"type": "dict" if isinstance(value, Mapping) else "list", "value": value}
    if value is None or isinstance(value, (bool, int, float)):
        return {"type": "scalar", "value": value}
    return {"type": "object", "class": type(value).__name__, "text": repr(value)}


def _array(value: torch.Tensor | np.ndarray[Any, Any]) -> dict[str, Any]:
    facts = {"type": "array", "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
    array = value.numpy() if isinstance(value, torch.Tensor) else value
    if not array.size:
        return facts
    if array.size <= MAX_ITEMS:
        return {**facts, "values": array.tolist()}
    if array.dtype.kind not in "biuf":
        return facts
    return {**facts, "min": array.min().item(), "max": array.max().item()}


def _text_of(facts: dict[str, Any]) -> str:
    """The text that shows the facts of a part or a value."""
    match facts:
        case {"error": error}:
            return str(error)
        case {"type": "text", "text": text}:
            return shown_text(text)
        case {"type": "json", "value": value}:
            return clipped(shown_json(value))
        case {"type": "image", "width": width, "height": height, "mode": mode}:
            return f"{facts['format'] or 'Pillow image'} {width}×{height} {mode}"
        case {"type": "clip"}:
            return _clip_text(facts)
        case {"type": "array"}:
            return _array_text(facts)
        case {"type": "bytes" | "unknown" as kind, "num_bytes": num_bytes, "first_bytes": first}:
            if not num_bytes:
                return "empty" if kind == "unknown" else "no bytes"
            shown = f"{bytes.fromhex(first).hex(' ')}{' …' if num_bytes > _NUM_FIRST_BYTES else ''}"
            return shown if kind == "unknown" else f"{num_bytes:,} bytes: {shown}"
        case {"type": "list", "items": items, "num_items": num_items}:
            lines = [f"{number}: {_text_of(item)}" for number, item in enumerate(items)]
            more = num_items - len(items)
            return "\n".join([*lines, f"… {more} more"] if more > 0 else lines)
        case {"type": "dict", "items": items}:
            return "\n".join(f"{key}: {_text_of(item)}" for key, item in items.items()) or "{}"
        case {"type": "object", "class": name, "fields": fields}:
            return f"{name} {_text_of(fields)}"
        case {"type": "object", "text": text}:
            return clipped(text)
        case {"type": "scalar", "value": value}:
            return repr(value)
    return shown_json(facts["value"])


def _array_text(facts: dict[str, Any]) -> str:
    text = f"{facts['dtype']} {'×'.join(map(str, facts['shape'])) or 'scalar'}"
    if "values" in facts:
        return f"{text}: {facts['values']}"
    return f"{text}, {facts['min']:.4g} … {facts['max']:.4g}" if "min" in facts else text


def _clip_text(facts: dict[str, Any]) -> str:
    pieces = []
    if facts["video_width"]:
        frames = f"{facts['video_num_frames']} frames" if facts["video_num_frames"] else "video"
        pieces.append(f"{frames} {facts['video_width']}×{facts['video_height']}{_rate(facts['video_fps'], 'fps')}")
    if facts["audio_sample_rate"]:
        channels = counted(facts["audio_channels"], "channel")
        pieces.append(f"audio {channels}{_rate(facts['audio_sample_rate'], 'Hz')}")
    seconds = max(facts["video_duration"] or 0, facts["audio_duration"] or 0)
    return f"{'; '.join(pieces) or 'a clip without streams'}; {seconds:.2f} s"


def _rate(number: float | None, unit: str) -> str:
    return f", {number:g} {unit}" if number else ""


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
