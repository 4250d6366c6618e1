"""`bridge-data plan`: what a run will see, before it starts; and how fast its data are."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import click

from bridge_data.cli.terminal import (
    OUTPUT_ON_DISK,
    echo_json,
    headed,
    json_option,
    note,
    note_assumed,
    run_arguments,
    setting,
    table,
)
from bridge_data.errors import ConfigError, counted
from bridge_data.extensions import Feature
from bridge_data.runs.run_plan import EXACT_SAMPLES, Planner, RunLength, RunPlan
from bridge_data.runs.training_run import TrainingRun

_SHEET = Feature[Callable[[Path, str, RunPlan], None]]("plan_sheet")
"""Writes a plan, with charts, to a file."""


class _Speed(Protocol):
    """How fast the data of a run are."""

    def lines(self) -> Iterator[str]:
        """What is shown of it."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""


_SPEED = Feature[Callable[[TrainingRun, Any, float, float | None, bool], _Speed]]("speed")
"""Measures the data of a run, with its task encoder, for so many seconds, at the seconds of a step; and perhaps again,
with clocks."""


@click.command()
@run_arguments
@setting("--run-steps", "steps", more="[default: of the config, or one epoch]")
@click.option("--tokens", type=int, help="Tokens of the run, instead of steps.")
@click.option("--epochs", type=float, help="Epochs of the run, of all data or of --epochs-of, instead of steps.")
@click.option("--epochs-of", "source", metavar="SOURCE", help="The source of --epochs, such as photos/train.")
@click.option(
    "--exact-steps",
    type=click.IntRange(min=1),
    help=f"First steps that are planned one by one.  [default: as many as draw {EXACT_SAMPLES:,} samples]",
)
@setting("--world-size", "num_ranks", more="[default: 1]")
@setting("--measure", "measure_s")
@setting("--step-seconds", "step_s", more="[default, to --measure: 0]")
@click.option(
    "--profile", "with_profile", is_flag=True, help="With --measure: show where the time goes, measured again."
)
@click.option("--html", type=OUTPUT_ON_DISK, help="Also write it, with charts, to this file, as one page.")
@json_option
def plan(
    run_name: str,
    overrides: tuple[str, ...],
    exact_steps: int | None,
    measure_s: float | None,
    step_s: float | None,
    with_profile: bool,
    html: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show what RUN will see, before it starts: steps, samples, tokens, epochs, fill, loads, and how fast.

    RUN is a YAML of LightningCLI, package.module:name of a Python function that returns the run, the folder of a run,
    or the path of data; KEY=VALUE override its settings. Tokens are those of the cost index (`prepare --costs`); no
    sample is read, except to --measure. Figures of the first steps are exact; those of a longer run are extrapolated.
    """
    if with_profile and measure_s is None:
        raise ConfigError("--profile: give --measure, such as --measure 5")
    length = {name: options.pop(name) for name in ("tokens", "epochs", "source")}
    run = TrainingRun.read(run_name, overrides, **options)
    note_assumed(run)
    asked = None
    if length != dict.fromkeys(length):
        asked = RunLength(**length, steps=options["steps"])
    elif run.steps is not None:
        asked = RunLength(steps=run.steps)
    encoder = run.task_encoder() if measure_s is not None or (run.is_packing and run.names_encoder) else None
    begin = time.perf_counter()
    found = Planner(run.dataset(encoder), run.schedule).plan(asked, exact_steps=exact_steps)
    seconds = time.perf_counter() - begin
    if html is not None:
        _SHEET.get("--html")(html, run_name, found)
    speed = None if measure_s is None else _SPEED.get("--measure")(run, encoder, measure_s, step_s, with_profile)
    if as_json:
        echo_json(found.to_dict() | ({} if speed is None else speed.to_dict()))
        return
    click.echo("\n".join(_shown(found)))
    if found.exact.drawn is not None:
        click.echo(f"planned {int(found.exact.drawn.sum()):,} samples in {seconds:.1f} s")
    for sentence in found.notes:
        note(sentence)
    if speed is not None:
        click.echo("\n".join(speed.lines()))


def _shown(found: RunPlan) -> Iterator[str]:
    for heads, rows in found.tables():
        yield table(heads, rows) + "\n"
    if (more := len(found.sources) - len(found.shown_sources)) and found.run.drawn is not None:
        yield f"… and {more} more\n"
    if facts := [*found.facts()]:
        yield headed(facts)
    if not found.is_exact:
        first = counted(found.exact.steps, "step")
        yield f"The run is extrapolated from its first {first}, which are exact (--exact-steps)."
