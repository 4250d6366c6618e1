"""`bridge-data prepare` of a file: `data.jsonl`, or the joins of the metadataset `blend.yaml`.

The index of a JSONL file is rebuilt each time. Its split is written only on request; without one, each split part is
the whole file, as for Energon.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from bridge_data.cli.terminal import answers, note, progress_bar, refuse_others, sized, table
from bridge_data.data.jsonl_file import split_path
from bridge_data.data.subset import gaps
from bridge_data.errors import ConfigError, counted
from bridge_data.plan.opening import JOIN_INDEXES
from bridge_data.prepare.jsonl_lines import (
    LineSplit,
    parse_line_range,
    prepare_jsonl,
    split_lines_by_ranges,
)
from bridge_data.prepare.sample_definitions import CRUDE, find_sample_type
from bridge_data.prepare.splits import parse_ratio, ratio_bounds
from bridge_data.prepare.tars import PrepareConfig

_LINE_FLAGS = frozenset(
    {
        "costs",
        "trusted_modules",
        "split_ratio",
        "split_parts",
        "sample_type",
        "non_interactive",
        "force_overwrite",
        "tar_index_only",
        "num_workers",
        "rescan",
        "limits",
        "progress",
    }
)

_JOIN_FLAGS = frozenset({"costs", "trusted_modules", "non_interactive", "num_workers", "limits", "progress"})


def prepare_lines(path: Path, flags: Mapping[str, Any]) -> bool:
    """Prepare the JSONL file `path`, and print what it holds; `flags` are those of `prepare`. Whether it was done.

    Raises:
        ConfigError: if a flag is given that means nothing here, or does not fit.
        DatasetError: if lines are damaged.
    """
    refuse_others(f"is for folders of tars, but {path} is a JSONL file", flags, _LINE_FLAGS)
    _check_flags(flags)
    split = _line_split(flags)
    if split is not None and split_path(path).is_file() and not flags["force_overwrite"]:
        if flags["non_interactive"]:
            raise ConfigError(f"{split_path(path)}: already exists; give --force-overwrite to write another split")
        question = f"{split_path(path)} already exists. Do you want to write another split?"
        if not answers(lambda: click.confirm(question), "give --force-overwrite to write another split"):
            click.echo(f"{path}: left unchanged")
            return False
    config = PrepareConfig() if flags["num_workers"] is None else PrepareConfig(num_workers=flags["num_workers"])
    with progress_bar("indexing", "blocks", shown=flags["progress"]) as on_progress:
        done = prepare_jsonl(
            path, split, num_workers=config.num_workers, limits=flags["limits"], on_progress=on_progress
        )
    click.echo(f"{path}: {counted(done.num_samples, 'sample')}, {sized(done.num_bytes)}")
    if done.num_blank:
        note(f"{counted(done.num_blank, 'blank line')}: samples are numbered without them")
    if done.parts is None:
        note("no split: each split part is the whole file; give --split-ratio 8,1,1 for parts")
        click.echo(f"Done. Found {counted(done.num_samples, 'sample')}.")
        return True
    click.echo()
    rows = [[part, f"{start:,}", f"{end:,}", f"{end - start:,}"] for part, (start, end) in done.parts.items()]
    click.echo(table(["split part", "from", "to", "samples"], rows))
    for count, where in zip(gaps(done.parts.values(), done.num_samples), ("no part", "several parts"), strict=True):
        if count:
            note(f"{counted(count, 'sample')} in {where} of the split; --split-ratio and --split-parts write another")
    click.echo(f"Done. Found {counted(done.num_samples, 'sample')}.")
    return True


def _check_flags(flags: Mapping[str, Any]) -> None:
    if flags["sample_type"] is not None and find_sample_type(flags["sample_type"]) != CRUDE:
        raise ConfigError(
            f"--sample-type {flags['sample_type']}: the samples of a JSONL file are crude; leave it out, and turn them "
            "into samples by a cooker"
        )
    if flags["tar_index_only"] and (flags["split_ratio"] is not None or flags["split_parts"]):
        raise ConfigError("--tar-index-only renews the index and leaves the split: leave --split-ratio and parts out")


def _line_split(flags: Mapping[str, Any]) -> LineSplit | None:
    if flags["split_parts"]:
        return partial(split_lines_by_ranges, [parse_line_range(text) for text in flags["split_parts"]])
    if flags["split_ratio"] is not None:
        return partial(ratio_bounds, parse_ratio(flags["split_ratio"]))
    return None


def prepare_joins(path: Path, flags: Mapping[str, Any]) -> None:
    """Make the indexes of the joins in the metadataset `path`, and print their content; `flags` are of `prepare`.

    Raises:
        ConfigError: if a flag is given that means nothing here, or the metadataset is not right.
        DatasetError: if its data sets cannot be joined.
    """
    refuse_others(f"is for folders of tars, but {path} is a metadataset", flags, _JOIN_FLAGS)
    prepare_metadataset = JOIN_INDEXES.get(needed_by=f"preparing the joins of {path}")
    with progress_bar("joining", "steps", shown=flags["progress"]) as on_progress:
        made = prepare_metadataset(
            path, num_workers=flags["num_workers"], limits=flags["limits"], on_progress=on_progress
        )
    for index in made:
        click.echo("\n".join(index.in_words()))
    if not made:
        click.echo(f"{path}: has no join, so there is nothing to prepare")
