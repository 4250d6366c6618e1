"""A Lightning job that can be resumed on another number of devices, for `test_devices.py`; it logs what it trains on.

devices_job DATA FOLDER NUM_DEVICES GLOBAL_BATCH_SIZE NUM_STEPS [CHECKPOINT]
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.datamodule.parts import make_module, numbers

STEPS_PER_EPOCH = 3


class Logger(lightning.LightningModule):
    """Logs the step and the numbers of each batch, a line each."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.folder = folder

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        with (self.folder / f"rank{self.global_rank}.jsonl").open("a") as file:
            file.write(json.dumps([self.global_step, numbers(batch)]) + "\n")
        return self.layer(torch.tensor([[float(sum(numbers(batch)))]])).mean() * 1e-6

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


class WithinStep(lightning.Callback):
    """Saves `within.ckpt` after the first micro-batch of step 2."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        progress = trainer.fit_loop.epoch_loop.batch_progress.total
        if progress.ready == 2 * trainer.accumulate_grad_batches + 1:
            trainer.save_checkpoint(self._folder / "within.ckpt")


def main(
    data: str,
    folder: str,
    num_devices: str,
    global_batch_size: str,
    num_steps: str,
    checkpoint: str | None = None,
) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    num_micro_batches = int(global_batch_size) // int(num_devices)
    every_step = ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(num_devices),
        strategy="ddp" if int(num_devices) > 1 else "auto",
        max_steps=int(num_steps),
        limit_train_batches=STEPS_PER_EPOCH * num_micro_batches,
        limit_val_batches=0,
        accumulate_grad_batches=num_micro_batches,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[every_step, WithinStep(Path(folder))],
    )
    module = make_module(data, num_lanes=12, global_batch_size=int(global_batch_size))
    trainer.fit(Logger(Path(folder)), datamodule=module, ckpt_path=checkpoint)


if __name__ == "__main__":
    main(*sys.argv[1:])
