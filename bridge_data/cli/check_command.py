"""`bridge-data check`: everything that is wrong with a data set, at once."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from bridge_data.check.lint import LintConfig, lint
from bridge_data.check.lint_checks import KINDS, Fault, LintReport
from bridge_data.cli.terminal import (
    ON_DISK,
    echo_report,
    executor_option,
    in_cli_words,
    json_option,
    limits_option,
    named_executor,
    progress_bar,
    progress_option,
    setting,
    split_options,
    trust_options,
)
from bridge_data.errors import ConfigError, counted
from bridge_data.plan.formats import Opening

SHOWN_ON_SCREEN = 5


@click.command()
@click.argument("path", type=ON_DISK)
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
) -> None:
    """Read everything of PATH, and report all that is wrong with it.

    PATH is a data set, a metadataset, a JSONL file or a tar. Shards, indexes and metadata are compared, every part of
    every sample is decoded and assigned by the field map. Of tars that are not prepared, the members and parts are
    checked. With --where, only the chosen samples are decoded and built; shards, indexes and metadata are compared as a
    whole. The exit status is 1 if there is any fault; what `prepare` accepts with a note is a note here, too, except
    members without a part name: they are in no sample.
    """
    for code in ignore:
        if code not in KINDS:
            raise ConfigError(f"--ignore {code}: unknown kind of fault; there is {', '.join(KINDS)}")
    config = LintConfig(
        **options,
        max_kept=1000 if as_json else SHOWN_ON_SCREEN,
        executor=named_executor(executor, num_workers),
        opening=Opening(training=False, trusted_modules=trusted_modules, trust_dataset_code=trust_dataset_code),
    )
    with progress_bar("checking", "samples", shown=progress) as on_progress:
        report = lint(path, config, on_progress=on_progress)
    report = dataclasses.replace(
        report, counts={code: count for code, count in report.counts.items() if code not in ignore}
    )
    echo_report(report, _shown(report), as_json=as_json)
    context.exit(1 if report.num_faults else 0)


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
