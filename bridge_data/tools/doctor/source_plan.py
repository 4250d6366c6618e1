"""How often each source is drawn in the course of a run, how many epochs that is, and a picture of it over steps.

Enters: a plan, and numbers of samples that the job has drawn. Leaves: draws and epochs by source; a file, PNG or SVG by
its name. Guarantee: the shares are those of the plan, with its schedules of weights, by arithmetic; the order keeps
them to a few draws a lane.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bridge_data.errors import ConfigError
from bridge_data.plan import Plan
from bridge_data.tools.doctor.planned_run import Finding, Level, PlannedRun

MANY_EPOCHS = 4
"""Repeating text data up to so often is nearly as good as new data. Source: Muennighoff et al., "Scaling
Data-Constrained Language Models" (2023)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceDraws:
    """What is drawn of a source in a run: `share` of the draws at its beginning; `draws` in all, that is `epochs`
    (None: the length of the run is not known)."""

    name: str
    num_samples: int
    share: float
    draws: float | None
    epochs: float | None


def draws_after(plan: Plan, drawn: ArrayLike) -> NDArray[np.float64]:
    """The draws of each source when the job has drawn so many samples, (numbers, sources)."""
    totals = np.atleast_1d(np.asarray(drawn, dtype=np.float64))[:, None]
    counts = np.zeros((len(totals), len(plan.sources)))
    phases = _phases(plan)
    ends = [start for start, _ in phases[1:]] + [np.inf]
    for (start, weights), end in zip(phases, ends, strict=True):
        counts += np.clip(totals - start, 0, end - start) * np.asarray(weights)
    return counts


def shares_at(plan: Plan, drawn: ArrayLike) -> NDArray[np.float64]:
    """The shares of the sources in the next draw when the job has drawn so many samples, (numbers, sources)."""
    phases = _phases(plan)
    number = np.searchsorted([start for start, _ in phases], np.atleast_1d(drawn), side="right") - 1
    return np.asarray([weights for _, weights in phases])[number]


def plan_sources(plan: Plan, num_drawn: float | None) -> list[SourceDraws]:
    """What is drawn of each source in a run of `num_drawn` draws (None: not known)."""
    draws = [None] * len(plan.sources) if num_drawn is None else draws_after(plan, num_drawn)[0].tolist()
    return [
        SourceDraws(
            name=source.name,
            num_samples=source.num_samples,
            share=share,
            draws=number,
            epochs=None if number is None else number / source.num_samples,
        )
        for source, share, number in zip(plan.sources, plan.weights or (), draws, strict=True)
    ]


def check_epochs_of(sources: Sequence[SourceDraws]) -> Iterator[Finding]:
    """Sources that come very often, or never."""
    total = sum(source.draws or 0.0 for source in sources)
    enough = total <= MANY_EPOCHS * sum(source.num_samples for source in sources)
    for source in sources:
        if source.draws is None or source.epochs is None:
            continue
        if source.draws < 1:
            yield Finding(
                code="never-drawn",
                level=Level.NOTE,
                what=f"{source.name}: no sample of it is drawn in this run",
                change="raise its weight, or leave it out of the blend",
            )
        elif source.epochs > MANY_EPOCHS:
            share = MANY_EPOCHS * source.num_samples / total
            way_out = f"lower its weight to {share:.2%} of the draws or less" if enough else "train fewer steps"
            yield Finding(
                code="many-epochs",
                level=Level.NOTE,
                what=f"{source.name}: each sample comes {source.epochs:,.1f} times in this run",
                change=f"{way_out}, or add data",
                gain=f"at most {MANY_EPOCHS} epochs",
                factor=source.epochs / MANY_EPOCHS,
            )


def _phases(plan: Plan) -> list[tuple[int, tuple[float, ...]]]:
    return [(0, plan.weights or ()), *plan.later_weights]


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
