import collections
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge_data.errors import StateError
from bridge_data.loader.checkpoint import load_sharded_state, sharded_state
from tests.loader.checkpoint.gloo_ranks import MORE, STEPS
from tests.loader.checkpoint.states import make_state
from tests.prepared import write_texts

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the ranks of `gloo_ranks` left."""
    folder = tmp_path_factory.mktemp("ranks")
    write_texts(folder / "texts", 600)
    command = [sys.executable, "-m", "tests.loader.checkpoint.gloo_ranks", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr[-5_000:]
    return folder


def results(folder: Path, name: str, world_size: int) -> list[dict[str, Any]]:
    """What each rank reported."""
    return [json.loads((folder / f"{name}-{world_size}-{rank}.json").read_text()) for rank in range(world_size)]


def in_order(ranks: list[dict[str, Any]], name: str) -> list[list[str]]:
    """The micro-batches of the job."""
    return [batch for batches in zip(*(rank[name] for rank in ranks), strict=True) for batch in batches]


def test_all_forms_load_at_any_data_parallel_size(folder: Path) -> None:
    for world_size in (1, 2, 3):
        assert [rank["equal"] for rank in results(folder, "load", world_size)] == [True] * world_size


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_run_goes_on_as_if_never_stopped(folder: Path, world_size: int) -> None:
    expected = in_order(results(folder, "save", 4), "after")
    assert len(expected) == 4 * MORE
    assert in_order(results(folder, "load", world_size), "after") == expected


def test_three_ranks_deal_anew_and_repeat_nothing(folder: Path) -> None:
    before = in_order(results(folder, "save", 4), "before")
    after = in_order(results(folder, "load", 3), "after")
    assert len(before) == 4 * STEPS
    keys = collections.Counter(key for batch in before + after for key in batch)
    assert set(keys.values()) == {1}


def test_a_rank_at_another_step_fails_the_save_on_all(folder: Path) -> None:
    messages = {rank["refusal"] for rank in results(folder, "save", 4)}
    assert len(messages) == 1
    assert "data-parallel rank 2 has next_slot 12, rank 0 has 28" in messages.pop()
    assert not (folder / "failed" / "train_dataloader_manifest.json").exists()


def test_what_holds_no_whole_sharded_state_is_refused(folder: Path) -> None:
    messages = results(folder, "refuse", 1)[0]
    assert "is no checkpoint of megatron.core.dist_checkpointing" in messages["texts"]
    assert "expected objects named 'train_dataloader'" in messages["model-only"]
    assert "without those of ranks [1]" in messages["half"]


def test_outside_a_distributed_run_it_says_how_to_have_one(tmp_path: Path) -> None:
    for attempt in (lambda: sharded_state(make_state()), lambda: load_sharded_state(tmp_path)):
        with pytest.raises(StateError, match=r"needs a process group, be it of one process: .*init_process_group"):
            attempt()
