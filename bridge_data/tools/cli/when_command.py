"""`bridge-data when`: the steps of a run in which a sample comes."""

from pathlib import Path
from typing import Any

import click

from bridge_data.tools.cli.run_options import note_how, opened, run_options, samples_table
from bridge_data.tools.cli.terminal import counted


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
