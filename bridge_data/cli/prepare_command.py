"""`bridge-data prepare`: from a folder of tars to a data set.

All questions are asked and all settings checked against the first samples before anything is written; the indexing
that follows is unattended.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge_data.cli.sample_types import (
    FirstSamples,
    ask_field_map,
    ask_ratio,
    ask_sample_type,
    fields_of,
    parse_field_map,
)
from bridge_data.cli.terminal import (
    LOCATION,
    answers,
    executor_option,
    is_given,
    limits_option,
    note,
    only_on_disk,
    progress_bar,
    progress_option,
    refuse_others,
    setting,
    sized,
    spanned,
    split_counts,
    split_table,
    trust_options,
)
from bridge_data.data.metadata import DATASET_YAML, JSONL_SUFFIX, META_FOLDER, SPLIT_YAML, has_tars, is_prepared
from bridge_data.data.prepared import PreparedDataset
from bridge_data.errors import ConfigError, bridge_command, counted, listed
from bridge_data.extensions import Feature
from bridge_data.limits import Limits
from bridge_data.plan.folder_contents import why_no_lines
from bridge_data.prepare.executors import LOCAL, Executor, executor_named
from bridge_data.prepare.sample_definitions import (
    CRUDE,
    SAMPLE_TYPES,
    definition,
    find_sample_type,
    read_definition,
)
from bridge_data.prepare.scan_results import ScanTask
from bridge_data.prepare.splits import RATIO_PARTS, parse_pattern, parse_ratio, split_by_patterns, split_by_ratio
from bridge_data.prepare.tars import (
    Preparation,
    PrepareConfig,
    Split,
    check_is_whole,
    find_shards,
    refresh_index,
    scan_share,
)
from bridge_data.prepare.tars import prepare as prepare_shards
from bridge_data.storage import Location, is_remote

if TYPE_CHECKING:
    from bridge_data.decode.image import Orientation


_STORE_WORKERS = 16
"""Shards of a store that are read concurrently."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AddJob:
    """How something is added to data: `task` is the share to do (None: all of it); with `rescan`, what was added before
    is not used; `orientation` is that of images; `opening` has options of `load_dataset`."""

    executor: "Executor"
    task: ScanTask | None
    rescan: bool
    limits: Limits
    orientation: "Orientation"
    progress: bool
    opening: Mapping[str, Any]


Adder = Callable[[Location, str, AddJob], Callable[[], None]]
"""From a path and the text of an option, which are checked, to what does it, and prints what it did."""

_ADDERS: Mapping[str, Feature[Adder]] = {
    "store_columns": Feature("json_columns"),
    "media": Feature("media_metadata"),
    "costs": Feature("store_costs"),
}
"""By the option, what adds to data: fields of JSON parts, metadata of media, what a task encoder makes of samples."""


def _check(flags: Mapping[str, Any]) -> None:
    """Refuse options that contradict each other."""
    is_share, index_only = isinstance(flags["task"], ScanTask), flags["tar_index_only"]
    adds, costs, config = flags["media"] is not None, flags["costs"] is not None, flags["dataset_config"]
    faults = {
        "--tar-index-only renews the index alone: leave --media and --costs out": index_only and (adds or costs),
        "--orientation is for the metadata of media: give --media": flags["orientation"] != "ignore" and not adds,
        "--task scans a share of the tars: leave --fix-duplicates out": is_share and flags["fix_duplicates"],
        "--task scans a share of the tars: give --store-columns and --media with --task merge": is_share
        and (adds or flags["store_columns"] is not None),
        "--split-ratio and --split-parts: give one of them": flags["split_ratio"] is not None and flags["split_parts"],
        "--fix-duplicates writes the tars again: leave --tar-index-only out": index_only and flags["fix_duplicates"],
        "--tar-index-only works on all shards of the data set: leave --exclude out": index_only
        and flags["exclude"] is not None,
        "--field-map: give --sample-type too, such as CaptioningSample": flags["field_map"] is not None
        and flags["sample_type"] is None,
        f"--dataset-config {config!r}: expected the name of a file, no path": not config or Path(config).name != config,
        "--trust is for --costs: nothing else here runs code": not costs
        and (flags["trusted_modules"] or flags["trust_dataset_code"]),
    }
    for message, is_so in faults.items():
        if is_so:
            raise ConfigError(message)


