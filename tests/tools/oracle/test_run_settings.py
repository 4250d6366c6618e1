"""States out of checkpoints of Lightning, as the tools read them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import StateError
from bridge_data.loader.checkpoint import save_states
from bridge_data.tools.runs import read_states
from tests.prepared import write_texts
from tests.tools.oracle.parts import Run


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = Run({"batch_size": 2, "shuffle_buffer_size": 20, "max_samples_per_sequence": 10})
    run.leg(write_texts(tmp_path_factory.mktemp("texts"), 60), 1, 5, num_lanes=2)
    return run.states[0].to_dict()


def checkpoint(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What Lightning saves, as far as it matters."""
    of_module = {"train_dataloader": state, "micro_batches_in_epoch": 5}
    return {"global_step": 5, "state_dict": {"weight": torch.zeros(3)}, "MyDataModule": of_module, **more}


def test_states_are_read_out_of_checkpoints_of_lightning(tmp_path: Path, state: dict[str, Any]) -> None:
    torch.save(checkpoint(state), tmp_path / "step=5.ckpt")
    save_states(tmp_path / "iter_0000007", state, step=7, world_size=1)
    for paths in ([tmp_path], [tmp_path / "iter_0000007", tmp_path / "step=5.ckpt"]):
        found = {one.step: one.state.to_dict() for one in read_states(paths)}
        assert found == {5: state, 7: state}


def test_a_folder_without_states_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="holds no data state"):
        read_states([tmp_path])
