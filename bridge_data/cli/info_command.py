"""`bridge-data info`: what a data set, a JSONL file or a metadataset holds."""

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from bridge_data import storage
from bridge_data.cli.terminal import (
    CRUDE,
    LOCATION,
    OUTPUT_ON_DISK,
    echo_json,
    headed,
    json_option,
    limits_option,
    only_local,
    sized,
    spanned,
    split_counts,
    split_options,
    split_table,
    table,
    trust_options,
    where_options,
)
from bridge_data.configs import config_files, is_run_folder
from bridge_data.data import Records
from bridge_data.data.jsonl_file import index_path, open_jsonl, split_gaps
from bridge_data.data.key_index import ReadOnlyDatabase
from bridge_data.data.metadata import (
    BRIDGE_INDEX,
    DATASET_YAML,
    INDEX_SQLITE,
    INFO_JSON,
    INFO_YAML,
    META_FOLDER,
    WRITER_YAML,
    load_document,
)
from bridge_data.data.prepared import PreparedDataset, tars_of
from bridge_data.data.records import count_samples, counts_of, names_of, split_part_of, stored_records
from bridge_data.data.withheld import withheld
from bridge_data.decode.media_metadata import MEDIA_TABLE
from bridge_data.errors import BridgeDataError, ConfigError, DatasetError, bridge_command, counted, listed
from bridge_data.extensions import Feature
from bridge_data.limits import Limits
from bridge_data.plan import EmptySplitError, Plan, Source, load_plan
from bridge_data.plan.blending import SAMPLES, Tree, WeightSchedule, leaves, phase_key
from bridge_data.plan.declared import WHERE, Clause, given_clauses
from bridge_data.plan.formats import WHOLE, format_of
from bridge_data.plan.opening import split_parts
from bridge_data.plan.source import parse_access
from bridge_data.prepare.tars import tars_beside
from bridge_data.samples import CrudeSample
from bridge_data.storage import Location, RemotePath

if TYPE_CHECKING:
    from bridge_data.plan.missing_parts import PartCount

_Found: TypeAlias = tuple[dict[str, Any], list[str]]
"""(the facts as plain data, the lines that show them)."""


_SAMPLES = Feature[Callable[..., None]]("shown_samples")
"""Prints samples: those of these numbers, or the one with a key; or writes them to a file, as a page."""

NUM_SHOWN = 3
"""Samples that are shown if nobody says how many."""


def _numbers(_: click.Context, __: click.Parameter, text: str | None) -> range | None:
    """`3` as the first three numbers, `20..29` as those."""
    if text is None:
        return None
    first, dots, last = text.partition("..")
    if not (first.isdecimal() and (last.isdecimal() if dots else int(first))) or (dots and int(last) < int(first)):
        raise ConfigError(f"--samples {text}: expected a count from 1 on, or numbers such as 20..29")
    return range(int(first), int(last) + 1) if dots else range(int(first))


