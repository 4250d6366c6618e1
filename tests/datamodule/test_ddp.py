"""Two ranks under Lightning's ddp, both killed after a checkpoint: they resume at the right sample."""

import json
import signal
from pathlib import Path

from tests.datamodule.launch import run_job
from tests.datamodule.parts import draw, make_module, write_numbers

JOB = ("-m", "tests.datamodule.ddp_job")


def logged(folder: Path, rank: int) -> list[tuple[int, list[int]]]:
    """(step, numbers) of each micro-batch of a rank."""
    return [tuple(json.loads(line)) for line in (folder / f"rank{rank}.jsonl").read_text().splitlines()]


def test_two_ranks_killed_after_a_checkpoint_resume_at_the_right_sample(tmp_path: Path) -> None:
    data = write_numbers(tmp_path / "data")
    reference = draw(make_module(data, num_lanes=4).train_dataloader(), 32)
    killed, resumed = tmp_path / "killed", tmp_path / "resumed"
    killed.mkdir()
    resumed.mkdir()

    status, output = run_job(*JOB, str(data), str(killed), "8", "5", "1")
    assert status == -signal.SIGKILL, output
    checkpoint = killed / "step=4.ckpt"
    assert checkpoint.exists(), output
    status, output = run_job(*JOB, str(data), str(resumed), "8", "-1", "0", str(checkpoint))
    assert status == 0, output
    assert output.count("init_global_step=4") == 2

    for rank in range(2):
        mine = [(number // 2, batch) for number, batch in enumerate(reference[rank::2])]
        assert logged(killed, rank) == mine[:10]
        assert logged(resumed, rank) == mine[8:16]
