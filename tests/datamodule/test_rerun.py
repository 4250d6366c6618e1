"""Under Megatron's rerun machine, which repeats a step whose result is not to be believed."""

import json
from pathlib import Path

import pytest

from tests.datamodule.parts import draw, make_module, write_numbers
from tests.ranks import run_job


@pytest.mark.processes
def test_a_step_that_is_run_again_has_the_same_batches_and_the_saved_position_is_behind_them(tmp_path: Path) -> None:
    data = write_numbers(tmp_path / "data")
    status, output = run_job("tests.datamodule.rerun_job", str(data), str(tmp_path / "seen.json"))
    assert status == 0, output
    seen = json.loads((tmp_path / "seen.json").read_text())
    drawn = draw(make_module(data).train_dataloader(), 10)
    steps = [drawn[start : start + 2] for start in range(0, 10, 2)]
    goes_on, saves_and_exits = [False, False], [True, True]
    assert seen["steps"] == [
        [[steps[0]], goes_on],
        [[steps[1], steps[1]], goes_on],
        [[steps[2]], goes_on],
        [[steps[3], steps[3]], saves_and_exits],
    ]
    assert seen["after"] == steps[3]
    assert seen["replayed"] == steps[3], "what the machine keeps of the step in progress"
    assert seen["then"] == steps[4], "and the loader goes on behind it"
