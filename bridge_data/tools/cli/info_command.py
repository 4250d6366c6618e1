"""`bridge-data info`: what a data set, a JSONL file or a metadataset holds."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from bridge_data import storage
from bridge_data.errors import BridgeDataError, ConfigError, DatasetError, bridge_command, listed
from bridge_data.limits import Limits
from bridge_data.plan import EmptySplitError, Source, load_plan
from bridge_data.plan.document import has_raw_tars, is_jsonl
from bridge_data.plan.opening import WHOLE, has_tables, split_parts
from bridge_data.plan.where_clauses import WhereClause, given_where
from bridge_data.shards import Records
from bridge_data.shards.jsonl_file import index_path, open_jsonl, split_gaps
from bridge_data.shards.media_metadata import MEDIA_TABLE
from bridge_data.shards.metadata import (
    BRIDGE_INDEX,
    DATASET_YAML,
    INDEX_SQLITE,
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    WRITER_YAML,
    load_document,
)
from bridge_data.shards.prepared import PreparedDataset, ShardSet
from bridge_data.shards.read_only_database import ReadOnlyDatabase
from bridge_data.shards.records import without_views
from bridge_data.shards.tombstones import ListedFiles, newest_numbers
from bridge_data.storage import Location, RemotePath
from bridge_data.tools.cli.terminal import (
    LOCATION,
    counted,
    headed,
    limits_option,
    setting,
    sized,
    spanned,
    split_table,
    table,
    trust_options,
    where_options,
)

if TYPE_CHECKING:
    from bridge_data.order.plan_order import Shuffle


@click.command()
@click.argument("path", type=LOCATION)
@click.option("--split-config", metavar="NAME", help="The file of the split in .nv-meta.  [default: split.yaml]")
@click.option("--dataset-config", metavar="NAME", default=DATASET_YAML, show_default=True, help="That of the samples.")
@setting("--num-lanes", help="Also show how training data are dealt to this many lanes.")
@setting("--max-samples-per-sequence", more="[default: None, whole shards]")
@setting("--shuffle-buffer-size", more="[default: None]")
@where_options
@trust_options
@limits_option
@click.pass_context
def info(
    context: click.Context,
    path: Location,
    split_config: str | None,
    dataset_config: str,
    num_lanes: int | None,
    max_samples_per_sequence: int | None,
    shuffle_buffer_size: int | None,
    where: str | None,
    columns: str | None,
    trusted_module: tuple[str, ...],
    trust_dataset_code: bool,
    limits: Limits,
) -> None:
    """Show what PATH holds: split parts, shards, samples, parts, sample type; of a metadataset, what it blends.

    PATH is a prepared data set, a metadataset or a JSONL file, or the URL of one, or tars without .nv-meta. With
    --num-lanes it is also shown how the training data are cut and dealt, and how far the epochs of a job overlap. The
    exit status is 1 if anything is wrong.
    """
    if num_lanes is None and (max_samples_per_sequence, shuffle_buffer_size) != (None, None):
        raise ConfigError("--max-samples-per-sequence and --shuffle-buffer-size have no effect without --num-lanes")
    trust: dict[str, Any] = {
        "trusted_modules": trusted_module,
        "trust_dataset_code": trust_dataset_code,
        "limits": limits,
    }
    clauses = given_where(where, columns)
    is_sound = True
    if has_tables(str(path)):
        _show_tables(path, clauses, trust)
    elif has_raw_tars(str(path)):
        _show_raw_tars(path, clauses, trust)
    elif not storage.is_file(path):
        is_sound = _show_folder(PreparedDataset.open(path, limits), split_config, dataset_config, clauses)
    elif is_jsonl(str(path)):
        _show_jsonl(path, clauses, limits)
    else:
        is_sound = _show_metadataset(path, where=where, columns=columns, **trust)
    if not is_sound:
        context.exit(1)
    if num_lanes is not None:
        from bridge_data.order.plan_order import Shuffle  # imports numpy, which nothing else here needs

        shuffle = Shuffle(shuffle_buffer_size=shuffle_buffer_size, max_samples_per_sequence=max_samples_per_sequence)
        for source in load_plan(path, split_part="train", where=where, columns=columns, **trust).sources:
            click.echo()
            click.echo(headed(_lane_shares(source, num_lanes, shuffle)) + "\n")


def _show_folder(
    dataset: PreparedDataset, split_config: str | None, dataset_config: str, clauses: Sequence[WhereClause]
) -> bool:
    """What the folder holds; whether its files can be read."""
    sample_type = _sample_type(dataset.meta / dataset_config)
    names = list(dataset.shard_counts)
    num_bytes = sum(map(dataset.shard_bytes, names))
    total = f"{counted(sum(dataset.shard_counts.values()), 'sample')} in {counted(len(names), 'shard')}"
    rows = [
        ("data set", str(dataset.root)),
        ("holds", f"{total}, {sized(num_bytes)}"),
        ("shards", spanned(names) if names else "none"),
        ("parts", listed(dataset.part_names(), 20)),
        ("sample type", sample_type),
        ("format", _format(dataset.meta)),
        ("index", ".tar.idx only; prepare with bridge-data for more speed" if dataset.index is None else BRIDGE_INDEX),
    ]
    media = _media(dataset.meta / INDEX_SQLITE)
    if media is not None:
        rows.append(("media", media))
    rows += _forgotten_rows([dataset.all_shards()])
    click.echo(headed(rows) + "\n")
    click.echo(split_table(dataset, split_config))
    parts = dataset.split_parts(split_config)
    _show_chosen([dataset.split(part, split_config=split_config) for part in parts], clauses)
    return not sample_type.startswith(_WRONG)


def _forgotten_rows(several: Sequence[Records]) -> list[tuple[str, str]]:
    """A row for the forgotten samples, if there is a list."""
    num_samples, numbers = 0, list[int]()
    for one in (one for one in several if isinstance(one, ListedFiles)):
        versions = newest_numbers(one.tombstones)
        num_samples += len(one.forgotten(versions))
        numbers += [number for number in versions if number]
    shown = " and ".join(map(str, dict.fromkeys(numbers)))
    return [("forgotten", f"{counted(num_samples, 'sample')} (version {shown} of the list)")] if numbers else []


def _show_chosen(parts: Sequence[Records], clauses: Sequence[WhereClause]) -> None:
    """How many samples of each split part are chosen."""
    if not clauses:
        return
    from bridge_data.shards.where.choosing import evaluate, shown  # here: most calls do not need it

    rows = []
    for records in parts:
        chosen, total = evaluate(records, clauses).num_chosen if records.num_samples else 0, records.num_samples
        rows.append([records.split_part, f"{chosen:,}", f"{chosen / max(1, total):.1%}"])
    click.echo(f"\nwhere {shown(clauses)}\n")
    click.echo(table(["split part", "chosen samples", "of all"], rows))


def _show_jsonl(path: Location, clauses: Sequence[WhereClause], limits: Limits) -> None:
    records = [open_jsonl(path, part, limits=limits) for part in split_parts(path, limits)]
    parts = {one.split_part: one.num_samples for one in records}
    rows = [
        ("data set", str(path)),
        ("holds", f"{sized(storage.size_bytes(path))} of JSON lines"),
        ("parts", "json"),
        ("sample type", "crude"),
        ("index", index_path(path).name),
        *_forgotten_rows([without_views(one) for one in records[:1]]),
    ]
    click.echo(headed(rows) + "\n")
    num_unused, _ = split_gaps(path)
    shown = {**parts, **({"(in no part)": num_unused} if num_unused else {})}
    click.echo(table(["split part", "samples"], [[part, f"{number:,}"] for part, number in shown.items()]))
    _show_chosen(records, clauses)


def _show_tables(path: Location, clauses: Sequence[WhereClause], trust: dict[str, Any]) -> None:
    """Parquet files, or a data set saved by `datasets`."""
    names = split_parts(path, trust["limits"])
    parts = {part: load_plan(path, split_part=part, training=False, **trust).sources for part in names}
    records = [source.records for sources in parts.values() for source in sources]
    num_bytes = sum((one.sample_bytes or 0) * one.num_samples for one in records)
    columns = dict.fromkeys(name for one in records if one.names for name in one.part_names(0) or ())
    rows = [
        ("data set", str(path)),
        ("holds", f"{sized(num_bytes)} of columns in {counted(sum(len({*one.names}) for one in records), 'file')}"),
        ("parts", listed(list(columns), 20)),
        ("sample type", "crude, unless a field map is given"),
        *_forgotten_rows(records),
    ]
    click.echo(headed(rows) + "\n")
    shown = []
    for part, sources in parts.items():
        counts = [source.records.counts for source in sources]
        shown.append([part, f"{sum(map(sum, counts)):,}", f"{sum(map(len, counts)):,}"])
    click.echo(table(["split part", "samples", "row groups or batches"], shown))
    _show_chosen(records, clauses)


_MAX_LOOKED_AT = 10
"""Tars that nobody has prepared, and of which the parts are named."""


def _show_raw_tars(path: Location, clauses: Sequence[WhereClause], trust: dict[str, Any]) -> None:
    """Tars that nobody has prepared."""
    shards = load_plan(path, training=False, split_part=WHOLE, **trust).sources[0].records
    assert isinstance(shards, ShardSet) and shards.index is not None
    names, num_bytes = shards.names, sum(shards.index.sizes_bytes(shards.names))
    parts = {part for number in range(min(_MAX_LOOKED_AT, len(names))) for part in shards.part_names(number) or ()}
    if (shards.root / META_FOLDER).is_dir():
        form = f"tars, read without the {META_FOLDER} of {shards.root}"
    else:
        form = f"tars without {META_FOLDER}: not prepared; `{bridge_command('prepare', shards.root)}` does that"
    rows = [
        ("data set", str(path)),
        ("holds", f"{counted(shards.num_samples, 'sample')} in {counted(len(names), 'shard')}, {sized(num_bytes)}"),
        ("shards", spanned(names)),
        ("parts", listed(sorted(parts), 20)),
        ("sample type", "crude, for a cooker of the task encoder"),
        ("format", form),
        ("index", "in the cache of the user"),
    ]
    click.echo(headed(rows) + "\n")
    row = [WHOLE, f"{len(names):,}", f"{shards.num_samples:,}", sized(num_bytes)]
    click.echo(table(["split part", "shards", "samples", "bytes"], [row]))
    _show_chosen([shards], clauses)


def _show_metadataset(path: Location, **trust: Any) -> bool:
    """Print the tree of every split part, with what is drawn from each data set; an error in one does not hide others.
    Return whether there was none."""
    is_sound = True
    click.echo(headed([("metadataset", str(path))]) + "\n")
    for part in split_parts(path, trust["limits"]):
        click.echo(click.style(part, bold=True))
        try:
            plan = load_plan(path, split_part=part, training=part == "train", **trust)
        except EmptySplitError:
            click.echo("  no samples\n")
            continue
        except BridgeDataError as error:
            click.echo(f"  {click.style('error:', fg='red')} {error}\n")
            is_sound = False
            continue
        click.echo("\n".join(f"  {line}" for line in str(plan).splitlines()))
        for source in plan.sources:
            for name, reference in source.aux.items():
                click.echo(f"  aux {name} of {source.name}: {reference.path}")
        click.echo(f"  {counted(sum(source.num_samples for source in plan.sources), 'sample')} in all\n")
    return is_sound


def _format(meta: Location) -> str:
    """Which version of the format it has, and who wrote the shards, if that is known."""
    path = next(meta / name for name in (INFO_JSON, INFO_YAML) if (meta / name).is_file())
    version = load_document(path).get("energon_version")
    writer = ", written by bridge-data" if (meta / WRITER_YAML).is_file() else ""
    return (f"that of Energon {version}" if version else "that of an Energon that does not tell its version") + writer


def _media(path: Location) -> str | None:
    """Counts of the stored media metadata; None if there are none."""
    if isinstance(path, RemotePath) or not path.is_file():  # counting would copy all of a remote file
        return None
    try:
        kinds = ReadOnlyDatabase(path, "prepare it again").rows(
            f"SELECT metadata_type, COUNT(*) FROM {MEDIA_TABLE} GROUP BY 1 ORDER BY 1"
        )
    except DatasetError:  # no such table
        return None
    names = {"image": "image", "av": "clip"}
    return "metadata of " + (", ".join(counted(count, names.get(kind, kind)) for kind, count in kinds) or "no files")


_WRONG = "error: "


def _sample_type(path: Location) -> str:
    """The class and its fields, in one line."""
    if not path.is_file():
        return f"not known, there is no {path.name}"
    try:
        content = load_document(path)
    except ConfigError:
        return f"{_WRONG}{path} is not readable as YAML"
    if not isinstance(content, dict):
        return f"{_WRONG}{path} holds no mapping"
    return "".join(_described(content))


def _described(content: dict[str, Any]) -> Iterator[str]:
    holder = content.get("sample_type", content)
    yield str(holder.get("__class__", "not known")) if isinstance(holder, dict) else "not known"
    field_map = content.get("field_map")
    if isinstance(field_map, dict):
        yield f"({', '.join(f'{field} ← {part}' for field, part in field_map.items())})"
    if content.get("part_filter"):
        yield f", parts {json.dumps(content['part_filter'])}"
    if content.get("sample_loader"):
        yield f", made by {content['sample_loader']}"
    if content.get("subflavors"):
        yield f", subflavors {json.dumps(content['subflavors'], ensure_ascii=False)}"


def _lane_shares(source: Source, num_lanes: int, shuffle: "Shuffle") -> list[tuple[str, str]]:
    """How an order deals the samples of a data set: chunks, windows, and a lane's share of an epoch."""
    from bridge_data.order.chunks import ChunkTable
    from bridge_data.order.mixing import overlap

    geometry = shuffle.geometry(source, num_lanes)
    chunks = ChunkTable(source.records.counts, geometry.chunk_size)
    lengths = _range(chunks.shortest, chunks.longest)
    mixed = f"of at least {geometry.window_size:,} samples, or a lane's share"
    rows = [
        ("samples", f"{source.num_samples:,} of {source.name}, for {counted(num_lanes, 'lane')}"),
        ("chunks", f"{chunks.num_chunks:,} of {lengths}, in blocks of at most {geometry.block_size:,}"),
        ("windows", mixed if geometry.window_size else "none, each chunk is read front to back"),
    ]
    if source.epochs_per_shuffle != 1:
        times = f"shuffle_over_epochs_multiplier {source.epochs_per_shuffle}"
        return [*rows, ("repeats", f"not known for one epoch, because of {times}")]
    found, percent = overlap(chunks, num_lanes), 100 / source.num_samples
    equal = source.num_samples / num_lanes
    mean = f"{equal:,.0f} on the average, with a standard deviation of {found.share_std:,.1f}"
    typical = f"about {found.mean_repeats:,.0f} ({found.mean_repeats * percent:.1f}%)"
    most = f"at most {found.most_repeats:,} ({found.most_repeats * percent:.1f}%)"
    return [
        *rows,
        ("a lane has", f"{_range(found.fewest, found.most)} of an epoch: {mean}"),
        ("repeats", f"of {source.num_samples:,} draws {typical} come twice before others come once, {most}"),
    ]


def _range(least: int, most: int) -> str:
    return f"{most:,} samples" if least == most else f"{least:,} to {most:,} samples"
