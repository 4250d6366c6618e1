"""`bridge-data prepare`: from a folder of tars to a data set.

All questions are asked and all settings checked against the first samples before anything is written; the indexing
that follows is unattended.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from bridge_data.cli.added_metadata import COSTS, MEDIA, CostJob, column_names, store_columns, store_media
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
    named_executor,
    note,
    only_local,
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
from bridge_data.limits import Limits
from bridge_data.plan.folder_contents import why_no_lines
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """The flags, under Energon's names."""

    split_ratio: str | None
    split_parts: tuple[str, ...]
    exclude: str | None
    sample_type: str | None
    field_map: str | None
    non_interactive: bool
    force_overwrite: bool
    tar_index_only: bool
    shuffle_tars: bool
    dataset_config: str
    num_workers: int | None
    executor: str
    task: ScanTask | Literal["merge"] | None
    rescan: bool
    fix_duplicates: bool
    digest: bool
    store_columns: str | None
    split_config: str
    media: str | None
    orientation: "Orientation"
    costs: str | None
    limits: Limits
    progress: bool

    def __post_init__(self) -> None:
        if self.tar_index_only and (self.media is not None or self.costs is not None):
            raise ConfigError("--tar-index-only renews the index alone: leave --media and --costs out")
        if self.orientation != "ignore" and self.media is None:
            raise ConfigError("--orientation is for the metadata of media: give --media")
        if self.share is not None and self.fix_duplicates:
            raise ConfigError("--task scans a share of the tars: leave --fix-duplicates out")
        if (column_names(self.store_columns) or self.media is not None) and self.share is not None:
            raise ConfigError("--task scans a share of the tars: give --store-columns and --media with --task merge")
        if self.split_ratio is not None and self.split_parts:
            raise ConfigError("--split-ratio and --split-parts: give one of them")
        if self.tar_index_only and self.fix_duplicates:
            raise ConfigError("--fix-duplicates writes the tars again: leave --tar-index-only out")
        if self.tar_index_only and self.exclude is not None:
            raise ConfigError("--tar-index-only works on all shards of the data set: leave --exclude out")
        if self.field_map is not None and self.sample_type is None:
            raise ConfigError("--field-map: give --sample-type too, such as CaptioningSample")
        if Path(self.dataset_config).name != self.dataset_config or not self.dataset_config:
            raise ConfigError(f"--dataset-config {self.dataset_config!r}: expected the name of a file, no path")

    @property
    def share(self) -> ScanTask | None:
        """The share of the work to do; None: all that is left."""
        return None if self.task == "merge" else self.task

    def config_for(self, path: Location) -> PrepareConfig:
        """The settings of the indexing. Reading from a store is not limited by cores."""
        is_bound = self.num_workers is not None or self.executor != "local" or not is_remote(path)
        num_workers = self.num_workers if is_bound else _STORE_WORKERS
        return PrepareConfig(
            exclude=self.exclude,
            rescan=self.rescan,
            fix_duplicates=self.fix_duplicates,
            digest=self.digest,
            limits=self.limits,
            merge=self.task == "merge",
            executor=named_executor(self.executor, num_workers),
        )


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
def prepare(path: Location, trusted_modules: tuple[str, ...], trust_dataset_code: bool, **flags: Any) -> None:
    """Prepare the tars below the folder PATH, the file PATH.jsonl or the joins of the metadataset PATH.yaml.

    Writes .nv-meta and an index next to each shard, in Megatron-Energon's format, and asks for missing settings: the
    split, the sample class and the parts of its fields. For a JSONL file, writes an index next to it, and a split if
    given: --split-ratio 8,1,1, or ranges such as --split-parts train:0..900 --split-parts val:900..end. For a
    metadataset, writes the indexes of its joins next to it. A killed run resumes where it stopped. A folder of tars in
    an object store, s3://bucket/folder, is prepared there. --media and --costs are stored in the same way; PATH may be
    prepared already, or be a folder of files for --media, or any data for --costs.
    """
    options = _Options(**flags)
    trust = {"trusted_modules": trusted_modules, "trust_dataset_code": trust_dataset_code}
    if any(trust.values()) and options.costs is None:
        raise ConfigError("--trust is for --costs: nothing else here runs code")
    store = None
    if options.media is not None:
        only_local(path)
        store = MEDIA.get("--media")(options.media, options.orientation)
    if _adds_alone(path, options):
        why = f"is for data that are prepared now, but {path} need not be: give --force-overwrite, too, if they shall"
        refuse_others(why, flags, _ADDING)
    elif not _prepare(path, options, flags):
        return
    if store is not None:
        store_media(only_local(path), store, options.config_for(path), options.progress)
    if options.costs is not None:
        job = CostJob(
            executor=options.config_for(path).scanner,
            task=options.share,
            rescan=options.rescan,
            progress=options.progress,
            opening=trust | {name: flags[name] for name in ("split_config", "dataset_config") if is_given(name)},
        )
        COSTS.get(needed_by="--costs")(path, options.costs, job)


