"""`bridge-data info --samples`: samples, as stored in shards and as instances of their class."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click

from bridge_data.cli.terminal import (
    CRUDE,
    echo_json,
    note,
    sized,
)
from bridge_data.data import RawSample, RecordReader
from bridge_data.data.blocks import bytes_of
from bridge_data.data.records import split_part_of
from bridge_data.data.withheld import reader_of
from bridge_data.decode import SampleDecoder, SourceReader, open_source_reader
from bridge_data.errors import BridgeDataError, ConfigError, ForgottenSampleError, counted
from bridge_data.limits import allow_pixels
from bridge_data.plan import Source, opening
from bridge_data.plugins.view.catalog import CatalogSource, SampleAddress, SplitCatalog
from bridge_data.plugins.view.sample_facts import facts_of, part_facts, shown_json, text_of
from bridge_data.runs.named_samples import find_sample
from bridge_data.samples import CrudeSample


def show_samples(
    path: Path, samples: range, key: str | None, html: Path | None, options: dict[str, Any], *, as_json: bool
) -> None:
    """Print the samples of these numbers, of each data set; or the one with this key, of which `samples` says nothing;
    or write them to the file `html`. `options` has `split_parts` (empty: all), and options of `load_dataset`.

    Raises:
        ConfigError: if there are none.
    """
    options = {name: value for name, value in options.items() if value is not None}
    allow_pixels(options["limits"])
    parts = options.pop("split_parts") or opening.split_parts(path, options["limits"])
    part, chosen = _with_key(path, key, parts, options) if key is not None else _numbered(path, parts, options, samples)
    if part.notice:
        note(part.notice)
    if html is not None:
        addresses = [SampleAddress(shown.number, index) for shown, indices in chosen for index in indices]
        from bridge_data.plugins.view.contents import write_sheet  # imports what a terminal does not need

        write_sheet(html, str(path), part, addresses)
        click.echo(f"{html}: {counted(len(addresses), 'sample')} of {path}")
        return
    found = []
    for shown, indices in chosen:
        if not as_json and (len(part.sources) > 1 or (shown.source is not None and shown.source.aux)):
            click.echo(click.style(_heading(shown), underline=True))
        reader, source_reader = reader_of(shown.records), _source_reader(shown)
        for index in indices:
            sample = _sample(index, shown, reader, source_reader)
            if as_json:
                found.append(sample)
            else:
                click.echo("\n".join(_sample_lines(sample)))
    if as_json:
        echo_json({"path": str(path), "samples": _for_json(found)})


_Chosen: TypeAlias = tuple[SplitCatalog, list[tuple[CatalogSource, range]]]
"""A split part, and samples of its sources."""


def _numbered(path: Path, parts: Sequence[str], trust: dict[str, Any], samples: range) -> _Chosen:
    """The samples of these numbers, of the first part that has any."""
    found = next(filter(None, (SplitCatalog.open(path, part, trust) for part in parts)), None)
    if found is None:
        raise ConfigError(f"{path}: no samples in {' or '.join(parts) or 'the split'}")
    if len(found.sources) == 1 and samples.start >= found.num_samples:
        raise ConfigError(f"--samples {samples.start}..: {found.name} has {counted(found.num_samples, 'sample')}")
    return found, [(shown, samples[: max(0, shown.num_samples - samples.start)]) for shown in found.sources]


def _with_key(path: Path, key: str, parts: Sequence[str], trust: dict[str, Any]) -> _Chosen:
    """One sample; once if it is in several parts, or in a blend more than once."""
    opened = [catalog for catalog in (SplitCatalog.open(path, part, trust) for part in parts) if catalog is not None]
    several = [(catalog, source) for catalog in opened for source in catalog.sources]
    place = find_sample([shown.records for _, shown in several], key)[0]
    catalog, shown = several[place.records]
    return catalog, [(shown, range(place.index, place.index + 1))]


def _for_json(value: Any) -> Any:
    """`value` with texts for what JSON cannot represent, such as NaN."""
    if isinstance(value, Mapping):
        return {str(key): _for_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_for_json(item) for item in value]
    if value is None or isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _source_reader(shown: CatalogSource) -> SourceReader | None:
    return None if shown.source is None else open_source_reader(shown.source, SampleDecoder(image_decode="torchrgb8"))


def _heading(shown: CatalogSource) -> str:
    if shown.source is None:
        return str(shown.records.root)
    aux = f", aux {', '.join(shown.source.aux)}" if shown.source.aux else ""
    return f"{shown.source.path}{aux}"


def _sample(
    index: int, shown: CatalogSource, reader: RecordReader, source_reader: SourceReader | None
) -> dict[str, Any]:
    """A sample as plain data: its key, its stored parts (of a join, those of each member), and what they become."""
    place = {"path": shown.path, "split_part": split_part_of(shown.records), "index": index}
    try:
        raw = reader.read(index)
    except ForgottenSampleError:
        return {**place, "key": reader.read(index, ()).full_key, "is_forgotten": True}
    sample = {**place, "key": raw.full_key, "is_forgotten": False}
    if raw.made_of != (raw,):
        sample["members"] = [
            None if member is None else {"key": member.full_key, "parts": _parts(member)} for member in raw.made_of
        ]
    else:
        sample["parts"] = _parts(raw)
    made = None if shown.source is None or source_reader is None else _made(index, shown.source, source_reader)
    return {**sample, "made": made}


def _parts(raw: RawSample) -> dict[str, Any]:
    return {part: {"num_bytes": len(bytes_of(data)), **part_facts(part, data)} for part, data in raw.parts.items()}


def _made(index: int, source: Source, source_reader: SourceReader) -> dict[str, Any]:
    """The sample made from the parts."""
    try:
        sample = source_reader.build(source_reader.read(index), index)
    except BridgeDataError as error:
        return {"error": str(error)}
    made = {"class": type(sample).__name__, "subflavors": dict(source.subflavors), "is_crude": False}
    if isinstance(sample, CrudeSample):
        return {**made, "is_crude": True}
    fields = [field.name for field in dataclasses.fields(sample) if not field.name.startswith("__")]
    return {**made, "fields": {name: facts_of(getattr(sample, name)) for name in fields}}


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
        yield from _lines(f"  {part:<{width}}  {sized(facts['num_bytes']):>8}  ", text_of(facts))


def _made_lines(made: dict[str, Any]) -> Iterator[str]:
    if "error" in made:
        yield from _lines("  → ", f"cannot be made: {made['error']}")
        return
    subflavors = f", subflavors {shown_json(made['subflavors'])}" if made["subflavors"] else ""
    yield f"  → {CRUDE if made['is_crude'] else made['class']}{subflavors}"
    fields = made.get("fields", {})
    width = max(map(len, fields), default=0)
    for name, facts in fields.items():
        yield from _lines(f"    {name:<{width}}  ", text_of(facts))


def _lines(head: str, text: str) -> Iterator[str]:
    """`text` after `head`, further lines below the first."""
    first, *more = text.splitlines() or [""]
    yield head + first
    yield from (" " * len(head) + line for line in more)
