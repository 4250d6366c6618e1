"""`bridge-data prepare`: from a folder of tars to a data set.

All questions are asked and all settings checked against the first samples before anything is written; the indexing
that follows is unattended.
"""

import dataclasses
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge_data.cli.prepare_metadata_command import column_names, media_options, store_columns, store_media
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
    OUTPUT_ON_DISK,
    answers,
    executor_option,
    limits_option,
    named_executor,
    note,
    only_on_disk,
    progress_bar,
    progress_option,
    setting,
    sized,
    spanned,
    split_counts,
    split_table,
)
from bridge_data.data.metadata import DATASET_YAML, JSONL_SUFFIX, META_FOLDER, SPLIT_YAML, is_prepared
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
    from bridge_data.prepare import MediaRule


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
    skip_dataset_yaml: bool
    dataset_yaml_name: str
    num_workers: int | None
    executor: str
    task_index: int | None
    num_tasks: int | None
    merge: bool
    rescan: bool
    fix_duplicates: bool
    digest: bool
    columns: str | None
    split_config: str
    tmp_path: Path | None
    media_metadata_by_extension: bool
    media_metadata_by_header: bool
    media_metadata_by_glob: str | None
    media_orientation: "Orientation"
    limits: Limits
    progress: bool

    def __post_init__(self) -> None:
        if self.media_rule is not None and self.tar_index_only:
            raise ConfigError(
                "--tar-index-only renews the index alone; run `bridge-data prepare-media` for media metadata"
            )
        if (self.task_index is None) != (self.num_tasks is None):
            raise ConfigError("--task-index and --num-tasks: give both, or none")
        if self.task is not None and (self.merge or self.fix_duplicates):
            raise ConfigError("--task-index scans a share of the tars: leave --merge and --fix-duplicates out")
        if column_names(self.columns) and self.task is not None:
            raise ConfigError("--columns: values are read with --merge; give it there, and not with --task-index")
        if self.split_ratio is not None and self.split_parts:
            raise ConfigError("--split-ratio and --split-parts: give one of them")
        if self.tar_index_only and self.fix_duplicates:
            raise ConfigError("--fix-duplicates writes the tars again: leave --tar-index-only out")
        if self.tar_index_only and self.exclude is not None:
            raise ConfigError("--tar-index-only works on all shards of the data set: leave --exclude out")
        if self.field_map is not None and self.sample_type is None:
            raise ConfigError("--field-map: give --sample-type too, such as CaptioningSample")
        if Path(self.dataset_yaml_name).name != self.dataset_yaml_name or not self.dataset_yaml_name:
            raise ConfigError(f"--dataset-yaml-name {self.dataset_yaml_name!r}: expected the name of a file, no path")

    @property
    def task(self) -> ScanTask | None:
        """The share of the tars to scan; None for the whole job."""
        if self.task_index is None or self.num_tasks is None:
            return None
        return ScanTask(self.task_index, self.num_tasks)

    @property
    def media_rule(self) -> "MediaRule | None":
        """Which files are media; None if media metadata are not requested."""
        flags = self.media_metadata_by_glob, self.media_metadata_by_header, self.media_metadata_by_extension
        if flags == (None, False, False):
            if self.media_orientation != "ignore":
                raise ConfigError("--media-orientation is for media metadata: give a --media-metadata-by-... flag")
            return None
        from bridge_data.prepare import MediaRule  # imports torch

        return MediaRule.parse(*flags, self.media_orientation)

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
            merge=self.merge,
            executor=named_executor(self.executor, num_workers),
            scratch=self.tmp_path,
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
@click.option("--sample-type", metavar="CLASS", help="The sample class, such as CaptioningSample or CrudeWebdataset.")
@click.option("--field-map", metavar="JSON", help="""As in '{"image": "jpg", "caption": "json[caption]"}'.""")
@click.option("--non-interactive", is_flag=True, help="Ask nothing.")
@click.option("--force-overwrite", is_flag=True, help="Prepare prepared data again, without asking.")
@click.option("--tar-index-only", is_flag=True, help="Rebuild the indexes only; split and sample class stay.")
@click.option("--shuffle-tars", is_flag=True, help="Shuffle the shards before --split-ratio divides them.")
@click.option("--skip-dataset-yaml", is_flag=True, help="Write no dataset.yaml.")
@click.option("--dataset-yaml-name", metavar="NAME", default=DATASET_YAML, show_default=True, help="Its file name.")
@setting("--num-workers", help="Processes that read shards.", more="[default: one a core, at most 16]")
@executor_option
@click.option("--task-index", type=int, metavar="I", help="Only scan share I, from 0 on, of --num-tasks: see --merge.")
@click.option("--num-tasks", type=int, metavar="N", help="The number of shares, such as the tasks of a Slurm array.")
@click.option(
    "--merge",
    is_flag=True,
    help="Prepare from what the tasks have scanned; if tasks have not finished, an error names them.",
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
    help="Read every part, and store a digest of it (CRC-32), which lint checks, and get_train_dataset if asked to.",
)
@click.option(
    "--columns",
    metavar="NAMES",
    multiple=True,
    callback=lambda context, parameter, given: ",".join(given) if given else None,
    help="Store fields of JSON parts, such as json.score,json.lang, as columns of samples for `where`. Repeatable.",
)
@click.option("--split-config", metavar="NAME", default=SPLIT_YAML, show_default=True, help="The file of the split.")
@click.option("--tmp-path", type=OUTPUT_ON_DISK, help="Where files for an object store are made.  [default: $TMPDIR]")
@media_options
@limits_option
@progress_option
def prepare(path: Location, **flags: Any) -> None:
    """Prepare the tars below the folder PATH, the file PATH.jsonl or the joins of the metadataset PATH.yaml.

    Writes .nv-meta and an index next to each shard, in Megatron-Energon's format, and asks for missing settings: the
    split, the sample class and the parts of its fields. For a JSONL file, writes an index next to it, and a split if
    given: --split-ratio 8,1,1, or ranges such as --split-parts train:0..900 --split-parts val:900..end. For a
    metadataset, writes the indexes of its joins next to it. A killed run resumes where it stopped. A folder of tars in
    an object store, s3://bucket/folder, is prepared there.
    """
    if path.name.endswith(JSONL_SUFFIX):
        from bridge_data.cli.prepare_files import prepare_lines  # imports what folders of tars do not need

        prepare_lines(only_on_disk(path), flags)
        return
    if path.suffix in (".yaml", ".yml"):
        from bridge_data.cli.prepare_files import prepare_joins

        prepare_joins(only_on_disk(path), flags)
        return
    options = _Options(**flags)
    if options.media_rule is not None or options.columns is not None:
        only_on_disk(path)
    config = options.config_for(path)
    if path.is_file():
        raise ConfigError(
            why_no_lines(str(path))
            or f"{path}: expected a folder of tars or a .jsonl file; only such data sets need preparation"
        )
    check_is_whole(path)
    if options.task is not None:
        _scan(path, options.task, config, options.progress)
        return
    if options.tar_index_only:
        done = _indexed(partial(refresh_index, path, config), options)
        click.echo(f"{path}: index of {counted(len(done.shard_counts), 'shard')} written")
        store_columns(path, column_names(options.columns), config, options.progress)
        return
    names = find_shards(path, options.exclude)
    if not answers(lambda: _may_write(path, options), "give --force-overwrite to prepare again without a question"):
        click.echo(f"{path}: left unchanged")
        return
    first = FirstSamples(path, names)
    click.echo(f"{path}: {counted(len(names), 'shard')}, {spanned(names)}; parts: {listed(first.parts)}")
    split, wanted = answers(lambda: _split(options), _NO_QUESTIONS)
    unfilled = [part for part, shards in split(names).items() if part in wanted and not shards]
    content = None if options.skip_dataset_yaml else answers(lambda: _dataset_yaml(options, first), _NO_QUESTIONS)
    if content is not None:
        first.check(content)
    definitions = {} if content is None else {options.dataset_yaml_name: content}
    writing = partial(prepare_shards, split_config=options.split_config, definitions=definitions)
    done = _indexed(partial(writing, path, split, config), options)
    click.echo()
    click.echo(split_table(split_counts(PreparedDataset.open(path, options.limits), options.split_config)))
    store_columns(path, column_names(options.columns), config, options.progress)
    if options.media_rule is not None:
        store_media(only_on_disk(path), options.media_rule, config, options.progress)
    if content is not None:
        from bridge_data.check.missing_parts import count_parts  # imports numpy

        field_map = read_definition(content).field_map
        for one in count_parts(PreparedDataset.open(path, options.limits).all_shards(), field_map, max_samples=None):
            note(str(one))
    if unfilled:
        note(f"no shard for {' and '.join(unfilled)}: shards are not divided, and there are {len(names)}")
    if content is not None or (path / META_FOLDER / options.dataset_yaml_name).is_file():
        click.echo(f"Done\nNext: {bridge_command('preview', path)}")
        return
    name = options.dataset_yaml_name
    note(f"indexed, but without {name}, which says what the samples are: nothing can load them yet")
    click.echo(f"Next: write {name}, or {bridge_command('prepare', path, *_with_class(options, first))}")


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
    if options.dataset_yaml_name != DATASET_YAML:
        words += ["--dataset-yaml-name", options.dataset_yaml_name]
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
        + ". Give --merge when all have"
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
        fields = ", ".join(f'"{field.name}": "…"' for field in fields_of(SAMPLE_TYPES[sample_type]) if field.required)
        raise ConfigError(
            f"--sample-type {sample_type} needs --field-map '{{{fields}}}'; the parts there are: "
            f"{listed(first.parts, 20)}"
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