_ADDING = frozenset(
    {
        *("media", "orientation", "costs", "num_workers", "executor", "task", "rescan", "dataset_config"),
        *("split_config", "limits", "progress", "non_interactive"),
    }
)
"""The options for what is added to data."""


def _adds_alone(path: Location, options: _Options) -> bool:
    """Whether --media and --costs are all there is to do: the data are prepared, or need not be."""
    if (options.media is None and options.costs is None) or options.force_overwrite or options.task == "merge":
        return False
    return not path.is_dir() or is_prepared(path) or not has_tars(path)


def _prepare(path: Location, options: _Options, flags: Mapping[str, Any]) -> bool:
    """Prepare what is at `path`; whether it is prepared now."""
    if path.name.endswith(JSONL_SUFFIX):
        from bridge_data.cli.prepare_files import prepare_lines  # imports what folders of tars do not need

        return prepare_lines(only_on_disk(path), flags)
    if path.suffix in (".yaml", ".yml"):
        from bridge_data.cli.prepare_files import prepare_joins

        prepare_joins(only_on_disk(path), flags)
        return True
    if options.media is not None or options.store_columns is not None:
        only_on_disk(path)
    config = options.config_for(path)
    if path.is_file():
        raise ConfigError(
            why_no_lines(str(path))
            or f"{path}: expected a folder of tars or a .jsonl file; only such data sets need preparation"
        )
    check_is_whole(path)
    if options.share is not None:
        _scan(path, options.share, config, options.progress)
        return False
    if options.tar_index_only:
        done = _indexed(partial(refresh_index, path, config), options)
        click.echo(f"{path}: index of {counted(len(done.shard_counts), 'shard')} written")
        store_columns(path, column_names(options.store_columns), config, options.progress)
        return True
    names = find_shards(path, options.exclude)
    if not answers(lambda: _may_write(path, options), "give --force-overwrite to prepare again without a question"):
        click.echo(f"{path}: left unchanged")
        return False
    first = FirstSamples(path, names)
    click.echo(f"{path}: {counted(len(names), 'shard')}, {spanned(names)}; parts: {listed(first.parts)}")
    split, wanted = answers(lambda: _split(options), _NO_QUESTIONS)
    unfilled = [part for part, shards in split(names).items() if part in wanted and not shards]
    content = answers(lambda: _dataset_yaml(options, first), _NO_QUESTIONS)
    if content is not None:
        first.check(content)
    definitions = {} if content is None else {options.dataset_config: content}
    writing = partial(prepare_shards, split_config=options.split_config, definitions=definitions)
    done = _indexed(partial(writing, path, split, config), options)
    click.echo()
    click.echo(split_table(split_counts(PreparedDataset.open(path, options.limits), options.split_config)))
    store_columns(path, column_names(options.store_columns), config, options.progress)
    if content is not None:
        from bridge_data.check.missing_parts import count_parts  # imports numpy

        field_map = read_definition(content).field_map
        for one in count_parts(PreparedDataset.open(path, options.limits).all_shards(), field_map, max_samples=None):
            note(str(one))
    if unfilled:
        note(f"no shard for {' and '.join(unfilled)}: shards are not divided, and there are {len(names)}")
    if content is not None or (path / META_FOLDER / options.dataset_config).is_file():
        click.echo(f"Done\nNext: {bridge_command('info', path, '--samples', 3)}")
        return True
    name = options.dataset_config
    note(f"indexed, but without {name}, which says what the samples are: nothing can load them yet")
    click.echo(f"Next: write {name}, or {bridge_command('prepare', path, *_with_class(options, first))}")
    return True


