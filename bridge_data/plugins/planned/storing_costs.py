"""`bridge-data prepare --costs`: what a task encoder makes of every sample, in tokens and other numbers."""

import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from bridge_data.cli.prepare_command import AddJob
from bridge_data.cli.terminal import headed, note, progress_bar, table
from bridge_data.configs import DataConfig, find_named, is_run_folder, look_here
from bridge_data.errors import ConfigError, counted
from bridge_data.plugins.planned.measuring import (
    Encoder,
    MeasureConfig,
    Measurement,
    measure_source,
    measured_sources,
)
from bridge_data.run_options import DatasetOptions
from bridge_data.storage import Location
from bridge_data.task import TaskEncoder


def store_costs(path: Location, encoder: str, job: AddJob) -> Callable[[], None]:
    """What measures every sample at `path`, a prepared data set, a JSONL file, tables, or a metadataset, of which all
    data sets are measured, with `encoder` (`module:name`, or the config of a run); and stores it beside the data."""
    return functools.partial(_store, path, encoder, job)


def _store(path: Location, encoder: str, job: AddJob) -> None:
    made, options = _encoder_of(encoder)
    given = {name: value for name, value in job.opening.items() if value}
    settings = MeasureConfig(executor=job.executor, task=job.task, rescan=job.rescan)
    num_measured, started = 0, time.monotonic()
    for dataset in measured_sources(path, (), options, given, made):
        (source,) = dataset.plan.sources
        with progress_bar(f"measuring {source.name}", "samples", shown=job.progress) as on_progress:
            result = measure_source(dataset, settings, on_progress)
        if result is not None:
            num_measured += result.num_measured
            click.echo("\n".join(_shown(result)))
    if job.task is not None:
        note(f"task {job.task.index} of {job.task.num_tasks} is done; when all are, give the command without --task")
    else:
        click.echo(f"measured {counted(num_measured, 'sample')} in {time.monotonic() - started:.1f} s")


def _encoder_of(name: str) -> tuple[Encoder, DatasetOptions]:
    """The task encoder of this name, or that of a config, and how the config opens data."""
    if name.endswith((".yaml", ".yml")) or is_run_folder(Path(name)):
        look_here()
        config = DataConfig.read(name)
    else:
        found = find_named(name, "--costs")
        try:
            made = found() if callable(found) else found
        except Exception as error:
            raise ConfigError(f"--costs {name}: could not be made: {type(error).__name__}: {error}") from error
        if isinstance(made, TaskEncoder):
            return made, DatasetOptions()
        config = DataConfig.of(made)
    return config.build_task_encoder(), config.run_options.data


def _shown(found: Measurement) -> Iterator[str]:
    facts = [("data set", found.name), ("encoder", found.facts.encoder)]
    unchanged = found.num_samples - found.num_measured
    of_before = f", {unchanged:,} of them before" if unchanged else ""
    yield headed([*facts, ("samples", f"{found.num_samples:,}{of_before}"), ("written to", str(found.path))])
    rows = [
        [name, f"{one['total']:,}", f"{one['mean']:,.1f}", *(f"{one[of]:,}" for of in ("p50", "p99", "max"))]
        for name, one in found.columns().items()
    ]
    yield table(["cost", "total", "mean", "p50", "p99", "max"], rows)
    for reason, (number, first) in sorted(found.skips.items(), key=lambda one: -one[1][0]):
        yield f"skipped {counted(number, 'sample')}, the first {first}: {reason}"
    yield ""
