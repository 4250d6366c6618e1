"""A model that keeps what it sees, and trainers for it."""

import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from bridge_data import EnergonMultiModalDataModule
from tests.datamodule.parts import NUM_TRAIN, NUM_VAL, numbers

VAL = [[number] for number in range(NUM_TRAIN, NUM_TRAIN + NUM_VAL)]


class Recorder(lightning.LightningModule):
    """Keeps the numbers of its batches; those of evaluations each by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.trained: list[list[int]] = []
        self.evaluated: list[list[list[int]]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.trained.append(numbers(batch))
        return self.weight * 0

    def on_validation_start(self) -> None:
        self.evaluated.append([])

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.evaluated[-1].append(numbers(batch))

    def on_test_start(self) -> None:
        self.evaluated.append([])

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluated[-1].append(numbers(batch))

    def predict_step(self, batch: Any, batch_idx: int) -> list[int]:
        return numbers(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def make_trainer(folder: Path, **options: Any) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    chosen = {"accelerator": "cpu", "limit_val_batches": 0, "enable_checkpointing": False, **quiet, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lightning.Trainer(default_root_dir=folder, **chosen)


def fit(module: EnergonMultiModalDataModule, trainer: lightning.Trainer, **options: Any) -> Recorder:
    recorder = Recorder()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(recorder, datamodule=module, **options)
    return recorder


def keeping(folder: Path, **when: Any) -> ModelCheckpoint:
    return ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, **when)


def saving(folder: Path) -> dict[str, Any]:
    return {"callbacks": [keeping(folder, every_n_train_steps=2)], "enable_checkpointing": True}