def _with_class(options: _Options, first: FirstSamples) -> list[str]:
    """The options with which `prepare` does the same again, and also writes the dataset.yaml that probably fits."""
    words = ["--force-overwrite"]
    for part in options.split_parts:
        words += ["--split-parts", part]
    if options.split_ratio is not None:
        words += ["--split-ratio", options.split_ratio]
    if options.shuffle_tars:
        words.append("--shuffle-tars")
    if options.split_ratio is not None or options.split_parts:
        words.append("--non-interactive")
    if options.exclude is not None:
        words += ["--exclude", options.exclude]
    if options.split_config != SPLIT_YAML:
        words += ["--split-config", options.split_config]
    if options.dataset_config != DATASET_YAML:
        words += ["--dataset-config", options.dataset_config]
    sample_type, field_map = first.likely_definition()
    fields = ["--field-map", json.dumps(field_map, ensure_ascii=False)] if field_map else []
    return [*words, "--sample-type", sample_type, *fields]


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


def _may_write(path: Location, options: _Options) -> bool:
    if options.force_overwrite or not is_prepared(path):
        return True
    if options.non_interactive:
        raise ConfigError(
            f"{path}: has been prepared already; give --force-overwrite to do it again, "
            "or --tar-index-only to renew its indexes"
        )
    return click.confirm(f"{path} has been prepared already. Do you want to do it again?")


def _split(options: _Options) -> tuple[Split, list[str]]:
    """(rule of the split, parts that must have shards)."""
    if options.split_parts:
        patterns = [parse_pattern(text) for text in options.split_parts]
        return partial(split_by_patterns, patterns=patterns, limits=options.limits), [part for part, _ in patterns]
    if options.split_ratio is None and options.non_interactive:
        raise ConfigError("--non-interactive: give --split-ratio 8,1,1, or --split-parts")
    ratio = parse_ratio(ask_ratio() if options.split_ratio is None else options.split_ratio)
    wanted = [part for part, share in zip(RATIO_PARTS, ratio, strict=True) if share]
    return partial(split_by_ratio, ratio=ratio, shuffle=options.shuffle_tars), wanted


def _dataset_yaml(options: _Options, first: FirstSamples) -> dict[str, Any] | None:
    """The content of dataset.yaml; None if it is not requested."""
    if options.sample_type is None and options.non_interactive:
        return None
    sample_type = ask_sample_type() if options.sample_type is None else find_sample_type(options.sample_type)
    if sample_type == CRUDE:
        if options.field_map is not None:
            raise ConfigError(f"--field-map: {CRUDE} has no fields; leave it out")
        return definition(CRUDE, {})
    if options.field_map is not None:
        return definition(sample_type, parse_field_map(options.field_map))
    if options.non_interactive:
        fields = ",".join(f"{field.name}=…" for field in fields_of(SAMPLE_TYPES[sample_type]) if field.required)
        raise ConfigError(
            f"--sample-type {sample_type} needs --field-map {fields}; the parts there are: {listed(first.parts, 20)}"
        )
    return definition(sample_type, ask_field_map(sample_type, first))


def _indexed(action: Callable[..., Preparation], options: _Options) -> Preparation:
    """Run the indexing with a progress bar, and print what it did."""
    started = time.monotonic()
    with progress_bar("indexing", "shards", shown=options.progress) as on_progress:
        done = action(on_progress=on_progress)
    unchanged = len(done.shard_counts) - done.num_scanned
    click.echo(
        f"indexed {counted(done.num_samples, 'sample')}, {sized(done.num_bytes)}, in {time.monotonic() - started:.1f} s"
        + (f"; {counted(unchanged, 'shard')} had not changed" if unchanged else "")
    )
    for text in done.notes:
        note(text)
    return done
