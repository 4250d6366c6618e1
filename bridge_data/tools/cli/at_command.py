"""`bridge-data at`: the samples that a step of a run sees."""

from pathlib import Path
from typing import Any

import click

from bridge_data.tools.cli.run_options import note_how, opened, run_options, samples_table
from bridge_data.tools.cli.terminal import note


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
