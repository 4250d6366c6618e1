"""Two ranks under Lightning's ddp: they share training and validation, and resume at the right sample when killed."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.datamodule.parts import NUM_TRAIN, NUM_VAL, draw, make_module, write_numbers
from tests.prepared import write_texts
from tests.ranks import run_job

SETS = """\
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train: {path: data}
  val: {blend: [{path: data}, {path: few, split_part: train}]}
"""
JOB = "tests.datamodule.ddp_job"


def logged(folder: Path, rank: int, kind: str = "rank") -> list[tuple[Any, ...]]:
    """(step, numbers) of each micro-batch that a rank has trained on; of validation ("val"): (step, set, numbers)."""
    return [tuple(json.loads(line)) for line in (folder / f"{kind}{rank}.jsonl").read_text().splitlines()]


def validated(rank: int, *, steps: list[int], sanity_check: bool) -> list[tuple[int, int, list[int]]]:
    """What a rank sees of 24 samples, and of 5: where the other has one more, an empty batch."""
    sets = [[[number] for number in range(NUM_TRAIN, NUM_TRAIN + NUM_VAL)][rank::2], [[0], [2], [4]]]
    if rank == 1:
        sets[1] = [[1], [3], []]
    checked = [(0, number, batch) for number, batches in enumerate(sets) for batch in batches[:2]]
    return checked * sanity_check + [
        (step, number, batch) for step in steps for number, batches in enumerate(sets) for batch in batches
    ]


@pytest.mark.slow  # the demo does so too
@pytest.mark.processes
def test_two_ranks_killed_after_a_checkpoint_resume_at_the_right_sample(tmp_path: Path) -> None:
    reference = draw(make_module(write_numbers(tmp_path / "data"), num_lanes=4).train_dataloader(), 32)
    write_texts(tmp_path / "few", 5)
    data = tmp_path / "sets.yaml"
    data.write_text(SETS)
    killed, resumed = tmp_path / "killed", tmp_path / "resumed"
    killed.mkdir()
    resumed.mkdir()

    status, output = run_job(JOB, str(data), str(killed), "8", "5", "1")
    assert status == -signal.SIGKILL, output
    checkpoint = killed / "step=4.ckpt"
    assert checkpoint.exists(), output
    status, output = run_job(JOB, str(data), str(resumed), "8", "-1", "0", str(checkpoint))
    assert status == 0, output
    assert output.count("init_global_step=4") == output.count("wrapped=False") == 2

    for rank in range(2):
        mine = [(number // 2, batch) for number, batch in enumerate(reference[rank::2])]
        assert logged(killed, rank) == mine[:10]
        assert logged(resumed, rank) == mine[8:16]
        assert logged(killed, rank, "val") == validated(rank, steps=[3], sanity_check=True)
        assert logged(resumed, rank, "val") == validated(rank, steps=[6], sanity_check=False)
