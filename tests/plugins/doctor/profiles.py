"""Figures and profiles of runs that never were."""

from pathlib import Path
from typing import Any

from bridge_data.plan import load_plan
from bridge_data.plugins.doctor.bench import Figures
from bridge_data.plugins.doctor.clock import Key, Tally
from bridge_data.plugins.doctor.profile import Machine, Profile, Trainer

S = 1_000_000_000

FIGURES = Figures(
    num_samples=200,
    num_batches=10,
    seconds=4.0,
    cpu_s=1.0,
    num_skipped=1,
    sample_bytes=30.0,
    first_batch_s=0.1,
    workers_ready_s=0.2,
    save_s=0.001,
    state_bytes=500,
    restore_s=0.3,
)


def spent(seconds: float, waited: float = 0.0) -> Tally:
    wall_ns = round(seconds * S)
    return Tally(wall_ns, 1, wall_ns, round(wall_ns * (1 - waited)))


def made_profile(path: Path, work: dict[Key, Tally], **changes: Any) -> Profile:
    """Two workers, who work all the time, on two cores of which the run uses one, as another program does."""
    settings: dict[str, Any] = {
        "idle_s": 0.0,
        "num_workers": 2,
        "trainer": Trainer(seconds=5, waiting_s=5, receiving_s=0, step_s=0),
        "machine": Machine(num_cores=2, used_cores=1, idle_cores=0, delayed=0),
        "num_samples": 100,
        "num_batches": 10,
        "sources": load_plan(path, split_part="train", training=True).sources,
    }
    return Profile(work=work, **settings | changes)
