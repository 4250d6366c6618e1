from pathlib import Path

import pytest

from bridge_data.loader.checkpoint import save_states
from bridge_data.order.state import LoaderState
from recipes.demo import RESUMES, Demo, count_pending, key_to_skip, main
from recipes.run_log import StepLog


def make_demo(folder: Path, num_steps: int = 40) -> Demo:
    return Demo(folder, num_steps, [run.name for run in RESUMES])


@pytest.mark.parametrize("num_steps", [16, 17, 23, 40, 100])
def test_the_kill_falls_between_saves_in_the_middle_of_the_run(tmp_path: Path, num_steps: int) -> None:
    demo = make_demo(tmp_path, num_steps)
    steps_done = demo.kill_after_step + 1
    assert demo.save_interval < steps_done < num_steps - demo.save_interval
    assert 0 < steps_done % demo.save_interval < demo.save_interval - 1, "there must be room for a late SIGKILL"


def test_too_few_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--steps", "15"])
    assert "expected at least 16" in capsys.readouterr().err


def test_samples_in_packing_buffers_are_counted(tmp_path: Path) -> None:
    base = {"draws": 0, "cursors": {}}
    pending = {"packs": [[0, 3], [1]], "carried": [2], "base": base}
    lanes = {0: {"draws": 4, "cursors": {"0": [0, 0, 4, 4]}, "micro_batches": 4, "pending": pending}, 1: {}}
    fingerprint = {"sources": [["00", "texts"]], "weights": None, "order": "shuffled", "packing_buffer_size": 4}
    save_states(tmp_path, LoaderState(fingerprint, [(2, [[8, 8, 64, 0]])], 8, lanes).to_dict(), step=4, world_size=2)
    assert count_pending(tmp_path) == 4


def test_the_skipped_sample_is_one_that_first_comes_after_the_resume(tmp_path: Path) -> None:
    log = StepLog(tmp_path, 0, 1)
    for step in range(10):
        log.append(step, 1.0, [(step, ["again", f"new{step}"])])
    assert key_to_skip(tmp_path, 4) == "new7"
