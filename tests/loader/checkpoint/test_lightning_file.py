from fractions import Fraction
from pathlib import Path

import pytest
import torch

from bridge_data.errors import StateError
from bridge_data.loader.checkpoint import read_checkpoint
from bridge_data.tools.oracle import read_states
from tests.loader.checkpoint.states import make_state


def saved(file: Path, **content: object) -> Path:
    """A checkpoint as Lightning lays it out."""
    weights = {"weight": torch.zeros(1000)}
    data = {"EnergonMultiModalDataModule": {"train_dataloader": make_state(), "micro_batches_in_epoch": 8}}
    torch.save({"global_step": 10, "state_dict": weights, **data, **content}, file)
    return file


def test_the_state_in_a_checkpoint_of_lightning_is_read(tmp_path: Path) -> None:
    found = read_checkpoint(saved(tmp_path / "step=10.ckpt"))
    assert (found.step, found.world_size, found.state.to_dict()) == (10, None, make_state())
    saved(tmp_path / "step=20.ckpt", global_step=20)
    assert [one.step for one in read_states([tmp_path])] == [10, 20]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"EnergonMultiModalDataModule": {}}, "has no state of the data: it was saved without the DataModule"),
        ({"EnergonMultiModalDataModule": {"train_dataloader": {"version": 99}}}, r"a\.ckpt: .*version"),
        ({"AnotherModule": {"train_dataloader": {}}}, "has the states of 2 DataModules, expected one"),
        ({"hyper_parameters": Fraction(1, 2)}, "holds objects .* which are not loaded"),
    ],
)
def test_what_has_no_state_to_read_is_refused(tmp_path: Path, content: dict[str, object], message: str) -> None:
    with pytest.raises(StateError, match=message):
        read_checkpoint(saved(tmp_path / "a.ckpt", **content))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.ckpt")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(StateError, match=r"a\.ckpt: cannot be read as a checkpoint of Lightning"):
        read_checkpoint(file)