@click.command()
@click.argument("path", type=LOCATION)
@click.option(
    "--samples", callback=_numbers, metavar="N", help="Show samples instead: the first N of each data set, or 20..29."
)
@click.option("--key", help="Show this sample: its `__key__`, SHARD:KEY, or KEY; of a JSONL file its number.")
@click.option("--html", type=OUTPUT_ON_DISK, help="Write the samples to this file instead, as a single page.")
@split_options("The part of the split; of several, such as train,val, the first that has samples.  [default: of all]")
@where_options
@trust_options
@limits_option
@json_option
@click.pass_context
def info(
    context: click.Context,
    /,
    path: Location,
    samples: range | None,
    key: str | None,
    html: Path | None,
    split_parts: tuple[str, ...],
    split_config: str | None,
    dataset_config: str | None,
    where: str | None,
    columns: str | None,
    limits: Limits,
    as_json: bool,
    **trust: Any,
) -> None:
    """Show what PATH holds: split parts, shards, samples, parts, sample type; of a metadataset, what it blends.

    PATH is a prepared data set, a metadataset or a JSONL file, or the URL of one, or tars without .nv-meta. With
    --samples or --key it shows samples: keys, parts, sizes, texts, what kind of images they are, and the fields that
    they become. The exit status is 1 if anything is wrong.
    """
    _refuse_run(path)
    if samples is not None or key is not None or html is not None:
        if key is not None and samples is not None:
            raise ConfigError("--key shows one sample: give it without --samples")
        if html is not None and as_json:
            raise ConfigError("--html writes a page, --json a document: give one of them")
        if split_config is not None:
            raise ConfigError("--split-config is for what PATH holds as a whole: leave it out with --samples")
        given = {"where": where, "columns": columns, "limits": limits, "dataset_config": dataset_config, **trust}
        numbers = range(NUM_SHOWN) if samples is None else samples
        show_samples = _SAMPLES.get("showing samples")
        show_samples(
            only_local(path), numbers, key, html, {"split_parts": split_parts, **given, **trust}, as_json=as_json
        )
        return
    if split_parts:
        raise ConfigError("--split-part is for --samples and --key: all parts are shown without")
    dataset_config = dataset_config or DATASET_YAML
    trust["limits"] = limits
    clauses = given_clauses(where, columns)
    kind = "metadataset" if path.suffix in (".yaml", ".yml") and storage.is_file(path) else format_of(str(path)).name
    if kind == "metadataset":
        facts, lines = _metadataset(path, where=where, columns=columns, **trust)
    elif kind == "folder":
        facts, lines = _folder(PreparedDataset.open(path, limits), split_config, dataset_config, clauses)
    elif kind == "jsonl":
        facts, lines = _jsonl(path, clauses, limits)
    elif kind == "tars":
        facts, lines = _raw_tars(path, clauses, trust)
    else:
        facts, lines = _tables(path, clauses, trust)
    if not as_json:
        click.echo("\n".join(lines))
    is_sound = not any("error" in part for part in (facts["sample_type"] or {}, *facts["split_parts"]))
    if as_json:
        echo_json(facts)
    if not is_sound:
        context.exit(1)


def _refuse_run(path: Location) -> None:
    """Refuse the folder of a run, by its config."""
    try:
        is_run = isinstance(path, Path) and is_run_folder(path) and bool(config_files(path))
    except ConfigError:  # too many files, or several configs
        return
    if is_run:
        raise ConfigError(
            f"{path}: this is the folder of a run, no data set: give the data that it reads. The steps of a sample: "
            f"`{bridge_command('order', path, '--key', 'KEY')}`"
        )


def _folder(
    dataset: PreparedDataset, split_config: str | None, dataset_config: str, clauses: Sequence[Clause]
) -> _Found:
    """A prepared data set."""
    names, meta, forgotten = list(dataset.shard_counts), dataset.meta, _forgotten([dataset.all_shards()])
    info = load_document(next(meta / name for name in (INFO_JSON, INFO_YAML) if (meta / name).is_file()))
    parts = dataset.split_parts(split_config)
    chosen, chosen_lines = _chosen([dataset.split(part, split_config=split_config) for part in parts], clauses)
    facts: dict[str, Any] = {
        "kind": "folder",
        "path": str(dataset.root),
        "num_samples": sum(dataset.shard_counts.values()),
        "num_shards": len(names),
        "num_bytes": sum(map(dataset.shard_bytes, names)),
        "first_shard": names[0] if names else None,
        "last_shard": names[-1] if names else None,
        "other_tars": list(tars_beside(dataset.root, names)),
        "parts": list(dataset.part_names()),
        "sample_type": _sample_type(meta / dataset_config),
        "energon_version": info.get("energon_version") or None,
        "written_by_bridge_data": (meta / WRITER_YAML).is_file(),
        "index": None if dataset.index is None else BRIDGE_INDEX,
        "media": _media(meta / INDEX_SQLITE),
        "forgotten": forgotten,
        "split_parts": split_counts(dataset, split_config),
        "where": chosen,
    }
    odd = _odd_parts(dataset, facts["sample_type"])
    if odd:
        facts["odd_parts"] = [one.to_dict() for one in odd]
    total = f"{counted(facts['num_samples'], 'sample')} in {counted(len(names), 'shard')}"
    version = facts["energon_version"]
    form = f"that of Energon {version}" if version else "that of an Energon whose version is unknown"
    rows = [
        ("data set", facts["path"]),
        ("holds", f"{total}, {sized(facts['num_bytes'])}"),
        ("shards", spanned(names) if names else "none"),
        ("parts", listed(facts["parts"], 20)),
        ("sample type", "".join(_described(facts["sample_type"], dataset_config))),
        ("format", form + (", written by bridge-data" if facts["written_by_bridge_data"] else "")),
        ("index", facts["index"] or ".tar.idx only; prepare with bridge-data for more speed"),
    ]
    if others := facts["other_tars"]:
        rows.append(("not in it", f"{listed(others, 3)}: added after it was prepared, or left out of it"))
    if facts["media"] is not None:
        kinds = ", ".join(counted(count, kind) for kind, count in facts["media"].items())
        rows.append(("media", f"metadata of {kinds or 'no files'}"))
    rows += [*_forgotten_rows(forgotten), *(("odd parts", str(one)) for one in odd)]
    return facts, [headed(rows), "", split_table(facts["split_parts"]), *chosen_lines]


