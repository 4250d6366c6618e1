"""Train a model of transformers under Lightning; all settings are those of LightningCLI:

    python -m recipes.lightning.train_hf fit --config recipes/lightning/trainer.yaml --config configs/llava.yaml \
        --model.pretrained llava-hf/llava-1.5-7b-hf --data.path /data/blend.yaml

Started again it goes on from the newest checkpoint, on any number of devices.
"""

from typing import Any

import lightning
import torch
from lightning.pytorch.cli import LightningCLI

from bridge_data import EnergonMultiModalDataModule


class HFModel(lightning.LightningModule):
    """The model of a checkpoint: `pretrained` is its folder or hub id, `auto_class` a class of transformers that loads
    it, and `dtype` that of the weights."""

    def __init__(
        self, pretrained: str, auto_class: str = "AutoModelForImageTextToText", dtype: str = "bfloat16"
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model: Any = None

    def configure_model(self) -> None:
        import transformers

        if self.model is None:
            auto_class, dtype = getattr(transformers, self.hparams.auto_class), getattr(torch, self.hparams.dtype)
            self.model = auto_class.from_pretrained(self.hparams.pretrained, dtype=dtype).train()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch.model_inputs()).loss
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        loss = self.model(**batch.model_inputs()).loss
        self.log("val_loss", loss, batch_size=len(batch.__key__), sync_dist=True)


if __name__ == "__main__":
    LightningCLI(HFModel, EnergonMultiModalDataModule)
