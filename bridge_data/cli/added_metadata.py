"""What `bridge-data prepare` adds by --media and --store-columns: metadata stored with the index of samples, so
that media need not be opened for their sizes, nor JSON parts to choose samples.

`prepare` imports this module for the flags of both, so modules that need torch are imported when they are used.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge_data.cli.terminal import (
    note,
    only_on_disk,
    progress_bar,
)
from bridge_data.errors import counted
from bridge_data.extensions import Feature
from bridge_data.prepare.tars import PrepareConfig
from bridge_data.storage import Location

if TYPE_CHECKING:
    from bridge_data.decode.image import Orientation
    from bridge_data.prepare.executors import Executor
    from bridge_data.prepare.scan_results import ScanTask

MEDIA = Feature[Callable[[str, "Orientation"], Callable[..., Any]]]("media_metadata")
"""Of the text of --media, and of the orientation of images, what stores metadata of media."""

JSON_COLUMNS = Feature[Callable[[Sequence[str]], Callable[..., Any]]]("json_columns")
"""Of names of fields in JSON parts, what stores them as columns of samples."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CostJob:
    """How costs are made: `task` is the share to do (None: all, and the index); with `rescan`, earlier ones are not
    used; `opening` has options of `load_dataset`."""

    executor: "Executor"
    task: "ScanTask | None"
    rescan: bool
    progress: bool
    opening: Mapping[str, Any]


COSTS = Feature[Callable[[Location, str, CostJob], None]]("store_costs")
"""Stores what the task encoder of a run makes of each sample of the data at a path, and prints what it did; the text is
`module:name` of the encoder, or the config of the run."""


def store_media(path: Path, store: Callable[..., Any], config: PrepareConfig, progress: bool) -> None:
    """Store the metadata with a progress bar, and print what was done."""
    started = time.monotonic()
    with progress_bar("looking at media", "steps", shown=progress) as show:
        done = store(path, executor=config.scanner, limits=config.limits, on_progress=show)
    unchanged = f"; {done.num_unchanged:,} had not changed" if done.num_unchanged else ""
    click.echo(
        f"{path}: metadata of {counted(done.num_stored, 'media file')} stored, in {time.monotonic() - started:.1f} s"
        + unchanged
    )
    if not done.num_stored + done.num_unchanged + done.num_unreadable:
        note("nothing there is media by --media; header knows files by their first bytes, patterns by their names")
    if done.num_unreadable:
        shown = "\n  ".join(done.examples)
        note(f"left out, not readable: {counted(done.num_unreadable, 'media file')}\n  {shown}")


def column_names(text: str | None) -> list[str]:
    """The columns named in a flag, separated by commas; none without the flag.

    Raises:
        ConfigError: if a name is invalid, or pyarrow is not installed.
    """
    names = [] if text is None else [name.strip() for name in text.split(",")]
    if names:
        JSON_COLUMNS.get("--store-columns")(names)
    return names


def store_columns(path: Location, names: list[str], config: PrepareConfig, progress: bool) -> None:
    """Store the columns, if any, with a progress bar, and print what was done."""
    if not names:
        return
    started = time.monotonic()
    with progress_bar("reading JSON parts", "shards", shown=progress) as on_progress:
        done = JSON_COLUMNS.get("--store-columns")(names)(
            only_on_disk(path),
            executor=config.scanner,
            rescan=config.rescan,
            limits=config.limits,
            on_progress=on_progress,
        )
    types = ", ".join(f"{name} ({kind})" for name, kind in done.types.items())
    unchanged = f"; {counted(done.num_unchanged, 'shard')} had not changed" if done.num_unchanged else ""
    click.echo(f"columns stored, in {time.monotonic() - started:.1f} s: {types}{unchanged}")
    for name, num_missing in done.num_missing.items():
        if num_missing:
            note(f"{name}: has no value in {num_missing:,} of {counted(done.num_samples, 'sample')}; there it is NULL")