def _odd_parts(dataset: PreparedDataset, sample_type: dict[str, Any] | None) -> list["PartCount"]:
    """What samples lack of the field map, or have twice, as far as the index says."""
    try:
        texts = (sample_type or {}).get("field_map") or {}
        field_map = {field: parse_access(str(text)) for field, text in texts.items()}
    except ConfigError:
        return []  # a loader and `check` say it
    if not field_map or dataset.index is None:
        return []
    from bridge_data.plan.missing_parts import count_parts  # imports numpy, which little else here needs

    return count_parts(dataset.all_shards(), field_map)


def _forgotten(several: Sequence[Records]) -> dict[str, Any] | None:
    """How many samples are forgotten, and the versions of the lists; None if there is no list."""
    num_samples, numbers = 0, list[int]()
    for facts in filter(None, (withheld(one).facts() for one in several)):
        num_samples += facts["num_samples"]
        numbers += facts["versions"]
    return {"num_samples": num_samples, "versions": [*dict.fromkeys(numbers)]} if numbers else None


def _forgotten_rows(forgotten: dict[str, Any] | None) -> list[tuple[str, str]]:
    if forgotten is None:
        return []
    shown = " and ".join(map(str, forgotten["versions"]))
    return [("forgotten", f"{counted(forgotten['num_samples'], 'sample')} (version {shown} of the list)")]


def _chosen(parts: Sequence[Records], clauses: Sequence[Clause]) -> tuple[dict[str, Any] | None, list[str]]:
    """How many samples of each split part are chosen."""
    if not clauses:
        return None, []
    where = WHERE.get(needed_by="--where")

    chosen: list[dict[str, Any]] = [
        {
            "split_part": split_part_of(records),
            "num_chosen": where.count(records, clauses),
            "num_samples": count_samples(records),
        }
        for records in parts
    ]
    rows = [
        [one["split_part"], f"{one['num_chosen']:,}", f"{one['num_chosen'] / max(1, one['num_samples']):.1%}"]
        for one in chosen
    ]
    facts = {"predicates": [clause.text for clause in clauses], "split_parts": chosen}
    return facts, ["", f"where {where.shown(clauses)}", "", table(["split part", "chosen samples", "of all"], rows)]


def _jsonl(path: Location, clauses: Sequence[Clause], limits: Limits) -> _Found:
    """A JSONL file."""
    records = [open_jsonl(path, part, limits=limits) for part in split_parts(path, limits)]
    forgotten = _forgotten([stored_records(one) for one in records[:1]])
    num_unused, _ = split_gaps(path)
    parts = {split_part_of(one): count_samples(one) for one in records}
    chosen, chosen_lines = _chosen(records, clauses)
    facts: dict[str, Any] = {
        "kind": "jsonl",
        "path": str(path),
        "num_bytes": storage.size_bytes(path),
        "parts": ["json"],
        "sample_type": _CRUDE,
        "index": index_path(path).name,
        "forgotten": forgotten,
        "split_parts": [
            {"split_part": part, "num_samples": number}
            for part, number in (*parts.items(), *([(None, num_unused)] if num_unused else []))
        ],
        "where": chosen,
    }
    rows = [
        ("data set", facts["path"]),
        ("holds", f"{sized(facts['num_bytes'])} of JSON lines"),
        ("parts", "json"),
        ("sample type", "crude"),
        ("index", facts["index"]),
        *_forgotten_rows(forgotten),
    ]
    shown = [[one["split_part"] or "(in no part)", f"{one['num_samples']:,}"] for one in facts["split_parts"]]
    return facts, [headed(rows), "", table(["split part", "samples"], shown), *chosen_lines]


