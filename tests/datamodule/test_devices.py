"""A Lightning checkpoint within an epoch, resumed on another number of devices: every step has a whole global batch."""

import collections
import json
from pathlib import Path

import pytest

from tests.datamodule import devices_job
from tests.datamodule.parts import draw, make_module
from tests.ranks import run_job

STEPS = range(10)


def trained(
    path: Path, folder: Path, num_devices: int, global_batch_size: int, num_steps: int, checkpoint: Path | None = None
) -> dict[int, list[int]]:
    """The numbers that a run trains on in each step, on all ranks."""
    folder.mkdir()
    arguments = [str(path), str(folder), str(num_devices), str(global_batch_size), str(num_steps)]
    arguments += [] if checkpoint is None else [str(checkpoint)]
    if num_devices == 1:
        devices_job.main(*arguments)
    else:
        status, output = run_job("tests.datamodule.devices_job", *arguments, num_ranks=num_devices)
        assert status == 0, output
    steps: dict[int, list[int]] = collections.defaultdict(list)
    for rank in range(num_devices):
        for line in (folder / f"rank{rank}.jsonl").read_text().splitlines():
            step, batch = json.loads(line)
            steps[step] += batch
    return {step: sorted(batch) for step, batch in steps.items()}


def whole_run(path: Path, global_batch_size: int) -> dict[int, list[int]]:
    """What every step of a run without an interruption trains on."""
    loader = make_module(path, num_lanes=12, global_batch_size=global_batch_size).train_dataloader()
    batches = draw(loader, len(STEPS) * global_batch_size)
    flat = [number for batch in batches for number in batch]
    return {step: sorted(flat[step * global_batch_size :][:global_batch_size]) for step in STEPS}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("devices", "global_batch_size"), [([1, 2, 1], 4), pytest.param([4, 3], 12, marks=pytest.mark.slow)]
)
def test_a_run_goes_on_with_other_numbers_of_devices(
    path: Path, tmp_path: Path, devices: list[int], global_batch_size: int
) -> None:
    """Train 2 steps on each of `devices` in turn, from the checkpoint after the first step of the run before."""
    whole, checkpoint = whole_run(path, global_batch_size), None
    for done, num_devices in enumerate(devices):
        run = tmp_path / f"{done}-on-{num_devices}"
        assert trained(path, run, num_devices, global_batch_size, done + 2, checkpoint) == {
            step: whole[step] for step in (done, done + 1)
        }
        checkpoint = run / f"step={done + 1}.ckpt"


@pytest.mark.parametrize("num_devices", [1, pytest.param(2, marks=[pytest.mark.processes, pytest.mark.slow])])
def test_a_checkpoint_within_a_step_begins_the_step_again(num_devices: int, path: Path, tmp_path: Path) -> None:
    trained(path, tmp_path / "first", 1, 4, 4)
    whole = whole_run(path, 4)
    resumed = trained(path, tmp_path / "resumed", num_devices, 4, 6, tmp_path / "first" / "within.ckpt")
    assert resumed == {step: whole[step] for step in range(2, 6)}
