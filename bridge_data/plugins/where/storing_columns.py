"""`bridge-data prepare --store-columns`: fields of JSON parts, by which samples are chosen then."""

import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from bridge_data.cli.prepare_command import AddJob
from bridge_data.cli.terminal import note, only_on_disk, progress_bar
from bridge_data.errors import counted
from bridge_data.plugins.where.column_writing import prepare_columns
from bridge_data.plugins.where.json_fields import parse_fields
from bridge_data.prepare.sample_columns import arrow_package
from bridge_data.storage import Location


def store_json_columns(path: Location, text: str, job: AddJob) -> Callable[[], None]:
    """What stores the columns that `text` names, with commas between them.

    Raises:
        ConfigError: if a name is invalid, or pyarrow is not installed.
    """
    names = [name.strip() for name in text.split(",")]
    parse_fields(names)
    arrow_package()
    return functools.partial(_store, only_on_disk(path), names, job)


def _store(path: Path, names: Sequence[str], job: AddJob) -> None:
    started = time.monotonic()
    with progress_bar("reading JSON parts", "shards", shown=job.progress) as show:
        done = prepare_columns(
            path, names, executor=job.executor, rescan=job.rescan, limits=job.limits, on_progress=show
        )
    types = ", ".join(f"{name} ({kind})" for name, kind in done.types.items())
    unchanged = f"; {counted(done.num_unchanged, 'shard')} had not changed" if done.num_unchanged else ""
    click.echo(f"columns stored, in {time.monotonic() - started:.1f} s: {types}{unchanged}")
    for name, num_missing in done.num_missing.items():
        if num_missing:
            note(f"{name}: has no value in {num_missing:,} of {counted(done.num_samples, 'sample')}; there it is NULL")
