"""Lightning is published as two packages whose classes do not mix: the DataModule and the callback are of that which
the program has imported."""

import json
from pathlib import Path

import pytest

from tests.ranks import run_job

pytestmark = pytest.mark.processes

UNDER_ITS_OTHER_NAME = """
import json, sys, warnings
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from bridge_data import MetricsCallback
from tests.datamodule.parts import make_module, numbers

warnings.simplefilter("ignore")
path, folder = sys.argv[1:]

class Recorder(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight, self.trained = torch.nn.Parameter(torch.zeros(())), []

    def training_step(self, batch, batch_idx):
        self.trained.append(numbers(batch))
        return self.weight * 0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

def trained(max_steps, callbacks, ckpt_path=None):
    recorder = Recorder()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    quiet["enable_checkpointing"] = bool(callbacks)
    trainer = pl.Trainer(max_steps=max_steps, limit_val_batches=0, callbacks=callbacks, **quiet)
    trainer.fit(recorder, datamodule=make_module(path, num_workers=1, seed=3), ckpt_path=ckpt_path)
    return recorder.trained

saving = ModelCheckpoint(folder, every_n_train_steps=4, save_top_k=-1, filename="{step}")
whole = trained(8, [saving, MetricsCallback(every_steps=2)])
resumed = trained(8, [], f"{folder}/step=4.ckpt")
print(json.dumps([whole, resumed, "lightning.pytorch" in sys.modules]))
"""

MIXED = """
import sys
import lightning.pytorch
from tests.datamodule.parts import make_module
import pytorch_lightning as pl
pl.Trainer(logger=False, accelerator="cpu").fit(pl.LightningModule(), datamodule=make_module(sys.argv[1]))
"""


def run(code: str, *arguments: object) -> tuple[int, str]:
    packages = "bridge_data", "lightning", "pytorch_lightning", "tests"
    return run_job("-c", code, *map(str, arguments), anew=packages)


def test_a_run_under_the_other_name_trains_and_resumes(path: Path, tmp_path: Path) -> None:
    status, printed = run(UNDER_ITS_OTHER_NAME, path, tmp_path)
    assert status == 0, printed
    whole, resumed, has_both = json.loads(printed.splitlines()[-1])
    assert (len(whole), resumed, has_both) == (8, whole[4:], False)


def test_a_trainer_of_the_package_that_was_imported_later_is_refused_with_the_way_out(path: Path) -> None:
    status, printed = run(MIXED, path)
    assert status != 0
    assert "the Trainer is of pytorch_lightning, the DataModule of lightning.pytorch" in printed
    assert "Import pytorch_lightning before" in printed
