"""A Megatron run with all that happens to one: a ramp of the batch size, evaluations of two validation sets, a signal,
a SIGKILL, other numbers of ranks; step by step what the uninterrupted run does."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from recipes.compare_runs import compare
from recipes.demo_jobs import RANKS, run_job
from recipes.run_log import read_run
from tests.recipes.trainer.job import arguments as job_arguments
from tests.recipes.trainer.job import evaluations, make_inputs

NUM_STEPS, SIGNAL_AFTER = 12, 1
SIZES = [2, 2, 4, 6] + (NUM_STEPS - 4) * [8]
"""The global batches: a ramp from 2 by 2 to 8 over 12 samples."""


def start(
    inputs: Path, run: Path, num_ranks: int, on_step: Any = lambda line: None, *, num_workers: int = 1, **job: Any
) -> str:
    """Run it, from its newest checkpoint on; what it has printed."""
    arguments = job_arguments(
        inputs,
        run,
        "data.global_batch_size=8",
        "data.rampup_batch_size=[2,2,12]",
        "data.multiple_validation_sets=true",
        f"loader.num_workers={num_workers}",
        "loader.num_lanes=4",
        f"training.train_steps={NUM_STEPS}",
        "training.save_interval=3",
        "training.eval_interval=4",
        "training.exit_signal=SIGTERM",
    )
    run_job("recipes.train", arguments, folder=run, num_ranks=num_ranks, on_step=on_step, **job)
    return "".join(file.read_text() for file in (run / RANKS).glob("*/attempt_0/*/stdout.log"))


@pytest.mark.slow
def test_whatever_happens_to_a_run_it_goes_on_as_the_uninterrupted_one(tmp_path: Path) -> None:
    inputs, whole, run = make_inputs(tmp_path), tmp_path / "whole", tmp_path / "run"
    printed = start(inputs, whole, 2, num_workers=0)
    reference = read_run(whole)
    assert [len(reference[step].keys) for step in range(NUM_STEPS)] == SIZES
    expected = evaluations(printed)
    assert list(expected) == [
        (step, name) for step in (4, 8, 12) for name in ("captions/tars/val", "questions/tars/val")
    ]

    def terminate(line: dict[str, Any]) -> None:
        if line["step"] == SIGNAL_AFTER:
            os.kill(_other_rank(run), signal.SIGTERM)

    printed = start(inputs, run, 2, terminate)
    ended = max(read_run(run)) + 1
    assert SIGNAL_AFTER < ended < NUM_STEPS - 2
    assert f"SIGTERM: saved and ended after {ended} steps" in printed
    assert (run / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == str(ended)
    assert compare("signalled", read_run(run), reference, range(ended)).complaints == ()

    part = _part(run, "killed")
    kill_after = max(ended, 6)
    printed = start(inputs, part, 2, kill_after_step=kill_after)
    assert min(read_run(part)) == ended
    assert compare("killed", read_run(part), reference, range(ended, kill_after)).complaints == ()
    evaluated = evaluations(printed)
    assert evaluated == {place: loss for place, loss in expected.items() if place in evaluated}

    resumed = _part(part, "on four ranks")
    printed = start(inputs, resumed, 4, num_workers=0)
    first = min(read_run(resumed))
    assert first in (6, ended, kill_after + 1), "the last checkpoint"
    assert sum(SIZES[:first]) % 4 == 2, "the next micro-batch is not that of rank 0"
    assert compare("resumed", read_run(resumed), reference, range(first, NUM_STEPS)).complaints == ()
    evaluated = evaluations(printed)
    assert list(evaluated) == [place for place in expected if place[0] > first]
    assert evaluated == pytest.approx({place: expected[place] for place in evaluated}, abs=1e-4)


def _other_rank(run: Path) -> int:
    """The process of data-parallel rank 1."""
    pid: int = json.loads((run / "steps_dprank001.jsonl").read_text().splitlines()[0])["pid"]
    return pid


def _part(run: Path, name: str) -> Path:
    """A new folder for what follows, with the checkpoints of `run`."""
    folder = run.with_name(name)
    shutil.copytree(run / "checkpoints", folder / "checkpoints")
    return folder