def _config(path: Location, flags: Mapping[str, Any]) -> PrepareConfig:
    """The settings of the indexing. Reading from a store is not limited by cores."""
    num_workers, executor = flags["num_workers"], flags["executor"]
    if num_workers is None and executor == LOCAL and is_remote(path):
        num_workers = _STORE_WORKERS
    names = ("exclude", "rescan", "fix_duplicates", "digest", "limits")
    given = {name: flags[name] for name in names}
    return PrepareConfig(**given, merge=flags["task"] == "merge", executor=executor_named(executor, num_workers))


@click.command()
@click.argument("path", type=LOCATION)
@click.option("--split-ratio", metavar="8,1,1", help="Shares of train, val and test, counted in shards.")
@click.option(
    "--split-parts",
    metavar="NAME:PATTERN",
    multiple=True,
    help="The shards of a part, such as 'train:shards/{000..099}.tar': braces, then a regular expression. Repeatable.",
)
@click.option("--exclude", metavar="REGEX", help="Leave out shards, and other data, if it is found in their path.")
@setting("--sample-type")
@setting("--field-map")
@setting("--non-interactive")
@setting("--force-overwrite", help="Prepare prepared data again, without asking.")
@click.option("--tar-index-only", is_flag=True, help="Rebuild the indexes only; split and sample class stay.")
@click.option("--shuffle-tars", is_flag=True, help="Shuffle the shards before --split-ratio divides them.")
@setting("--num-workers", help="Processes that read shards.", more="[default: one a core, at most 16]")
@executor_option
@click.option(
    "--task",
    metavar="I/N",
    callback=lambda context, parameter, given: given if given in (None, "merge") else ScanTask.parse(given),
    help="Only do share I, from 0 on, of N, such as the tasks of a Slurm array; merge: go on from what all have done.",
)
@click.option("--rescan", is_flag=True, help="Read all shards, even those unchanged since last time.")
@click.option(
    "--fix-duplicates",
    is_flag=True,
    help="If samples of several tars have the same key, rewrite the tars, with their members below folders of the "
    "tars' names.",
)
@click.option(
    "--digest",
    is_flag=True,
    help="Read every part, and store a digest of it (CRC-32) for `check`, and for get_train_dataset if asked to.",
)
@click.option(
    "--store-columns",
    metavar="NAMES",
    multiple=True,
    callback=lambda context, parameter, given: ",".join(given) if given else None,
    help="Store fields of JSON parts, such as json.score,json.lang, as columns of samples for `where`. Repeatable.",
)
@click.option(
    "--media",
    metavar="WHICH",
    help="Store sizes, lengths and rates of media: of files with the usual extensions (extension), of those known by "
    "their first bytes (header), or of those that match '*.jpg,clips/*.mp4'.",
)
@setting("--orientation", help="apply: store the sizes that images have after EXIF orientation.")
@click.option(
    "--costs",
    metavar="ENCODER",
    help="Store what your task encoder makes of each sample: MODULE:NAME of the encoder, or the config of the run.",
)
@setting("--split-config", default=SPLIT_YAML, help="The file of the split in .nv-meta.")
@setting("--dataset-config", default=DATASET_YAML, help="The file of the samples there.")
@trust_options
@limits_option
@progress_option
def prepare(path: Location, **flags: Any) -> None:
    """Prepare the tars below the folder PATH, the file PATH.jsonl or the joins of the metadataset PATH.yaml.

    Writes .nv-meta and an index next to each shard, in Megatron-Energon's format, and asks for missing settings: the
    split, the sample class and the parts of its fields. For a JSONL file, writes an index next to it, and a split if
    given: --split-ratio 8,1,1, or ranges such as --split-parts train:0..900 --split-parts val:900..end. For a
    metadataset, writes the indexes of its joins next to it. A killed run resumes where it stopped. A folder of tars in
    an object store, s3://bucket/folder, is prepared there. --media and --costs are stored in the same way; PATH may be
    prepared already, or be a folder of files for --media, or any data for --costs.
    """
    _check(flags)
    config, is_share = _config(path, flags), isinstance(flags["task"], ScanTask)
    kept = {name: flags[name] for name in ("rescan", "limits", "orientation", "progress")}
    opening = {name: flags[name] for name in ("trusted_modules", "trust_dataset_code")}
    opening |= {name: flags[name] for name in ("split_config", "dataset_config") if is_given(name)}
    job = AddJob(executor=config.scanner, task=flags["task"] if is_share else None, opening=opening, **kept)
    given = {name: feature for name, feature in _ADDERS.items() if flags[name] is not None}
    adding = [feature.get(_option(name))(path, flags[name], job) for name, feature in given.items()]
    if _adds_alone(path, flags):
        why = f"is for data that are prepared now, but {path} need not be: give --force-overwrite, too, if they shall"
        refuse_others(why, flags, _ADDING)
        last: Sequence[str] | None = ()
    else:
        last = _prepare(path, config, flags)
    if last is not None:
        for add in adding:
            add()
        for line in last:
            click.echo(line)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_ADDING = frozenset(
    {
        "media",
        "orientation",
        "costs",
        "num_workers",
        "executor",
        "task",
        "rescan",
        "dataset_config",
        "split_config",
        "limits",
        "progress",
        "non_interactive",
        "trusted_modules",
    }
)
"""The options for what is added to data."""


