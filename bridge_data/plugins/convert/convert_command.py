"""`bridge-data convert`: turn data in other formats into a prepared data set, ready to load."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click

from bridge_data.cli.sample_types import parse_field_map
from bridge_data.cli.terminal import (
    CRUDE,
    ON_DISK,
    OUTPUT,
    executor_option,
    limits_option,
    note,
    progress_bar,
    progress_option,
    setting,
    table,
    where_options,
)
from bridge_data.data.prepared import PreparedDataset
from bridge_data.decode.image import Orientation
from bridge_data.encoders.fitting_class import FOR_DOCUMENTS
from bridge_data.errors import ConfigError, bridge_command, counted
from bridge_data.limits import Limits, allow_pixels
from bridge_data.plan.declared import Clause, given_clauses
from bridge_data.plugins.convert.column_guess import (
    Definition,
    RecordColumn,
    guess_definition,
    holds_documents,
    no_answer,
)
from bridge_data.plugins.convert.conversion import REPORT, ConvertConfig
from bridge_data.plugins.convert.conversion import convert as convert_records
from bridge_data.plugins.convert.media_files import MediaRoot, clips_are_checked
from bridge_data.plugins.convert.record_layout import RecordLayout, find_columns, why_crude
from bridge_data.plugins.convert.source_kinds import FORMAT_NAMES, open_source
from bridge_data.plugins.convert.taken_records import take_records
from bridge_data.prepare.executors import executor_named
from bridge_data.prepare.record_source import RecordSource, SourceConfig
from bridge_data.storage import Location

_MAX_SHOWN_COLUMNS = 40


def _split(_: click.Context, __: click.Parameter, text: str | None) -> dict[str, str] | None:
    """`train=0.98,val=0.02` as a dict."""
    if text is None:
        return None
    pieces = [piece.strip().partition("=") for piece in text.split(",")]
    shares = {part: share for part, _, share in pieces}
    if len(shares) < len(pieces) or not all(part and share for part, share in shares.items()):
        raise ConfigError(f"--split {text}: expected the share of each part, such as train=0.98,val=0.02")
    return shares


def _names(_: click.Context, __: click.Parameter, text: str | None) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip()) if text else frozenset()


@click.command()
@click.argument("source", metavar="SRC", type=ON_DISK)
@click.argument("target", metavar="DST", type=OUTPUT)
@click.option("--format", "format_name", type=click.Choice(FORMAT_NAMES), help="Of SRC, if its name does not show it.")
@click.option("--include", metavar="GLOB", help="Of a folder, take the files whose paths match, such as 'train-*'.")
@click.option("--media-root", type=ON_DISK, help="The folder of media that records name.  [default: that of SRC]")
@setting("--sample-type", more="[default: guessed]")
@setting("--field-map", help="The column that fills each field: caption=text,image=photo, or JSON.")
@click.option("--key", metavar="COLUMN", help="The column of the samples' keys.  [default: numbers, or names of files]")
@click.option("--prefix-keys", is_flag=True, help="Of tars: put the tar's name before each key, if keys repeat.")
@click.option("--drop", callback=_names, metavar="COLUMNS", help="Columns to leave out.")
@click.option("--split", callback=_split, metavar="PART=SHARE,...", help="By a hash of keys.  [default: train=1]")
@click.option(
    "--split-by",
    type=click.Choice(["key", "shard"]),
    default="key",
    help="shard: split whole shards in their order, so that neighbours stay together.",
)
@click.option("--max-bytes", default=1_000_000_000, show_default=True, help="Bytes in a shard, at most.")
@click.option("--max-samples", default=10_000, show_default=True, help="Samples in a shard, at most.")
@click.option("--shuffle", type=int, metavar="SEED", help="Write the samples in a random order.")
@click.option("--keys", "keys_file", type=ON_DISK, help="Keep only samples whose keys are lines of this file.")
@where_options
@click.option("--require-parts", callback=_names, metavar="PARTS", help="Leave out samples without all these parts.")
@click.option("--skip-broken", is_flag=True, help="Leave broken records out; they are counted and listed.")
@click.option("--same-parts", is_flag=True, help="Of files and tars: samples with other parts than most are broken.")
@click.option("--unchecked", is_flag=True, help="Do not look into media, JSON and text.")
@setting("--orientation", help="apply: turn images as their EXIF data say, and encode them anew.")
@setting("--force-overwrite", help="Replace the data set that another conversion left in DST.")
@click.option("--follow-links", is_flag=True, help="Follow links to files outside SRC, or outside the media root.")
@setting("--num-workers", help="Processes.", more="[default: as many as there are CPUs]")
@executor_option
@setting("--non-interactive", help="Ask nothing: stop if a guess is not clear.")
@progress_option
@limits_option
def convert(
    source: Path,
    target: Location,
    format_name: str | None,
    include: str | None,
    media_root: Path | None,
    sample_type: str | None,
    field_map: str | None,
    key: str | None,
    prefix_keys: bool,
    drop: frozenset[str],
    split: dict[str, str] | None,
    split_by: Literal["key", "shard"],
    max_bytes: int,
    max_samples: int,
    shuffle: int | None,
    keys_file: Path | None,
    where: str | None,
    columns: str | None,
    require_parts: frozenset[str],
    skip_broken: bool,
    same_parts: bool,
    unchecked: bool,
    orientation: Orientation,
    force_overwrite: bool,
    follow_links: bool,
    num_workers: int | None,
    executor: str,
    non_interactive: bool,
    progress: bool,
    limits: Limits,
) -> None:
    """Convert the data in SRC to the data set in the folder DST, or at its URL.

    SRC is a folder of files (0001.png with 0001.txt) or of a folder for each class; JSON lines, a JSON list (LLaVA,
    ShareGPT), CSV or TSV, with the names of media; COCO captions; Parquet, Arrow, what `datasets` saved, Lance, MDS or
    litData; or WebDataset tars. If interrupted, the same command continues; with other options, or if SRC was
    corrected, it starts anew.
    """
    allow_pixels(limits)
    if isinstance(target, Path) and source.is_dir() and target.resolve().is_relative_to(source.resolve()):
        raise ConfigError(f"{target}: is inside {source} and would be converted itself; give another folder")
    source_config = SourceConfig(
        format=format_name,
        include=include,
        follow_links=follow_links,
        prefix_keys=prefix_keys,
        same_parts=same_parts,
        dropped=drop,
        limits=limits,
    )
    records = open_source(source, source_config)
    if same_parts and not records.has_parts:
        raise ConfigError(f"--same-parts is for folders of files and tars, but {source} is a {records.title}")
    dropped_here = () if records.has_columns else drop  # which reads no others
    found = find_columns(records, dropped_here, require_parts)
    records = _taken(source, records, given_clauses(where, columns))
    definition = guess_definition(
        found,
        sample_type=sample_type,
        fields={} if field_map is None else parse_field_map(field_map),
        ask=no_answer if non_interactive or not is_terminal() else _ask,
        known=records.definition,
    )
    _show(source, records, found, definition)
    is_guess = sample_type is None and records.definition is None
    if is_guess and records.has_parts and definition.sample_type is None and (reason := why_crude(records)):
        note(reason)
    layout = _layout(records, found, definition, source, media_root, key, source_config)
    config = ConvertConfig(
        split=split,
        split_by=split_by,
        max_bytes=max_bytes,
        max_samples=max_samples,
        executor=executor_named(executor, num_workers),
        shuffle=shuffle,
        keys=None if keys_file is None else _keys(keys_file),
        require_parts=require_parts,
        skip_broken=skip_broken,
        checked=not unchecked,
        orientation=orientation,
        overwrite=force_overwrite,
        limits=limits,
    )
    with progress_bar("converting", "samples", shown=progress) as on_progress:
        done = convert_records(records, layout, definition, target, config, on_progress=on_progress)
    if done.was_done:
        note(f"{target}: was converted by the same command already; to convert it again, remove it")
    if done.num_discarded is not None:
        note(
            f"{target}: a conversion with other options, or before the source changed, had not finished; started anew"
            + (f", without its {counted(done.num_discarded, 'shard')}" if done.num_discarded else "")
        )
    if done.num_filtered:
        note(f"left out by --keys or --require-parts: {counted(done.num_filtered, 'sample')}")
    if done.num_broken:
        note(f"left out as broken: {counted(done.num_broken, 'record')}, listed in {target / REPORT}")
    dataset = PreparedDataset.open(target, limits)
    parts = [f"{name} {dataset.split(name).num_samples:,}" for name in dataset.split_parts()]
    told = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    click.echo(f"{target}: {counted(done.num_samples, 'sample')}{told}")
    click.echo(f"Next: {bridge_command('info', target, '--samples', 3)}")


def _taken(source: Path, records: RecordSource, clauses: Sequence[Clause]) -> RecordSource:
    """The chosen `records` that are not forgotten."""
    taken = take_records(source, records, clauses)
    if taken.num_chosen is not None:
        note(f"where: chosen are {taken.num_chosen:,} of {counted(len(records), 'record')}")
    if taken.num_forgotten:
        note(f"left out as forgotten: {counted(taken.num_forgotten, 'record')} (see `bridge-data forget --list`)")
    return taken.source


def is_terminal() -> bool:
    """Whether a user can answer."""
    return sys.stdin is not None and sys.stdin.isatty()  # None: it was closed


def _ask(field: str, columns: Sequence[str]) -> str:
    answer: str = click.prompt(f"Which column fills the field {field!r}? There is {', '.join(columns) or 'none'}")
    return answer.strip()


def _show(source: Path, records: RecordSource, columns: Sequence[RecordColumn], definition: Definition) -> None:
    """Print what the source holds and what it becomes."""
    click.echo(f"{source}: {records.title}, {counted(len(records), 'record')}")
    by_column = {column: field for field, column in definition.columns.items()}
    rows = []
    for column in columns[:_MAX_SHOWN_COLUMNS]:
        kind = f"{'list of ' if column.is_list and column.kind in ('image', 'clip') else ''}{column.kind}"
        rows.append([column.name, kind, by_column.get(column.name, "-")])
    click.echo(table(["column", "holds", "field"], rows))
    click.echo(f"sample type: {definition.sample_type or CRUDE}")
    for one in records.notes:
        note(one)
    if definition.sample_type is None and holds_documents(columns):
        note(f"{FOR_DOCUMENTS}, and cooks them")
    remote = [column.name for column in columns if column.has_urls]
    if remote and not any(column.kind in ("image", "clip") for column in columns):
        note(f"{', '.join(remote)}: names media by URL, which are not downloaded: store the files, and name these")
    if not clips_are_checked() and any(column.kind == "clip" for column in columns):
        note("the headers of clips are not checked: pip install av")


def _layout(
    records: RecordSource,
    columns: Sequence[RecordColumn],
    definition: Definition,
    source: Path,
    media_root: Path | None,
    key: str | None,
    config: SourceConfig,
) -> RecordLayout:
    dropped = config.dropped
    if records.has_parts:
        for option, given in (("--media-root", media_root), ("--key", key), ("--drop", dropped)):
            if given:
                raise ConfigError(f"{option} is for records with columns, but {source} is a {records.title}")
        return RecordLayout(columns=tuple(columns))
    folder = media_root or (source if source.is_dir() else source.parent)
    if not folder.is_dir():
        raise ConfigError(f"--media-root {folder}: no such folder")
    if media_root is not None and all(column.kind in ("text", "number") and not column.is_list for column in columns):
        note(f"--media-root {folder}: no column names a file there; names of media have an ending, such as 0001.jpg")
    if key is not None and key not in {column.name for column in columns}:
        raise ConfigError(f"--key {key}: there is no such column, but {', '.join(column.name for column in columns)}")
    as_lists = {
        column.name for column in columns if column.kind == "text" and definition.columns.get("answers") == column.name
    }
    media = MediaRoot(folder, follow_links=config.follow_links)
    return RecordLayout(
        columns=tuple(columns), media_root=media, key=key, dropped=dropped, as_lists=frozenset(as_lists)
    )


def _keys(path: Path) -> frozenset[str]:
    """The lines of a file."""
    try:
        return frozenset(line for line in path.read_text().splitlines() if line)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--keys {path}: cannot be read: {error}") from None
