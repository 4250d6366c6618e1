"""`bridge-data at`, `when` and `order`: the samples of a step, the steps of a sample, the samples of many steps as a
file, and from which step two runs differ."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge_data.errors import ConfigError
from bridge_data.tools.cli.run_options import note_how, opened, run_options, samples_table, steps_of
from bridge_data.tools.cli.terminal import counted, note

if TYPE_CHECKING:
    from bridge_data.tools.oracle import RunOrder


@click.command()
@click.argument("path", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("step", type=click.IntRange(min=0))
@click.option("--rank", type=click.IntRange(min=0), help="Only those of this data-parallel rank.")
@run_options
def at(path: Path, step: int, rank: int | None, states: tuple[Path, ...], **options: Any) -> None:
    """Show the samples of the global batch of a STEP of RUN, counted from 0.

    RUN is the YAML of a recipe (as --print-config writes it) or of a LightningCLI, or the path of a data set or
    metadataset, with options.
    """
    run = opened(path, states, **options)
    found = run.at(step, rank=rank)
    click.echo(samples_table(found.samples))
    if run.edits is not None:
        steps = " and ".join(f"{number:,}" for number in run.plain_steps(step))
        note(f"step {step:,} has the data of step {steps} of the run without skips and repeats ({run.edits})")
    note_how(run, assumes_no_skips=found.assumes_no_skips)


@click.command()
@click.argument("path", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("key", required=False)
@click.option("--source", default="", help="The source of the sample, by name or number.")
@click.option("--index", type=click.IntRange(min=0), help="The number of the sample in the source, in place of KEY.")
@click.option("--until", type=click.IntRange(min=0), required=True, help="The last step to look at.")
@run_options
def when(
    path: Path, key: str | None, source: str, index: int | None, until: int, states: tuple[Path, ...], **options: Any
) -> None:
    """Show the steps of RUN in which the sample KEY (or SHARD:KEY) came or will come.

    RUN is the YAML of a recipe (as --print-config writes it) or of a LightningCLI, or the path of a data set or
    metadataset, with options.
    """
    run = opened(path, states, **options)
    found = run.when(key, source=source, index=index, until=until)
    click.echo(samples_table(found, with_step=True) if found else f"not in steps 0 to {until:,}")
    if found:
        click.echo(f"{counted(len(found), 'time')} in steps 0 to {until:,}")
    note_how(run, assumes_no_skips=run.assumes_no_skips)


@click.command()
@click.argument("path", metavar="[RUN]", type=click.Path(path_type=Path), required=False)
@click.option("--steps", metavar="A..B", required=True, help="The steps to write or to compare, both included.")
@click.option("--out", type=click.Path(path_type=Path), help="A file .jsonl or .parquet.  [default: JSONL to stdout]")
@click.option(
    "--differences",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="A B",
    help="Compare two runs, or two states of RUN from which it goes on.",
)
@run_options
def order(
    path: Path | None,
    steps: str,
    out: Path | None,
    differences: tuple[Path, Path] | None,
    states: tuple[Path, ...],
    **options: Any,
) -> None:
    """Write the samples of some steps of RUN, one a line; or with --differences compare two runs.

    Exit code 1 if these differ.

    RUN is the YAML of a recipe (as --print-config writes it) or of a LightningCLI, or the path of a data set or
    metadataset, with options.
    """
    chosen = steps_of(steps)
    if differences:
        if options["ledger"] is not None:
            raise ConfigError("--differences compares orders: give it without --ledger, which is of one run")
        runs = [_one_of(path, one, states, options) for one in differences]
        click.get_current_context().exit(_compare(runs, chosen))
    if path is None:
        raise ConfigError("expected the path of a run, or --differences with two")
    from bridge_data.tools.oracle.run_reports import write_order

    run = opened(path, states, **options)
    write_order(run, chosen, out)
    if out is not None:
        click.echo(f"{out}: {counted(len(chosen), 'step')}")
    note_how(run, assumes_no_skips=run.assumes_no_skips)


def _one_of(path: Path | None, one: Path, states: tuple[Path, ...], options: dict[str, Any]) -> "RunOrder":
    """One of the two runs that are compared: a run, or RUN from a state on."""
    is_state = one.suffix == ".pt" or (one.is_dir() and any(one.glob("train_dataloader_*")))
    if not is_state:
        return opened(one, states, **options)
    if path is None:
        raise ConfigError(f"{one} is a state: say first of which run, as in `bridge-data order RUN --differences A B`")
    return opened(path, (*states, one), **options)


def _compare(runs: "list[RunOrder]", steps: range) -> int:
    from bridge_data.tools.oracle import first_difference

    found = first_difference(*runs, steps=steps)
    for reason in found.reasons:
        click.echo(reason)
    if found.step is None:
        click.echo(f"the same samples in steps {steps[0]:,} to {steps[-1]:,}")
        return 0
    click.echo(f"the samples differ from step {found.step:,} on; the first that differs:")
    for name, sample in (("A", found.first), ("B", found.second)):
        click.echo(f"\n{name}\n" + ("no sample" if sample is None else samples_table([sample])))
    for run in runs:
        note_how(run, assumes_no_skips=run.assumes_no_skips)
    return 1
