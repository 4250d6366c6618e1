"""`bridge-data prepare-media`: the metadata of images and clips, so that nobody opens them to learn their sizes."""

import time
from pathlib import Path

import click

from bridge_data.limits import Limits
from bridge_data.prepare import MediaRule
from bridge_data.prepare import prepare_media as look_at_media
from bridge_data.prepare.tar_indexes import PrepareConfig
from bridge_data.tools.cli.prepare_command import media_options
from bridge_data.tools.cli.terminal import (
    ON_DISK,
    counted,
    executor_option,
    limits_option,
    named_executor,
    note,
    progress_bar,
)


@click.command("prepare-media")
@click.argument("path", type=ON_DISK)
@media_options
@click.option("--num-workers", type=int, help="Processes that look at media.  [default: one a core, at most 16]")
@executor_option
@click.option("--tmp-path", metavar="PATH", help="No effect: media are measured on a disk, where nothing is uploaded.")
@limits_option
@click.option("--progress/--no-progress", default=True, help="Show a progress bar.")
def prepare_media(
    path: Path,
    media_metadata_by_glob: str | None,
    media_metadata_by_header: bool,
    media_metadata_by_extension: bool,
    num_workers: int | None,
    executor: str,
    tmp_path: str | None,
    limits: Limits,
    progress: bool,
) -> None:
    """Find out sizes, lengths and rates of the images and clips below the folder PATH, and store them there.

    PATH is a prepared data set, or any folder of files that serves as auxiliary data. get_media_metadata of a file
    store then returns them without opening the files. Files that have not changed are not opened again.
    """
    rule = MediaRule.parse(media_metadata_by_glob, media_metadata_by_header, media_metadata_by_extension)
    config = PrepareConfig(limits=limits, executor=named_executor(executor, num_workers))
    store_media(path, rule, config, progress)


def store_media(path: Path, rule: MediaRule, config: PrepareConfig, progress: bool) -> None:
    """Do it under a progress bar, and tell what was done."""
    started = time.monotonic()
    with progress_bar("looking at media", "steps", shown=progress) as show:
        done = look_at_media(path, rule, executor=config.scanner, limits=config.limits, on_progress=show)
    unchanged = f"; {done.num_unchanged:,} had not changed" if done.num_unchanged else ""
    click.echo(
        f"{path}: metadata of {counted(done.num_stored, 'media file')} stored, in {time.monotonic() - started:.1f} s"
        + unchanged
    )
    if done.num_unreadable:
        shown = "\n  ".join(done.examples)
        note(f"left out, for it cannot be read: {counted(done.num_unreadable, 'media file')}\n  {shown}")
