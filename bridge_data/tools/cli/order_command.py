"""`bridge-data order`: the samples of many steps as a file, and from which step two runs differ."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge_data.errors import ConfigError
from bridge_data.tools.cli.run_options import note_how, opened, run_options, samples_table, steps_of
from bridge_data.tools.cli.terminal import counted

if TYPE_CHECKING:
    from bridge_data.tools.oracle import RunOrder


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
    from bridge_data.tools.oracle.order_files import write_order

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
