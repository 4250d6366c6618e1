"""`bridge-data measure`: what a task encoder makes of every sample, in tokens and other numbers."""

import os
import time
from collections.abc import Iterator
from typing import Any

import click

from bridge_data.cli.terminal import (
    LOCATION,
    OUTPUT,
    echo_json,
    executor_option,
    headed,
    json_option,
    named_executor,
    note,
    progress_bar,
    progress_option,
    setting,
    table,
    trust_options,
)
from bridge_data.configs import DataConfig, named_encoder
from bridge_data.errors import ConfigError, counted
from bridge_data.plugins.planned.costs import COSTS_VARIABLE
from bridge_data.plugins.planned.measuring import MeasureConfig, Measurement, measure_source, measured_sources
from bridge_data.prepare.scan_results import ScanTask
from bridge_data.run_options import DatasetOptions
from bridge_data.storage import Location, is_remote

_STORE_WORKERS = 16
"""Processes that read from a store, which waits for requests rather than for cores."""


def _names(_: click.Context, __: click.Parameter, text: str | None) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


@click.command()
@click.argument("path", metavar="DATA", type=LOCATION)
@click.option("--config", metavar="CONFIG", help="The YAML of the run, or MODULE:NAME of its DataModule.")
@setting("--task-encoder")
@click.option("--split-part", "--split-parts", "parts", metavar="NAMES", callback=_names, help="[default: all]")
@click.option("--dataset-config", metavar="NAME", help="The file of the samples in .nv-meta.  [default: dataset.yaml]")
@click.option("--split-config", metavar="NAME", help="The file of the split.  [default: split.yaml]")
@setting("--num-workers", help="Processes that measure.", more="[default: one a core, at most 16]")
@executor_option
@click.option("--task-index", type=int, metavar="I", help="Measure share I, from 0 on, of --num-tasks.")
@click.option("--num-tasks", type=int, metavar="N", help="The number of shares, such as the tasks of a Slurm array.")
@click.option("--rescan", is_flag=True, help="Measure all samples, even those of unchanged shards.")
@click.option(
    "--out", type=OUTPUT, metavar="FOLDER", help=f"Write the costs there; runs find them by {COSTS_VARIABLE}."
)
@json_option
@progress_option
@trust_options
def measure(
    path: Location,
    config: str | None,
    task_encoder: str | None,
    parts: tuple[str, ...],
    num_workers: int | None,
    executor: str,
    task_index: int | None,
    num_tasks: int | None,
    rescan: bool,
    out: Location | None,
    as_json: bool,
    progress: bool,
    **options: Any,
) -> None:
    """Measure what the task encoder makes of every sample of DATA, and store it beside the data.

    DATA is a prepared data set, a JSONL file, tables, or a metadataset, of which all data sets are measured. A run
    reads the costs for weights in tokens and for planned packs. A killed run resumes where it stopped, and of data that
    have grown, only new shards are measured.
    """
    if (config is None) == (task_encoder is None):
        raise ConfigError("give --config, the run's, or --task-encoder, and not both")
    if (task_index is None) != (num_tasks is None):
        raise ConfigError("--task-index and --num-tasks: give both, or none")
    task = None if task_index is None or num_tasks is None else ScanTask(task_index, num_tasks)
    if out is not None:
        os.environ[COSTS_VARIABLE] = str(out.absolute())
    if task_encoder is not None:
        encoder, chosen = named_encoder(task_encoder), DatasetOptions()
    else:
        run = DataConfig.read(str(config))
        encoder, chosen = run.build_task_encoder(), run.run_options.data
    given = {name: value for name, value in options.items() if value}
    sources = measured_sources(path, parts, chosen, given, encoder)
    workers = max(1, num_workers) if num_workers is not None else _STORE_WORKERS if is_remote(path) else None
    settings = MeasureConfig(executor=named_executor(executor, workers), task=task, rescan=rescan)
    found, started = [], time.monotonic()
    for dataset in sources:
        (source,) = dataset.plan.sources
        with progress_bar(f"measuring {source.name}", "samples", shown=progress) as on_progress:
            result = measure_source(dataset, settings, on_progress)
        if result is not None:
            found.append(result)
            if not as_json:
                click.echo("\n".join(_shown(result)))
    if task is not None:
        note(f"task {task.index} of {task.num_tasks} is done; when all are, give the command without --task-index")
    elif as_json:
        echo_json({"version": 1, "measured": [one.to_dict() for one in found]})
    else:
        num_measured = sum(one.num_measured for one in found)
        click.echo(f"measured {counted(num_measured, 'sample')} in {time.monotonic() - started:.1f} s")


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