def _tables(path: Location, clauses: Sequence[Clause], trust: dict[str, Any]) -> _Found:
    """Parquet files, or a data set saved by `datasets`."""
    names = split_parts(path, trust["limits"])
    parts = {part: load_plan(path, split_part=part, training=False, **trust).sources for part in names}
    records = [source.records for sources in parts.values() for source in sources]
    counts = {part: [counts_of(source.records) for source in sources] for part, sources in parts.items()}
    chosen, chosen_lines = _chosen(records, clauses)
    facts: dict[str, Any] = {
        "kind": "tables",
        "path": str(path),
        "num_files": sum(len({*names_of(one)}) for one in records),
        "num_bytes": sum((one.sample_bytes or 0) * count_samples(one) for one in records),
        "parts": [*dict.fromkeys(name for one in records if one.shards for name in one.reader().part_names(0) or ())],
        "sample_type": _CRUDE,
        "forgotten": _forgotten(records),
        "split_parts": [
            {"split_part": part, "num_samples": sum(map(sum, several)), "num_row_groups": sum(map(len, several))}
            for part, several in counts.items()
        ],
        "where": chosen,
    }
    rows = [
        ("data set", facts["path"]),
        ("holds", f"{sized(facts['num_bytes'])} of columns in {counted(facts['num_files'], 'file')}"),
        ("parts", listed(facts["parts"], 20)),
        ("sample type", "crude, unless a field map is given"),
        *_forgotten_rows(facts["forgotten"]),
    ]
    shown = [
        [one["split_part"], f"{one['num_samples']:,}", f"{one['num_row_groups']:,}"] for one in facts["split_parts"]
    ]
    shown_parts = table(["split part", "samples", "row groups or batches"], shown)
    return facts, [headed(rows), "", shown_parts, *chosen_lines]


_MAX_LOOKED_AT = 10
"""Tars that nobody has prepared, and of which the parts are named."""


def _raw_tars(path: Location, clauses: Sequence[Clause], trust: dict[str, Any]) -> _Found:
    """Tars that nobody has prepared."""
    shards = tars_of(load_plan(path, training=False, split_part=WHOLE, **trust).sources[0].records)
    assert shards is not None and shards.index is not None
    names, num_bytes = shards.names, sum(shards.index.sizes_bytes(shards.names))
    reader, looked_at = shards.reader(), range(min(_MAX_LOOKED_AT, len(names)))
    parts = {part for number in looked_at for part in reader.part_names(number) or ()}
    is_prepared = (shards.root / META_FOLDER).is_dir()
    counts = {"num_shards": len(names), "num_samples": shards.num_samples, "num_bytes": num_bytes}
    chosen, chosen_lines = _chosen([shards], clauses)
    facts: dict[str, Any] = {
        "kind": "tars",
        "path": str(path),
        **counts,
        "first_shard": names[0],
        "last_shard": names[-1],
        "parts": sorted(parts),
        "sample_type": _CRUDE,
        "is_folder_prepared": is_prepared,
        "split_parts": [{"split_part": WHOLE, **counts}],
        "where": chosen,
    }
    if is_prepared:
        form = f"tars, read without the {META_FOLDER} of {shards.root}"
    else:
        form = f"tars without {META_FOLDER}: not prepared; `{bridge_command('prepare', shards.root)}` does that"
    rows = [
        ("data set", str(path)),
        ("holds", f"{counted(shards.num_samples, 'sample')} in {counted(len(names), 'shard')}, {sized(num_bytes)}"),
        ("shards", spanned(names)),
        ("parts", listed(sorted(parts), 20)),
        ("sample type", CRUDE),
        ("format", form),
        ("index", "in the cache of the user"),
    ]
    return facts, [headed(rows), "", split_table(facts["split_parts"]), *chosen_lines]


