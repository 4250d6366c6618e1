"""`bridge-data prepare-media`, and the columns of `bridge-data prepare`: metadata stored with the index of samples, so
that media need not be opened for their sizes, nor JSON parts to choose samples.

`prepare` imports this module for the flags of both, so modules that need torch are imported when they are used.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridge_data.cli.terminal import (
    ON_DISK,
    OUTPUT_ON_DISK,
    Command,
    executor_option,
    limits_option,
    named_executor,
    note,
    only_on_disk,
    progress_bar,
    progress_option,
    setting,
)
from bridge_data.errors import counted
from bridge_data.limits import Limits
from bridge_data.prepare.column_writing import prepare_columns
from bridge_data.prepare.json_fields import parse_fields
from bridge_data.prepare.stored_columns import arrow_package
from bridge_data.prepare.tars import PrepareConfig
from bridge_data.storage import Location

if TYPE_CHECKING:
    from bridge_data.decode.image import Orientation
    from bridge_data.prepare import MediaRule


def media_options(command: Command) -> Command:
    """Add the flags that define which files are media."""
    for option in (
        click.option(
            "--media-metadata-by-extension", is_flag=True, help="Media are the files with the usual extensions."
        ),
        click.option("--media-metadata-by-header", is_flag=True, help="Media are recognised by their first bytes."),
        click.option(
            "--media-metadata-by-glob",
            metavar="PATTERNS",
            help="Media are the files that match, such as '*.jpg,clips/*.mp4'; commas between patterns.",
        ),
        click.option(
            "--media-orientation",
            type=click.Choice(["ignore", "apply"]),
            default="ignore",
            show_default=True,
            help="apply: store the sizes that images have after EXIF orientation.",
        ),
    ):
        command = option(command)
    return command


@click.command("prepare-media")
@click.argument("path", type=ON_DISK)
@media_options
@setting("--num-workers", help="Processes that look at media.", more="[default: one a core, at most 16]")
@executor_option
@click.option(
    "--tmp-path", type=OUTPUT_ON_DISK, help="No effect: media are measured on a disk, where nothing is uploaded."
)
@limits_option
@progress_option
def prepare_media(
    path: Path,
    media_metadata_by_glob: str | None,
    media_metadata_by_header: bool,
    media_metadata_by_extension: bool,
    media_orientation: "Orientation",
    num_workers: int | None,
    executor: str,
    tmp_path: Path | None,
    limits: Limits,
    progress: bool,
) -> None:
    """Find out sizes, lengths and rates of the images and clips below the folder PATH, and store them there.

    PATH is a prepared data set, or any folder of files that serves as auxiliary data. get_media_metadata of a file
    store then returns them without opening the files. Files that have not changed are not opened again.
    """
    from bridge_data.prepare import MediaRule

    flags = media_metadata_by_glob, media_metadata_by_header, media_metadata_by_extension
    rule = MediaRule.parse(*flags, media_orientation)
    config = PrepareConfig(limits=limits, executor=named_executor(executor, num_workers))
    store_media(path, rule, config, progress)


def store_media(path: Path, rule: "MediaRule", config: PrepareConfig, progress: bool) -> None:
    """Store the metadata with a progress bar, and print what was done."""
    from bridge_data.prepare import prepare_media as look_at_media

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
        note(f"left out, not readable: {counted(done.num_unreadable, 'media file')}\n  {shown}")


def column_names(text: str | None) -> list[str]:
    """The columns named in a flag, separated by commas; none without the flag.

    Raises:
        ConfigError: if a name is invalid, or pyarrow is not installed.
    """
    names = [] if text is None else [name.strip() for name in text.split(",")]
    if names:
        parse_fields(names)
        arrow_package()
    return names


def store_columns(path: Location, names: list[str], config: PrepareConfig, progress: bool) -> None:
    """Store the columns, if any, with a progress bar, and print what was done."""
    if not names:
        return
    started = time.monotonic()
    with progress_bar("reading JSON parts", "shards", shown=progress) as on_progress:
        done = prepare_columns(
            only_on_disk(path),
            names,
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
