"""The Megatron script with all that happens to a run: a signal, a SIGKILL, other numbers of ranks; step by step what
the uninterrupted run does."""

import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from recipes.demo.compare import compare, read_run
from recipes.demo.jobs import run_job
from tests.recipes.vlm_job import arguments, make_inputs

NUM_STEPS, SIGNAL_AFTER = 12, 7
"""The signal comes after a checkpoint: Megatron then has processes of its own."""


def start(inputs: Path, run: Path, num_ranks: int, on_step: Any = lambda line: None, **job: Any) -> None:
    """Run it, from its newest checkpoint on."""
    given = arguments(inputs, run, data_global_batch_size=8, data_num_workers=1, train_steps=NUM_STEPS)
    run_job("recipes.demo.on_cpu", given, folder=run, num_ranks=num_ranks, on_step=on_step, **job)


@pytest.mark.slow
def test_whatever_happens_to_a_run_it_goes_on_as_the_uninterrupted_one(tmp_path: Path) -> None:
    inputs, whole, run = make_inputs(tmp_path), tmp_path / "whole", tmp_path / "run"
    start(inputs, whole, 2)
    reference = read_run(whole)

    def terminate(line: dict[str, Any]) -> None:
        if line["step"] == SIGNAL_AFTER:
            for process in psutil.Process().children(recursive=True):
                if "RANK" in process.environ():  # ranks, and what they have started: so torchrun and Slurm do it
                    process.send_signal(signal.SIGTERM)

    start(inputs, run, 2, terminate)
    ended = max(read_run(run))
    assert SIGNAL_AFTER <= ended < NUM_STEPS - 2
    assert (run / "latest_checkpointed_iteration.txt").read_text() == str(ended)
    assert compare("signalled", read_run(run), reference, range(1, ended + 1)).complaints == ()

    part = _part(run, "killed")
    kill_after = max(ended, 6) + 1
    start(inputs, part, 2, kill_after_step=kill_after)
    assert min(read_run(part)) == ended + 1
    assert compare("killed", read_run(part), reference, range(ended + 1, kill_after)).complaints == ()

    resumed = _part(part, "on four ranks")
    start(inputs, resumed, 4)
    first = min(read_run(resumed))
    assert first in (7, ended + 1, kill_after + 1), "the last checkpoint"
    assert compare("resumed", read_run(resumed), reference, range(first, NUM_STEPS + 1)).complaints == ()


def _part(run: Path, name: str) -> Path:
    """A new folder for what follows, with the checkpoints of `run`."""
    folder = run.with_name(name)
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns("steps_*", "ranks", "*.log"))
    return folder
