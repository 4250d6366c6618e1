"""The sources of a run: whether their indexes match the shards, whether shards have a good size, how often each source
is drawn, and a plot of that over steps.

Enters: the sources of a run, or its plan and numbers of samples that the job has drawn. Leaves: findings, and how many
shards were checked; draws and epochs by source; a file, PNG or SVG by its name.

Guarantee: no shard is read; at most `MAX_LOOKED_AT` shards of a data set, evenly spread, have their size and time of
change checked. The metadata files are compared by the checks of `bridge-data lint`. Data in an object store,
in a JSONL file or only in Energon's indexes are checked when they are opened, or by `lint`. Shares are those of the
plan, with its schedules of weights, by arithmetic; the order matches them to within a few draws a lane.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bridge_data.errors import ConfigError, bridge_command
from bridge_data.plan import Plan, Source
from bridge_data.shards import ShardSet
from bridge_data.shards.metadata import META_FOLDER
from bridge_data.shards.prepared import tars_of
from bridge_data.storage import is_remote
from bridge_data.tools.doctor.planned_run import Finding, Level, PlannedRun
from bridge_data.tools.lint.check_dataset import check_metadata
from bridge_data.tools.lint.faults import KINDS, Fault

MAX_LOOKED_AT = 10_000
"""Shards of a data set that are checked, at most, evenly spread."""

SMALL_SHARD_BYTES = 8 << 20
MANY_SHARDS = 1_000
"""From this many shards on, an average below `SMALL_SHARD_BYTES` is a finding."""

_STOPPING = frozenset({"metadata-damaged", "missing-shard", "split-unknown-shard", "split-repeated-shard"})


@dataclasses.dataclass(slots=True)
class ShardsSeen:
    """How many shards are on disk, how many of them were checked, and how many are in object stores."""

    num_shards: int = 0
    num_looked_at: int = 0
    num_remote: int = 0


def check_data(sources: Sequence[Source], seen: ShardsSeen) -> Iterator[Finding]:
    """Faults in the stored data of the sources; counts checked shards in `seen`."""
    found: dict[Path, list[ShardSet]] = {}
    for source in sources:
        for member in source.members:
            shards = tars_of(member.records)
            if shards is None:
                continue
            yield from _check_sizes(member, shards)
            if is_remote(shards.root):
                seen.num_remote += len(shards.names)
            else:
                found.setdefault(Path(str(shards.root)), []).append(shards)
    for root, sets in found.items():
        yield from _check_folder(root, sets, seen)


def _check_folder(root: Path, sets: Sequence[ShardSet], seen: ShardsSeen) -> Iterator[Finding]:
    names = list(dict.fromkeys(name for shards in sets for name in shards.names))
    looked_at = _spread(names)
    seen.num_shards += len(names)
    seen.num_looked_at += len(looked_at)
    is_prepared = (root / META_FOLDER).is_dir()
    if not is_prepared:
        yield Finding(
            code="unprepared",
            level=Level.NOTE,
            what=f"{root}: has no {META_FOLDER}: its tars are indexed on each machine by one process, when they are "
            "first opened, and have no split and no sample class",
            change=f"run `{bridge_command('prepare', root)}` once for all machines",
        )
    elif len(looked_at) == len(names):
        yield from _metadata(root)
    index = sets[0].index
    if index is None:
        yield Finding(
            code="index-missing",
            level=Level.SLOWS,
            what=f"{root}: has no index.bridge of this preparation, so shards are examined when they are opened",
            change=f"run `{bridge_command('prepare', root, '--tar-index-only')}`",
        )
        return
    missing, resized, touched = [], [], []
    for name in looked_at:
        entry = index.entries[name]
        try:
            status = (root / name).stat()
        except OSError:
            missing.append(name)
            continue
        if status.st_size != entry.num_bytes:
            resized.append(name)
        elif status.st_mtime_ns != entry.mtime_ns:
            touched.append(name)
    if missing and len(looked_at) < len(names):
        yield _of_shards("missing-shard", Level.STOPS, root, missing, "are gone", "restore them, or prepare again")
    again = f"run `{bridge_command('prepare', root)}`"
    if resized:
        what = "are of another size than when they were indexed: the run would stop, or read other samples"
        yield _of_shards("index-outdated", Level.STOPS, root, resized, what, again)
    if touched:
        what = (
            "have another time of change than in the index: copied, or changed with the same size; each sample is "
            "compared with the index when it is read"
        )
        change = f"run `{bridge_command('prepare', root, '--tar-index-only')}`; cp -p keeps the times of copies"
        yield _of_shards("index-times", Level.SLOWS, root, touched, what, change)


def _of_shards(code: str, level: Level, root: Path, names: Sequence[str], what: str, change: str) -> Finding:
    shown = f"{len(names):,} shard{'' if len(names) == 1 else 's'} such as {names[0]}"
    return Finding(code=code, level=level, what=f"{root}: {shown} {what}", change=change)


def _metadata(root: Path) -> Iterator[Finding]:
    """Faults that `lint` finds in the metadata, one finding for each kind."""
    by_code: dict[str, list[Fault]] = {}
    for fault in check_metadata(root):
        by_code.setdefault(fault.code, []).append(fault)
    for code, faults in by_code.items():
        where = faults[0].where()
        more = f", and {len(faults) - 1:,} more" if len(faults) > 1 else ""
        yield Finding(
            code=code,
            level=Level.STOPS if code in _STOPPING else Level.NOTE,
            what=f"{root}: {KINDS[code].what}: {f'{where}: ' if where else ''}{faults[0].cause}{more}",
            change=KINDS[code].way_out,
        )


def _check_sizes(source: Source, shards: ShardSet) -> Iterator[Finding]:
    if shards.index is None or len(shards.names) < MANY_SHARDS:
        return
    sizes = shards.index.sizes_bytes(shards.names)
    mean = sum(sizes) / len(sizes)
    if mean < SMALL_SHARD_BYTES:
        yield Finding(
            code="small-shards",
            level=Level.NOTE,
            what=f"{source.name}: {len(sizes):,} shards of {mean / 1e6:.2f} MB on the average: opening them costs more "
            "than necessary",
            change="write fewer, of 100 MB to 1 GB (`bridge-data convert --max-bytes`)",
        )


def _spread(names: Sequence[str]) -> Sequence[str]:
    """At most `MAX_LOOKED_AT` shards, evenly spread."""
    if len(names) <= MAX_LOOKED_AT:
        return names
    return [names[number * len(names) // MAX_LOOKED_AT] for number in range(MAX_LOOKED_AT)]


MANY_EPOCHS = 4
"""Repeating text data up to this often is nearly as good as new data. Source: Muennighoff et al., "Scaling
Data-Constrained Language Models" (2023)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SourceDraws:
    """The draws of a source in a run: its `share` at the beginning; `draws` in all, that is `epochs` (None: the length
    of the run is not known)."""

    name: str
    num_samples: int
    share: float
    draws: float | None
    epochs: float | None


