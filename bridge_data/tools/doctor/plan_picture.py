"""A picture of a planned run: the shares of the sources in the blend, and their epochs, over steps.

Enters: a plan and a run. Leaves: a file, PNG or SVG by its name. Guarantee: it shows what the plan says, by arithmetic;
nothing is measured for it.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bridge_data.errors import ConfigError
from bridge_data.plan import Plan
from bridge_data.tools.doctor.planned_run import PlannedRun
from bridge_data.tools.doctor.source_plan import draws_after, shares_at

MAX_LINES = 10
"""Sources with a line of their own, those that are drawn most; the others have none in the picture of epochs."""

POINTS = 400


def check_plot(file: Path, run: PlannedRun) -> None:
    """Check that a picture can be drawn, before anything else is done.

    Raises:
        ConfigError: if the file is neither PNG nor SVG, the run has no length, or matplotlib is not installed.
    """
    if file.suffix not in (".png", ".svg"):
        raise ConfigError(f"--plot {file}: expected a name that ends in .png or .svg")
    if run.steps is None:
        raise ConfigError("--plot: how long is the run? Give --steps N, or train_steps in the config")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError('--plot needs matplotlib: pip install "bridge-data[bench]"') from error


def draw_plan(plan: Plan, run: PlannedRun, samples_per_unit: float, file: Path) -> None:
    """Draw blend and epochs over the steps of a run, of which each takes `step_size` times `samples_per_unit` samples.

    Raises:
        ConfigError: if the file cannot be written.
    """
    from matplotlib.figure import Figure

    steps, shares, epochs, names = plan_lines(plan, run, samples_per_unit)
    figure = Figure(figsize=(8, 5), layout="constrained")
    blend, repeats = figure.subplots(2, 1, sharex=True)
    blend.stackplot(steps, shares.T, labels=names, step="post")
    blend.set(ylabel="share of draws", ylim=(0, 1), title=f"{run.steps:,} steps of {run.step_size:,}")
    for name, line in zip(names, epochs.T, strict=False):
        repeats.plot(steps, line, label=name)
    repeats.set(xlabel="step", ylabel="epochs", xlim=(0, run.steps), ylim=(0, None))
    repeats.grid(visible=True, alpha=0.3)
    figure.legend(*blend.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    try:
        figure.savefig(file, dpi=100, metadata={"Date": None} if file.suffix == ".svg" else {"Software": None})
    except OSError as error:
        raise ConfigError(f"--plot {file}: cannot be written: {error.strerror}") from error


def plan_lines(
    plan: Plan, run: PlannedRun, samples_per_unit: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], Sequence[str]]:
    """(steps, shares by step and source, epochs by step and source, names) of the sources that are drawn most. If there
    are more of them, `others` have the last shares and no epochs."""
    assert run.steps is not None
    steps = np.linspace(0, run.steps, min(POINTS, run.steps) + 1)
    drawn = steps * run.step_size * samples_per_unit
    draws, shares = draws_after(plan, drawn), shares_at(plan, drawn)
    order = np.argsort(-draws[-1], kind="stable")
    shown, others = order[:MAX_LINES], order[MAX_LINES:]
    names = [plan.sources[number].name for number in shown]
    lines = shares[:, shown]
    if len(others):
        names.append(f"{len(others)} others")
        lines = np.column_stack((lines, shares[:, others].sum(axis=1)))
    sizes = np.array([plan.sources[number].num_samples for number in shown])
    return steps, lines, draws[:, shown] / sizes, names
