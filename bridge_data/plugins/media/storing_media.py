"""`bridge-data prepare --media`: sizes, lengths and rates of media, for which these need not be opened then."""

import functools
import time
from collections.abc import Callable
from pathlib import Path

import click

from bridge_data.cli.prepare_command import AddJob
from bridge_data.cli.terminal import note, only_local, progress_bar
from bridge_data.errors import counted
from bridge_data.plugins.media.media import prepare_media
from bridge_data.plugins.media.media_rule import MediaRule
from bridge_data.storage import Location


def store_media(path: Location, text: str, job: AddJob) -> Callable[[], None]:
    """What stores the metadata of the media at `path` that `text` names (see `MediaRule.parse`).

    Raises:
        ConfigError: if it names none.
    """
    return functools.partial(_store, only_local(path), MediaRule.parse(text, job.orientation), job)


def _store(path: Path, rule: MediaRule, job: AddJob) -> None:
    started = time.monotonic()
    with progress_bar("looking at media", "steps", shown=job.progress) as show:
        done = prepare_media(path, rule, executor=job.executor, limits=job.limits, on_progress=show)
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
