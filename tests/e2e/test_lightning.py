"""The same recipe under `lightning.Trainer`: two processes, killed after a checkpoint, resumed on both ranks."""

import shutil
from pathlib import Path

import pytest
from recipes.compare_runs import compare
from recipes.run_log import read_run

from tests.recipes.trainer.job import arguments, launch, make_inputs

NUM_STEPS = 12


def train(inputs: Path, run: Path, **options: object) -> None:
    settings = [
        "trainer=lightning",
        "loader.num_workers=1",
        f"training.train_steps={NUM_STEPS}",
        "training.save_interval=4",
        f"training.checkpoint_dir={run / 'lightning'}",
    ]
    launch(run, arguments(inputs, run, *settings), num_ranks=2, **options)


@pytest.mark.slow
def test_killed_after_a_checkpoint_both_ranks_resume_at_the_right_sample(tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path / "inputs")
    train(inputs, tmp_path / "whole")
    train(inputs, tmp_path / "killed", kill_after_step=5)
    assert [file.name for file in (tmp_path / "killed/lightning").iterdir()] == ["step=4.ckpt"]
    shutil.copytree(tmp_path / "killed/lightning", tmp_path / "resumed/lightning")
    train(inputs, tmp_path / "resumed")
    whole, resumed = read_run(tmp_path / "whole"), read_run(tmp_path / "resumed")
    assert list(resumed) == list(range(4, NUM_STEPS))
    result = compare("resumed", resumed, whole, range(4, NUM_STEPS))
    assert result.complaints == ()
    assert (result.num_ranks, result.losses) == (2, "bit-equal")