def _metadataset(path: Location, **trust: Any) -> _Found:
    """The tree of every split part, with what is drawn from each data set; an error in one does not hide others."""
    parts: list[dict[str, Any]] = []
    lines = [headed([("metadataset", str(path))]), ""]
    for part in split_parts(path, trust["limits"]):
        lines.append(click.style(part, bold=True))
        try:
            plan = load_plan(path, split_part=part, training=part == "train", **trust)
        except EmptySplitError:
            parts.append({"split_part": part, "num_samples": 0, "sources": [], "tree": None})
            lines += ["  no samples", ""]
            continue
        except BridgeDataError as error:
            parts.append({"split_part": part, "error": str(error)})
            lines += [f"  {click.style('error:', fg='red')} {error}", ""]
            continue
        parts.append(
            {
                "split_part": part,
                "num_samples": plan.num_samples,
                **({} if plan.weight_unit == SAMPLES else {"weight_unit": plan.weight_unit}),
                "sources": _sources(plan),
                "tree": _tree(plan.tree, itertools.count()),
            }
        )
        lines += [f"  {line}" for line in str(plan).splitlines()]
        for source in plan.sources:
            lines += [f"  aux {name} of {source.name}: {reference.path}" for name, reference in source.aux.items()]
        lines += [f"  {counted(plan.num_samples, 'sample')} in all", ""]
    return {"kind": "metadataset", "path": str(path), "sample_type": None, "split_parts": parts}, lines


def _sources(plan: Plan) -> list[dict[str, Any]]:
    """The data sets of a plan, with their shares of the draws: by the first sample of the job from which they hold."""
    samples = [] if plan.weights is None else [0, *(sample for sample, _ in plan.later_weights)]
    shares = [[float(share) for _, share in leaves(plan.tree, drawn=sample)] for sample in samples]
    return [
        {
            "path": source.path,
            "split_part": source.split_part,
            "sample_type": {"class": source.sample_class.__name__},
            "num_samples": source.num_samples,
            "num_shards": len(counts_of(source.records)),
            "joined_with": [member.name for member in source.members[1:]],
            "aux": {name: str(reference.path) for name, reference in source.aux.items()},
            "shares": [
                {phase_key(plan.weight_unit): sample, "share": of_all[number]}
                for sample, of_all in zip(samples, shares, strict=True)
            ],
        }
        for number, (source, _) in enumerate(leaves(plan.tree))
    ]


def _tree(tree: Tree, numbers: Iterator[int]) -> dict[str, Any]:
    """The blends of a plan, with the weights (or repetitions) as written; a leaf is the next of its `_sources`."""
    if isinstance(tree, Source):
        return {"source": next(numbers)}
    children, unit = [], "repetitions" if tree.epochized else "weight"
    for weight, child in tree.children:
        written: Any = weight
        if isinstance(weight, WeightSchedule):
            written = [{phase_key(tree.unit): start, "weight": one} for start, one in weight.phases]
        children.append({unit: written, **_tree(child, numbers)})
    return {"label": tree.label, "children": children}


def _media(path: Location) -> dict[str, int] | None:
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
    return {names.get(kind, kind): count for kind, count in kinds}


_CRUDE = {"class": CrudeSample.__name__}


def _sample_type(path: Location) -> dict[str, Any] | None:
    """What a dataset.yaml says of the samples, or the `error` in it; None if there is none."""
    if not path.is_file():
        return None
    try:
        content = load_document(path)
    except ConfigError:
        return {"error": f"{path} is not readable as YAML"}
    if not isinstance(content, dict):
        return {"error": f"{path} holds no mapping"}
    holder = content.get("sample_type", content)
    field_map = content.get("field_map")
    return {
        "class": holder.get("__class__") if isinstance(holder, dict) else None,
        "field_map": field_map if isinstance(field_map, dict) else None,
        "part_filter": content.get("part_filter") or None,
        "sample_loader": content.get("sample_loader") or None,
        "subflavors": content.get("subflavors") or {},
    }


def _described(sample_type: dict[str, Any] | None, file: str) -> Iterator[str]:
    """The class and its fields, in one line."""
    if sample_type is None:
        yield f"not known, there is no {file}"
        return
    if "error" in sample_type:
        yield f"error: {sample_type['error']}"
        return
    yield str(sample_type["class"] or "not known")
    if sample_type["field_map"] is not None:
        yield f"({', '.join(f'{field} ← {part}' for field, part in sample_type['field_map'].items())})"
    if sample_type["part_filter"]:
        yield f", parts {json.dumps(sample_type['part_filter'])}"
    if sample_type["sample_loader"]:
        yield f", made by {sample_type['sample_loader']}"
    if sample_type["subflavors"]:
        yield f", subflavors {json.dumps(sample_type['subflavors'], ensure_ascii=False)}"