def _adds_alone(path: Location, flags: Mapping[str, Any]) -> bool:
    """Whether --media and --costs are all there is to do: the data are prepared, or need not be."""
    if (flags["media"] is None and flags["costs"] is None) or flags["force_overwrite"] or flags["task"] == "merge":
        return False
    return not path.is_dir() or is_prepared(path) or not has_tars(path)


def _prepare(path: Location, config: PrepareConfig, flags: Mapping[str, Any]) -> Sequence[str] | None:
    """Prepare what is at `path`. Returns what is to be said in the end; None if it is not prepared."""
    if path.name.endswith(JSONL_SUFFIX):
        from bridge_data.cli.prepare_files import prepare_lines  # imports what folders of tars do not need

        return () if prepare_lines(only_on_disk(path), flags) else None
    if path.suffix in (".yaml", ".yml"):
        from bridge_data.cli.prepare_files import prepare_joins

        prepare_joins(only_on_disk(path), flags)
        return ()
    if path.is_file():
        raise ConfigError(
            why_no_lines(str(path))
            or f"{path}: expected a folder of tars or a .jsonl file; only such data sets need preparation. Of others, "
            f"`{bridge_command('convert', path, 'DST')}` makes one, or they are read in place"
        )
    check_is_whole(path)
    if isinstance(flags["task"], ScanTask):
        _scan(path, flags["task"], config, flags["progress"])
        return None
    if flags["tar_index_only"]:
        done = _indexed(partial(refresh_index, path, config), flags)
        click.echo(f"{path}: index of {counted(len(done.shard_counts), 'shard')} written")
        return ()
    names = find_shards(path, flags["exclude"])
    if not answers(lambda: _may_write(path, flags), "give --force-overwrite to prepare again without a question"):
        click.echo(f"{path}: left unchanged")
        return None
    first = FirstSamples(path, names)
    click.echo(f"{path}: {counted(len(names), 'shard')}, {spanned(names)}; parts: {listed(first.parts)}")
    split, wanted = answers(lambda: _split(flags), _NO_QUESTIONS)
    unfilled = [part for part, shards in split(names).items() if part in wanted and not shards]
    content = answers(lambda: _dataset_yaml(flags, first), _NO_QUESTIONS)
    if content is not None:
        first.check(content)
    definitions = {} if content is None else {flags["dataset_config"]: content}
    writing = partial(prepare_shards, split_config=flags["split_config"], definitions=definitions)
    done = _indexed(partial(writing, path, split, config), flags)
    click.echo()
    click.echo(split_table(split_counts(PreparedDataset.open(path, flags["limits"]), flags["split_config"])))
    if content is not None:
        from bridge_data.plan.missing_parts import count_parts  # imports numpy

        field_map = read_definition(content).field_map
        for one in count_parts(PreparedDataset.open(path, flags["limits"]).all_shards(), field_map, max_samples=None):
            note(str(one))
    if unfilled:
        note(f"no shard for {' and '.join(unfilled)}: shards are not divided, and there are {len(names)}")
    if content is not None or (path / META_FOLDER / flags["dataset_config"]).is_file():
        return "Done", f"Next: {bridge_command('info', path, '--samples', 3)}"
    name = flags["dataset_config"]
    note(f"indexed, but without {name}, which says what the samples are: nothing can load them yet")
    return [f"Next: write {name}, or {bridge_command('prepare', path, *_with_class(flags, first))}"]