def draws_after(plan: Plan, drawn: ArrayLike) -> NDArray[np.float64]:
    """The draws of each source when the job has drawn these numbers of samples, (numbers, sources)."""
    totals = np.atleast_1d(np.asarray(drawn, dtype=np.float64))[:, None]
    counts = np.zeros((len(totals), len(plan.sources)))
    phases = _phases(plan)
    ends = [start for start, _ in phases[1:]] + [np.inf]
    for (start, weights), end in zip(phases, ends, strict=True):
        counts += np.clip(totals - start, 0, end - start) * np.asarray(weights)
    return counts


def shares_at(plan: Plan, drawn: ArrayLike) -> NDArray[np.float64]:
    """The shares of the sources in the next draw after these numbers of samples, (numbers, sources)."""
    phases = _phases(plan)
    number = np.searchsorted([start for start, _ in phases], np.atleast_1d(drawn), side="right") - 1
    return np.asarray([weights for _, weights in phases])[number]


def plan_sources(plan: Plan, num_drawn: float | None) -> list[SourceDraws]:
    """The draws of each source in a run of `num_drawn` draws (None: not known)."""
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
    """Sources that are drawn very often, or never."""
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
"""Sources with their own line, those drawn most; the others have no line in the plot of epochs."""

POINTS = 400


def check_plot(file: Path, run: PlannedRun) -> None:
    """Check that a plot can be drawn, before anything else is done.

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
    """Plot blend and epochs over the steps of a run; each step takes `step_size` times `samples_per_unit` samples.

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
    """(steps, shares by step and source, epochs by step and source, names) of the sources drawn most. If there are
    more, `others` have the last shares and no epochs."""
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
