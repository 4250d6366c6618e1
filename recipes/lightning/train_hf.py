"""Train a model of transformers under Lightning; all settings are those of LightningCLI:

    python -m recipes.lightning.train_hf fit --config recipes/lightning/trainer.yaml --config configs/llava.yaml \
        --model.pretrained llava-hf/llava-1.5-7b-hf --data.path /data/blend.yaml

Started again it goes on from the newest checkpoint, on any number of devices.
"""

from typing import Any

import lightning
import torch
import transformers
from lightning.pytorch.cli import LightningCLI, OptimizerCallable

from bridge_data import EnergonMultiModalDataModule


class HFModel(lightning.LightningModule):
    """The model of a checkpoint: `pretrained` is its folder or hub id, `auto_class` a class of transformers that loads
    it, and `dtype` that of the weights."""

    def __init__(
        self,
        pretrained: str,
        auto_class: str = "AutoModelForImageTextToText",
        dtype: str = "bfloat16",
        optimizer: OptimizerCallable = torch.optim.AdamW,
    ) -> None:
        super().__init__()
        self.pretrained, self.auto_class, self.dtype_name = pretrained, auto_class, dtype
        self.optimizer = optimizer
        self.model: Any = None

    def configure_model(self) -> None:
        if self.model is None:
            kind, dtype = getattr(transformers, self.auto_class), getattr(torch, self.dtype_name)
            self.model = kind.from_pretrained(self.pretrained, dtype=dtype).train()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.optimizer(self.parameters())

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch.model_inputs()).loss
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        loss = self.model(**batch.model_inputs()).loss
        self.log("val_loss", loss, batch_size=len(batch.__key__), sync_dist=True)


if __name__ == "__main__":
    LightningCLI(HFModel, EnergonMultiModalDataModule)
