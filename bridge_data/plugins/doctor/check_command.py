"""`bridge-data check`: everything that is wrong with a data set, at once; or what would stop or slow a run."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from bridge_data.cli.terminal import (
    ON_DISK,
    echo_report,
    executor_option,
    in_cli_words,
    is_given,
    json_option,
    limits_option,
    progress_bar,
    progress_option,
    refuse_others,
    setting,
    split_options,
    trust_options,
)
from bridge_data.errors import ConfigError, counted
from bridge_data.plan.formats import Opening
from bridge_data.plugins.doctor.lint import LintConfig, lint
from bridge_data.plugins.doctor.lint_checks import KINDS, Fault, LintReport
from bridge_data.prepare.executors import executor_named

SHOWN_ON_SCREEN = 5


def _numbers(_: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...]:
    """`8,16` as numbers."""
    numbers = text.split(",") if text else []
    if not all(number.isdecimal() and int(number) for number in numbers):
        raise ConfigError(f"{option.opts[0]} {text}: expected numbers from 1 on, such as 8 or 8,16,24")
    return tuple(map(int, numbers))


@click.command()
@click.argument("path", metavar="PATH", nargs=-1)
@click.option("--run", metavar="RUN", help="Check this run instead; what stands for PATH are settings, KEY=VALUE.")
@setting("--world-size", help="Of a run: data-parallel ranks.", more="[default: 1]")
@click.option("--later-world-sizes", callback=_numbers, metavar="N[,M...]", help="Of a run: those of later resumes.")
@click.option(
    "--ranks-per-node", type=click.IntRange(min=1), help="Of a run: ranks that share a machine.  [default: 1]"
)
@setting("--run-steps", help="Of a run: its steps.", more="[default: of the config]")
@setting("--step-seconds", help="Of a run: how long the trainer takes for a step.")
@setting("--measure", help="Of a run: measure how fast its data are, for so long.")
@split_options("Check these parts of the split only, such as train,val.  [default: all, and shards in none]")
@setting("--num-workers", help="Processes that read.", more="[default: one a core, at most 16]")
@executor_option
@setting("--limit", help="Samples of each data set to check, at most; of each tar that is not prepared.")
@click.option("--decode/--no-decode", default=True, help="Decode every part, or only check that it exists.")
@click.option("--ignore", metavar="CODE", multiple=True, help="A kind of fault that is intended. Repeatable.")
@setting("--where")
@json_option
@trust_options
@limits_option
@progress_option
@click.pass_context
def check(
    context: click.Context,
    /,
    path: tuple[str, ...],
    *,
    run: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Read everything of PATH, and report all that is wrong with it; or check a run before it starts.

    PATH is a data set, a metadataset, a JSONL file or a tar. Shards, indexes and metadata are compared, every part of
    every sample is decoded and assigned by the field map. Of tars that are not prepared, the members and parts are
    checked. With --where, only the chosen samples are decoded and built; shards, indexes and metadata are compared as a
    whole. The exit status is 1 if there is any fault; what `prepare` accepts with a note is a note here, too, except
    members without a part name: they are in no sample.

    With --run, no shard is read: shows what would stop or slow the run, each finding with the change and its gain. RUN
    is a YAML of LightningCLI, package.module:name of a Python function that returns the run, the folder of a run, or
    the path of data. The exit status is 1 if something would stop it.
    """
    of_run = {name: options.pop(name) for name in _OF_RUN}
    if run is None:
        refuse_others("is for a run: give --run", _OF_RUN, ())
        if len(path) != 1:
            raise click.UsageError(f"expected one PATH, or --run RUN; got {len(path)} paths")
        context.exit(_check_data(ON_DISK.convert(path[0], None, context), as_json=as_json, **options))
    refuse_others("is for data: leave it out with --run", [name for name in options if name != "progress"], ())
    given = {name: value for name, value in of_run.items() if is_given(name)}
    own = {_OF_RUN[name]: value for name, value in given.items() if name != "measure"}
    from bridge_data.plugins.doctor.checked_run import check_run  # here: checks of data need nothing of runs

    context.exit(check_run(run, path, measure_s=of_run["measure"] or 0.0, as_json=as_json, **own))


_OF_RUN = {
    "world_size": "num_ranks",
    "later_world_sizes": "later_ranks",
    "ranks_per_node": "ranks_per_node",
    "run_steps": "steps",
    "step_seconds": "step_s",
    "measure": "measure_s",
}
"""Options for runs, and their names there."""


def _check_data(
    path: Path,
    *,
    num_workers: int | None,
    executor: str,
    ignore: tuple[str, ...],
    as_json: bool,
    trusted_modules: tuple[str, ...],
    trust_dataset_code: bool,
    progress: bool,
    **options: Any,
) -> int:
    """Check data, print what was found, and return the exit code."""
    for code in ignore:
        if code not in KINDS:
            raise ConfigError(f"--ignore {code}: unknown kind of fault; there is {', '.join(KINDS)}")
    config = LintConfig(
        **options,
        max_kept=1000 if as_json else SHOWN_ON_SCREEN,
        executor=executor_named(executor, num_workers),
        opening=Opening(training=False, trusted_modules=trusted_modules, trust_dataset_code=trust_dataset_code),
    )
    with progress_bar("checking", "samples", shown=progress) as on_progress:
        report = lint(path, config, on_progress=on_progress)
    report = dataclasses.replace(
        report, counts={code: count for code, count in report.counts.items() if code not in ignore}
    )
    echo_report(report, _shown(report), as_json=as_json)
    return 1 if report.num_faults else 0


def _shown(report: LintReport) -> Iterator[str]:
    several = report.num_datasets != 1
    for code, kind in KINDS.items():
        count = report.counts.get(code, 0)
        if not count:
            continue
        mark = click.style("note: ", fg="yellow") if kind.is_note else ""
        yield f"{mark}{click.style(code, fg='yellow' if kind.is_note else 'red', bold=True)}  {count:,} × {kind.what}"
        shown = report.kept.get(code, [])
        yield from (f"  {_line(fault, several)}" for fault in shown)
        if count > len(shown):
            yield f"  … and {count - len(shown):,} more"
        yield f"  → {kind.fix}\n"
    looked = counted(report.num_samples, "sample")
    if report.num_shards:
        looked += f" in {counted(report.num_shards, 'shard')}"
    if several:
        looked += f" of {counted(report.num_datasets, 'data set')}"
    verdict = counted(report.num_faults, "fault") if report.num_faults else "no faults"
    if report.num_notes:
        verdict += f", {counted(report.num_notes, 'note')}"
    yield f"{report.path}: {looked} checked{'' if report.is_complete else ', not everything'}: {verdict}"


def _line(fault: Fault, several: bool) -> str:
    where = fault.where()
    if several or not where:
        where = f"{fault.dataset}: {where}" if where else fault.dataset
    return f"{where}: {in_cli_words(fault.cause)}"
