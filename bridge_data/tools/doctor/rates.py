"""Whether the data keep up with the trainer, from a short measurement on this machine.

Enters: the figures of `bridge-data bench` for one rank, and the settings of a run. Leaves: batches a second that a rank
makes and needs, and findings. Guarantee: what is said of more workers is said as an estimate, as only the given number
was measured.
"""

import math
from collections.abc import Iterator

from bridge_data.tools.bench import Figures
from bridge_data.tools.doctor.environment import MachineLimits
from bridge_data.tools.doctor.findings import Finding, Level
from bridge_data.tools.doctor.planned_run import PlannedRun

RESERVE = 1.1
"""How much faster than needed the data should be."""


def needed_batches_per_s(run: PlannedRun) -> float | None:
    """Micro-batches that a rank needs in a second; None if the time of a step is not known."""
    return None if run.step_s is None else run.step_size / run.micro_batch_size / run.num_ranks / run.step_s


def samples_per_unit(figures: Figures | None, run: PlannedRun) -> float:
    """Samples drawn for each sample of a batch (with packing, for each pack), those left out by filters included."""
    if figures is None or not figures.num_samples:
        return 1.0
    return figures.num_samples / (figures.num_batches * run.micro_batch_size)


def check_rate(figures: Figures, run: PlannedRun, environment: MachineLimits) -> Iterator[Finding]:
    """Whether one rank, and all ranks of a machine together, make as many batches as the trainer needs."""
    needed = needed_batches_per_s(run)
    if needed is None or run.step_s is None:
        return
    cores = needed * figures.cpu_s / figures.num_batches * run.ranks_per_node
    of_samples = figures.num_samples / figures.num_batches
    if cores > environment.num_cores:
        yield Finding(
            code="slow-cores",
            level=Level.SLOWS,
            what=f"steps of {run.step_s:g} s need {cores:.1f} cores for the data of {run.ranks_per_node} ranks; there "
            f"are {environment.num_cores:g}",
            change="make the data cheaper (`bridge-data bench --profile` shows what costs most), or use more cores",
            gain=f"steps of {run.step_s:.3g} s instead of at least {run.step_s * cores / environment.num_cores:.3g} s",
            factor=cores / environment.num_cores,
        )
    elif figures.batches_per_s < needed:
        factor = needed / figures.batches_per_s
        workers = math.ceil(max(1, run.num_workers) * factor * RESERVE)
        yield Finding(
            code="slow-data",
            level=Level.SLOWS,
            what=f"a rank makes {figures.batches_per_s * of_samples:,.0f} samples/s with num_workers={run.num_workers}"
            f", and needs {needed * of_samples:,.0f}",
            change=f"set num_workers={workers}, and measure again",
            gain=f"steps of {run.step_s:.3g} s instead of {run.step_s * factor:.3g} s, if the rate grows with them",
            factor=factor,
        )
