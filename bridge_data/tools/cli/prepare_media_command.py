"""`bridge-data prepare-media`, and the flags of `bridge-data prepare` that do the same in one go."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bridge_data.tools.cli.terminal import ON_DISK, counted, note, progress_bar

if TYPE_CHECKING:
    from bridge_data.prepare import MediaRule

Function = TypeVar("Function", bound=Callable[..., Any])


def media_options(command: Function) -> Function:
    """Add the flags that say which files are media."""
    for option in (
        click.option(
            "--media-metadata-by-extension", is_flag=True, help="Media are the files with the usual extensions."
        ),
        click.option("--media-metadata-by-header", is_flag=True, help="Media are told by their first bytes."),
        click.option(
            "--media-metadata-by-glob",
            metavar="PATTERNS",
            help="Media are the files that match, such as '*.jpg,clips/*.mp4'; commas between patterns.",
        ),
    ):
        command = option(command)
    return command


@click.command("prepare-media")
@click.argument("path", type=ON_DISK)
@media_options
@click.option("--num-workers", type=int, help="Processes that look at media.  [default: one a core, at most 16]")
@click.option("--tmp-path", metavar="PATH", help="No effect: media are measured on a disk, where nothing is uploaded.")
@click.option("--progress/--no-progress", default=True, help="Show a progress bar.")
def prepare_media(
    path: Path,
    media_metadata_by_glob: str | None,
    media_metadata_by_header: bool,
    media_metadata_by_extension: bool,
    num_workers: int | None,
    tmp_path: str | None,
    progress: bool,
) -> None:
    """Find out sizes, lengths and rates of the images and clips below the folder PATH, and store them there.

    PATH is a prepared data set, or any folder of files that serves as auxiliary data. What was found is then at hand
    without opening the files: get_media_metadata of a file store. What has not changed is not looked at again.
    """
    from bridge_data.prepare import MediaRule

    rule = MediaRule.parse(media_metadata_by_glob, media_metadata_by_header, media_metadata_by_extension)
    store_media(path, rule, num_workers, progress)


def store_media(path: Path, rule: "MediaRule", num_workers: int | None, progress: bool) -> None:
    """Do it under a progress bar, and tell what was done."""
    from bridge_data.prepare import prepare_media as look_at_media

    started = time.monotonic()
    if num_workers is None:
        num_workers = min(16, len(os.sched_getaffinity(0)))
    with progress_bar("looking at media", "steps", shown=progress) as show:
        done = look_at_media(path, rule, num_workers=num_workers, on_progress=show)
    unchanged = f"; {done.num_unchanged:,} had not changed" if done.num_unchanged else ""
    click.echo(
        f"{path}: metadata of {counted(done.num_stored, 'media file')} stored, in {time.monotonic() - started:.1f} s"
        + unchanged
    )
    if done.num_unreadable:
        shown = "\n  ".join(done.examples)
        note(f"left out, for it cannot be read: {counted(done.num_unreadable, 'media file')}\n  {shown}")
