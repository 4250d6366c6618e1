"""`bridge-data prepare --columns`: fields of JSON parts are stored as columns of samples."""

import time

import click

from bridge_data.prepare.column_writing import prepare_columns
from bridge_data.prepare.json_fields import parse_fields
from bridge_data.prepare.tar_indexes import PrepareConfig
from bridge_data.storage import Location
from bridge_data.tools.cli.terminal import counted, note, only_on_disk, progress_bar


def column_names(text: str | None) -> list[str]:
    """The columns named in a flag, with commas between them; none without the flag.

    Raises:
        ConfigError: if a name is not right.
    """
    names = [] if text is None else [name.strip() for name in text.split(",")]
    if names:
        parse_fields(names)
    return names


def store_columns(path: Location, names: list[str], config: PrepareConfig, progress: bool) -> None:
    """Store them, if there are any, under a progress bar, and tell what was done."""
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
