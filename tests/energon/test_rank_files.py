"""Files that each data-parallel rank saved for itself, restored by training code that goes on whatever happens."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.prepared import write_texts
from tests.ranks import run_job


def state_file(folder: Path, rank: int) -> Path:
    return folder / f"train_dataloader_dprank{rank:03d}.pt"


pytestmark = pytest.mark.processes

SAVED_AFTER, MORE = 3, 12
"""Steps of two ranks, and micro-batches that a resumed job of any number of ranks takes."""


class Jobs:
    """A folder of data and files, where jobs run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = write_texts(folder / "texts", 300)

    def run(self, *runs: str) -> None:
        """Each is `NAME:RANKS:STEPS:LOAD:SAVE`."""
        status, output = run_job("tests.energon.rank_files_job", str(self.data), str(self.folder), *runs)
        assert status == 0, output

    def ranks(self, name: str) -> list[dict[str, Any]]:
        files = sorted(self.folder.glob(f"{name}-*.json"))
        return [json.loads(file.read_text()) for file in files]

    def texts(self, name: str, first_slot: int = 0) -> list[list[str]]:
        """The micro-batches of all ranks, in the order of the job from micro-batch `first_slot` on."""
        ranks = self.ranks(name)
        first_rank = first_slot % len(ranks)
        ranks = ranks[first_rank:] + ranks[:first_rank]
        assert [rank["failure"] for rank in ranks] == [""] * len(ranks)
        return [texts for step in zip(*(rank["texts"] for rank in ranks), strict=True) for texts in step]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """A job of two ranks, uninterrupted; and one that ended after it had saved."""
    made = Jobs(tmp_path_factory.mktemp("jobs"))
    made.run(f"whole:2:{SAVED_AFTER + MORE // 2}::", f"first:2:{SAVED_AFTER}::saved")
    return made


def test_one_rank_two_and_more_go_on_where_two_were(jobs: Jobs) -> None:
    jobs.run(*(f"on{num_ranks}:{num_ranks}:{MORE // num_ranks}:saved:" for num_ranks in (1, 2, 3, 4)))
    expected = jobs.texts("whole")
    assert jobs.texts("first") == expected[: 2 * SAVED_AFTER]
    for num_ranks in (1, 2, 3, 4):
        assert jobs.texts(f"on{num_ranks}", 2 * SAVED_AFTER) == expected[2 * SAVED_AFTER :], f"{num_ranks} ranks"


def test_a_rank_whose_file_is_lost_gets_its_part_from_rank_0(jobs: Jobs) -> None:
    shutil.copytree(jobs.folder / "saved", jobs.folder / "lost")
    state_file(jobs.folder / "lost", 1).unlink()
    jobs.run(f"with_lost:2:{MORE // 2}:lost:", "nothing:2:1:nowhere:")
    assert jobs.texts("with_lost") == jobs.texts("whole")[2 * SAVED_AFTER :]
    assert jobs.texts("nothing") == jobs.texts("whole")[:2], "none has a file: the run begins"


def test_no_batches_are_handed_out_after_a_state_was_refused(jobs: Jobs) -> None:
    whole, own = (torch.load(state_file(jobs.folder / "saved", rank)) for rank in (0, 1))
    other = json.loads(json.dumps(whole))
    other["dataloader_state_dict"]["micro_batch_index"] += 2
    for name, states in {
        "own": [own, own],
        "steps": [whole, other],
        "other": [{"dataloader_state_dict": {}}] * 2,
    }.items():
        (jobs.folder / name).mkdir()
        for rank, state in enumerate(states):
            torch.save(state, state_file(jobs.folder / name, rank))
    jobs.run("refused_own1:1:1:own:", "refused_own2:2:1:own:", "refused_steps:2:1:steps:", "refused_other:2:1:other:")
    for name in ("refused_own1", "refused_own2", "refused_steps", "refused_other"):
        for rank in jobs.ranks(name):
            assert rank["texts"] == [] and rank["failure"].startswith("StateError: "), name
            assert "train_dataloader_dprank*.pt" in rank["failure"], "the way out"
