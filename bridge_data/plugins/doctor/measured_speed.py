"""`bridge-data plan --measure`: how fast the data of a run are, and where the time goes."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from bridge_data.cli.terminal import headed, note, sized
from bridge_data.plugins.doctor.bench import BenchConfig, Figures, measure
from bridge_data.plugins.doctor.planned_run import PlannedRun
from bridge_data.plugins.doctor.profile import Profile, profile
from bridge_data.runs.training_run import TrainingRun
from bridge_data.task import TaskEncoder


@dataclasses.dataclass(frozen=True, slots=True)
class Speed:
    """What was measured of a run; `profile` is None if that was not asked for."""

    run: PlannedRun
    figures: Figures
    profile: Profile | None

    def lines(self) -> Iterator[str]:
        """What is shown of it."""
        yield "\n" + headed(_figures(self.run, self.figures))
        if self.profile is not None:
            yield from self.profile.lines(self.figures)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        found = {"figures": self.figures.to_dict()}
        return found if self.profile is None else found | {"profile": self.profile.to_dict()}


def measured_speed(
    of_run: TrainingRun,
    task_encoder: TaskEncoder[Any, Any, Any, Any] | None,
    seconds: float,
    step_s: float | None,
    with_profile: bool,
) -> Speed:
    """Measure a rank of a run, whose steps take `step_s`, for so many seconds; with a profile, twice."""
    fields = {field.name: getattr(of_run, field.name) for field in dataclasses.fields(of_run)}
    run = PlannedRun(**fields, step_s=step_s)
    config = BenchConfig.of(run, task_encoder, seconds, with_steps=True)
    note(f"measuring {seconds:g} s{', and again with clocks' if with_profile else ''}")
    figures = measure(config)
    return Speed(run, figures, profile(config) if with_profile else None)


def _figures(run: PlannedRun, figures: Figures) -> list[tuple[str, str]]:
    rate = sized(figures.samples_per_s * figures.sample_bytes)
    rows = [
        (
            "speed",
            f"{figures.samples_per_s:,.1f} samples/s, {figures.batches_per_s:,.1f} batches/s of a rank, about {rate}/s "
            "read",
        ),
        ("CPU", f"{figures.cpu_s_per_1000:.3g} s for 1,000 samples, of all processes"),
        ("first batch", f"after {figures.first_batch_s:.2f} s"),
        ("save", f"{figures.save_s * 1000:.3f} ms, {sized(figures.state_bytes)}"),
        ("restore", f"{figures.restore_s:.2f} s to the first batch"),
    ]
    if run.num_workers > 0:
        rows.insert(3, ("workers", f"{run.num_workers}, running after {figures.workers_ready_s:.2f} s"))
    if figures.num_skipped:
        rows.insert(1, ("left out", f"{figures.num_skipped:,} of {figures.num_samples:,} samples"))
    return rows
