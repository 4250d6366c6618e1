"""The Megatron loop on real data, killed and resumed, and resumed on other topologies."""

import shutil
from pathlib import Path

import pytest

from recipes.compare_runs import Comparison, compare
from recipes.run_log import read_run
from recipes.trainer.checkpoint import LATEST_FILE, iteration_folder, latest_iteration
from tests.recipes.trainer.job import (
    DIES_WHILE_SAVING,
    NUM_STEPS,
    arguments,
    evaluations,
    make_inputs,
    output_of,
    run_job,
)

JOB = ["recipes.train"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def whole(inputs: Path) -> Path:
    """A run that nothing happened to; it evaluates on the way."""
    run = inputs / "whole"
    evaluation = ["training.eval_interval=4", "training.eval_iters=2", "data.multiple_validation_sets=true"]
    assert run_job([*JOB, *arguments(inputs, run, *evaluation)], run) == 0, output_of(run)
    return run


def compare_with(whole: Path, run: Path, first: int) -> Comparison:
    return compare("run", read_run(run), read_run(whole), range(first, NUM_STEPS))


def continue_from(whole: Path, run: Path, step: int) -> None:
    """Give a new run the checkpoint of `whole` after `step` steps."""
    folder = iteration_folder(whole / "checkpoints", step)
    shutil.copytree(folder, iteration_folder(run / "checkpoints", step))
    (run / "checkpoints" / LATEST_FILE).write_text(str(step))


def test_a_run_leaves_checkpoints_as_megatron_names_them(whole: Path) -> None:
    folder = whole / "checkpoints" / "iter_0000003"
    for name in ("metadata.json", "__0_0.distcp", "train_dataloader_dprank000.pt"):
        assert (folder / name).is_file()
    assert latest_iteration(whole / "checkpoints") == NUM_STEPS
    assert not list((whole / "checkpoints").glob("*.partial"))


def test_the_loss_falls_and_is_evaluated_at_the_interval_on_each_validation_set(whole: Path) -> None:
    batches = read_run(whole)
    assert batches[NUM_STEPS - 1].loss < batches[0].loss - 0.1
    losses = evaluations(output_of(whole))
    assert list(losses) == [
        (4, "captions/tars/val"),
        (4, "questions/tars/val"),
        (8, "captions/tars/val"),
        (8, "questions/tars/val"),
    ]
    assert len(set(losses.values())) == 4


def test_killed_while_saving_a_run_resumes_from_the_checkpoint_before_bit_by_bit(inputs: Path, whole: Path) -> None:
    run = inputs / "killed"
    assert run_job(["-c", DIES_WHILE_SAVING, *arguments(inputs, run)], run) == -9
    killed = read_run(run)
    assert compare("killed", killed, read_run(whole), range(6)).complaints == ()
    assert latest_iteration(run / "checkpoints") == 3
    assert (run / "checkpoints" / "iter_0000006.partial").is_dir()

    resumed = inputs / "resumed"
    shutil.copytree(run / "checkpoints", resumed / "checkpoints")
    assert run_job([*JOB, *arguments(inputs, resumed)], resumed) == 0, output_of(resumed)
    result = compare_with(whole, resumed, first=3)
    assert result.complaints == ()
    assert result.losses == "bit-equal"
    assert min(read_run(resumed)) == 3
    assert latest_iteration(resumed / "checkpoints") == NUM_STEPS
    assert not list((resumed / "checkpoints").glob("*.partial"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data", "tensor", "pipeline", "context"])
def test_one_rank_s_checkpoint_goes_on_under_any_parallelism(inputs: Path, whole: Path, name: str) -> None:
    run = inputs / f"{name}_parallel"
    continue_from(whole, run, 3)
    sizes = [] if name == "data" else [f"parallel.{name}_parallel_size=2"]
    whole_rows = "encoder.conversation.pad_to_max_length=true"  # so that context parallelism can cut them
    command = [*JOB, *arguments(inputs, run, whole_rows, *sizes)]
    assert run_job(command, run, num_ranks=2) == 0, output_of(run)
    batches, expected = read_run(run), read_run(whole)
    assert list(batches) == list(range(3, NUM_STEPS))
    for step, batch in batches.items():
        assert batch.keys == expected[step].keys
        assert batch.loss == pytest.approx(expected[step].loss, abs=1e-4)


@pytest.mark.slow
def test_weights_in_bfloat16_resume_bit_by_bit(inputs: Path) -> None:
    run, resumed = inputs / "bf16", inputs / "bf16_resumed"
    assert run_job([*JOB, *arguments(inputs, run, "model.dtype=bfloat16")], run) == 0, output_of(run)
    continue_from(run, resumed, 3)
    assert run_job([*JOB, *arguments(inputs, resumed, "model.dtype=bfloat16")], resumed) == 0, output_of(resumed)
    assert compare_with(run, resumed, first=3).complaints == ()
