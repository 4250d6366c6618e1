"""A loader that Lightning trains with, without the DataModule: its state, and the warning of one that is late."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from bridge_data import DefaultTaskEncoder, stateless
from tests.datamodule.conftest import path as path
from tests.datamodule.lightning_parts import Recorder, make_trainer
from tests.datamodule.parts import make_module


class Generating(DefaultTaskEncoder):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        yield sample


@pytest.mark.parametrize("of_rank", [False, True], ids=["module", "rank"])
@pytest.mark.parametrize(
    ("options", "is_late"),
    [({"task_encoder": Generating()}, True), ({"virtual_epoch_length": 8}, False)],
    ids=["no length", "length"],
)
def test_of_a_loader_without_the_module_the_position_is_saved_and_told_if_it_is_late(
    path: Path, tmp_path: Path, options: dict[str, Any], of_rank: bool, is_late: bool
) -> None:
    def trained(max_steps: int, ckpt_path: Path | None = None) -> Recorder:
        loader = make_module(path, **options).train_dataloader()
        trainer, recorder = make_trainer(tmp_path, max_steps=max_steps), Recorder()
        trainer.fit(recorder, loader.dataloader if of_rank else loader, ckpt_path=ckpt_path)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer.save_checkpoint(tmp_path / f"{max_steps}.ckpt")
        assert any("is one batch after" in str(warning.message) for warning in caught) == is_late
        return recorder

    expected = trained(7).trained
    trained(3)
    assert trained(6, tmp_path / "3.ckpt").trained == (expected[4:7] if is_late else expected[3:6])