def _with_class(flags: Mapping[str, Any], first: FirstSamples) -> list[str]:
    """The options with which `prepare` does the same again, and also writes the dataset.yaml that probably fits."""
    words = ["--force-overwrite"]
    for name in filter(is_given, _AGAIN):
        several = flags[name] if isinstance(flags[name], tuple) else [flags[name]]
        words += [word for one in several for word in ([_option(name)] if one is True else [_option(name), one])]
    has_split = flags["split_ratio"] is not None or flags["split_parts"]
    sample_type, field_map = first.likely_definition()
    fields = ["--field-map", json.dumps(field_map, ensure_ascii=False)] if field_map else []
    return [*words, *(["--non-interactive"] if has_split else []), "--sample-type", sample_type, *fields]


_AGAIN = ("split_parts", "split_ratio", "shuffle_tars", "exclude", "split_config", "dataset_config")


_NO_QUESTIONS = (
    "give --non-interactive with --split-ratio 8,1,1, and --sample-type with --field-map if the sample class is known"
)


def _scan(path: Location, task: ScanTask, config: PrepareConfig, progress: bool) -> None:
    """Scan a share with a progress bar, and print what was done."""
    with progress_bar("scanning", "shards", shown=progress) as on_progress:
        num_shards, num_scanned, notes = scan_share(path, task, config, on_progress=on_progress)
    before = num_shards - num_scanned
    click.echo(
        f"{path}: task {task.index} of {task.num_tasks} has scanned {counted(num_scanned, 'shard')}"
        + (f"; {counted(before, 'shard')} had been scanned before" if before else "")
        + ". Give --task merge when all have"
    )
    for text in notes:
        note(text)


def _may_write(path: Location, flags: Mapping[str, Any]) -> bool:
    if flags["force_overwrite"] or not is_prepared(path):
        return True
    if flags["non_interactive"]:
        raise ConfigError(
            f"{path}: has been prepared already; give --force-overwrite to do it again, "
            "or --tar-index-only to renew its indexes"
        )
    return click.confirm(f"{path} has been prepared already. Do you want to do it again?")


def _split(flags: Mapping[str, Any]) -> tuple[Split, list[str]]:
    """(rule of the split, parts that must have shards)."""
    if flags["split_parts"]:
        patterns = [parse_pattern(text) for text in flags["split_parts"]]
        return partial(split_by_patterns, patterns=patterns, limits=flags["limits"]), [part for part, _ in patterns]
    if flags["split_ratio"] is None and flags["non_interactive"]:
        raise ConfigError("--non-interactive: give --split-ratio 8,1,1, or --split-parts")
    ratio = parse_ratio(ask_ratio() if flags["split_ratio"] is None else flags["split_ratio"])
    wanted = [part for part, share in zip(RATIO_PARTS, ratio, strict=True) if share]
    return partial(split_by_ratio, ratio=ratio, shuffle=flags["shuffle_tars"]), wanted


def _dataset_yaml(flags: Mapping[str, Any], first: FirstSamples) -> dict[str, Any] | None:
    """The content of dataset.yaml; None if it is not requested."""
    if flags["sample_type"] is None and flags["non_interactive"]:
        return None
    sample_type = ask_sample_type() if flags["sample_type"] is None else find_sample_type(flags["sample_type"])
    if sample_type == CRUDE:
        if flags["field_map"] is not None:
            raise ConfigError(f"--field-map: {CRUDE} has no fields; leave it out")
        return definition(CRUDE, {})
    if flags["field_map"] is not None:
        return definition(sample_type, parse_field_map(flags["field_map"]))
    if flags["non_interactive"]:
        fields = ",".join(f"{field.name}=…" for field in fields_of(SAMPLE_TYPES[sample_type]) if field.required)
        raise ConfigError(
            f"--sample-type {sample_type} needs --field-map {fields}; the parts there are: {listed(first.parts, 20)}"
        )
    return definition(sample_type, ask_field_map(sample_type, first))


def _indexed(action: Callable[..., Preparation], flags: Mapping[str, Any]) -> Preparation:
    """Run the indexing with a progress bar, and print what it did."""
    started = time.monotonic()
    with progress_bar("indexing", "shards", shown=flags["progress"]) as on_progress:
        done = action(on_progress=on_progress)
    unchanged = len(done.shard_counts) - done.num_scanned
    click.echo(
        f"indexed {counted(done.num_samples, 'sample')}, {sized(done.num_bytes)}, in {time.monotonic() - started:.1f} s"
        + (f"; {counted(unchanged, 'shard')} had not changed" if unchanged else "")
    )
    for text in done.notes:
        note(text)
    return done
