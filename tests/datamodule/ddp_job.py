"""A Lightning job of two ranks that logs what it trains and validates on, for `test_ddp.py`.

ddp_job DATA FOLDER NUM_STEPS KILL_AT [CHECKPOINT]
"""

import dataclasses
import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from bridge_data import DefaultTaskEncoder
from tests.datamodule.parts import make_module, numbers


class Emptying(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Texts have no loss mask that could be zeroed."""

    def empty_batch(self, batch: Any) -> Any:
        return dataclasses.replace(batch, __key__=[], text=[])


class Logger(lightning.LightningModule):
    """Logs the numbers of each batch, a line each; ends as by the out-of-memory killer at step `kill_at`."""

    def __init__(self, folder: Path, kill_at: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.folder, self.kill_at = folder, kill_at

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self._write("rank", [self.global_step, numbers(batch)])
        return self.layer(torch.tensor([[float(sum(numbers(batch)))]])).mean() * 1e-6

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._write("val", [self.global_step, dataloader_idx, numbers(batch)])

    def _write(self, name: str, line: list[Any]) -> None:
        with (self.folder / f"{name}{self.global_rank}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def main(data: str, folder: str, num_steps: str, kill_at: str, num_workers: str, checkpoint: str | None = None) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=int(num_steps),
        limit_train_batches=6,
        accumulate_grad_batches=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(dirpath=folder, filename="{step}", every_n_train_steps=2, save_top_k=-1)],
    )
    settings = {"num_workers": int(num_workers), "num_val_workers": 0, "num_lanes": 4, "global_batch_size": 4}
    module = make_module(data, task_encoder=Emptying(), multiple_validation_sets=True, **settings)
    trainer.fit(Logger(Path(folder), int(kill_at)), datamodule=module, ckpt_path=checkpoint)
    print(f"init_global_step={module.init_global_step}")
    print(f"wrapped={trainer.train_dataloader is not module.train_dataloader_object}")


if __name__ == "__main__":
    main(*sys.argv[1:])
