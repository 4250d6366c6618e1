"""A recipe under `lightning.Trainer`: the same DataModule, the same model, the same log of keys and losses."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from recipes import cpu_shim
from recipes.demo_attention import sequence_numbers
from recipes.demo_step import sample_keys
from recipes.recipe import Recipe
from recipes.run_log import StepLog
from recipes.trainer.config import MegatronTrainerConfig
from recipes.trainer.parallel import global_loss, initialize_parallel

if TYPE_CHECKING:
    from bridge_data import EnergonMultiModalDataModule
    from recipes.family_recipe import FamilyRecipe


class LoggedLightningModule(lightning.LightningModule):
    """A model with plain AdamW; logs a step once its last micro-batch is done. Subclasses build it as `model`, and say
    what the losses of a batch are."""

    def __init__(self, recipe: "Recipe | FamilyRecipe", tokenizer: Any) -> None:
        super().__init__()
        self.recipe, self.tokenizer = recipe, tokenizer
        self.model: Any = None
        self._log: StepLog | None = None
        self._micro_batches: list[tuple[float, float, list[str]]] = []

    def losses(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of the losses of a batch, and over how many targets."""
        raise NotImplementedError

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW over all weights."""
        return torch.optim.AdamW(self.parameters(), lr=self.recipe.lightning.learning_rate)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Mean token loss of a micro-batch."""
        loss_sum, num_tokens = self.losses(batch)
        self._micro_batches.append((loss_sum.item(), num_tokens.item(), sample_keys(batch)))
        return loss_sum / num_tokens.clamp(min=1)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log the mean token loss over the validation batches."""
        loss_sum, num_tokens = self.losses(batch)
        self.log("val_loss", loss_sum / num_tokens.clamp(min=1), batch_size=int(num_tokens), sync_dist=True)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the step that has just been taken, if one has."""
        if len(self._micro_batches) < self.trainer.accumulate_grad_batches:
            return
        done, self._micro_batches = self._micro_batches, []
        loss, num_tokens = self._global_loss([sums[:2] for sums in done])
        step, rank, size = self.trainer.global_step - 1, self.trainer.global_rank, self.trainer.world_size
        first = step * len(done) * size + rank
        if self.recipe.log_dir is not None:
            self._log = self._log or StepLog(Path(self.recipe.log_dir), rank, size)
            keys = [(first + i * size, names) for i, (_, _, names) in enumerate(done)]
            self._log.append(step, loss, keys, num_tokens=num_tokens)
        if rank == 0:
            print(f"step {step}: loss {loss:.4f} over {num_tokens} tokens", flush=True)

    def _global_loss(self, sums: list[tuple[float, float]]) -> tuple[float, int]:
        """Mean loss and targets of a step, over all ranks, from the sums of this one's micro-batches."""
        if torch.distributed.is_initialized():
            return global_loss(torch.tensor(sums, dtype=torch.float64, device=self.device), None)
        loss_sum, num_targets = (sum(column) for column in zip(*sums, strict=True))
        return loss_sum / max(num_targets, 1), int(num_targets)


class DemoLightningModule(LoggedLightningModule):
    """The demo model."""

    recipe: Recipe

    def configure_model(self) -> None:
        """Build the model once the ranks know each other."""
        if self.model is None:
            config = self.recipe.lightning
            groups = initialize_parallel(MegatronTrainerConfig(train_steps=config.train_steps, seed=config.seed))
            self.model = self.recipe.build_model(groups, self.tokenizer)

    def losses(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Of its tokens, where the loss mask says so."""
        sequences = sequence_numbers(batch.cu_seqlens, batch.tokens.shape[1])
        losses = self.model(batch.tokens, batch.images, sequences, batch.labels)
        return (losses * batch.loss_mask).sum(), batch.loss_mask.sum()


def train_lightning(recipe: Recipe) -> None:
    """Train the demo model to its end, from the newest checkpoint where there is one."""
    cpu_shim.install()
    tokenizer = recipe.tokenizer.build()
    fit(DemoLightningModule(recipe, tokenizer), recipe.build_data(None, tokenizer))


def fit(module: LoggedLightningModule, data: "EnergonMultiModalDataModule") -> None:
    """Train to the end of the module's recipe, from the newest checkpoint where there is one."""
    recipe, config = module.recipe, module.recipe.lightning
    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    num_micro_batches = recipe.data.global_batch_size // (recipe.data.micro_batch_size * num_ranks)
    callbacks: list[lightning.Callback] = []
    if config.save_interval is not None:
        callbacks.append(
            ModelCheckpoint(
                dirpath=config.checkpoint_dir,
                filename="{step}",
                every_n_train_steps=config.save_interval,
                save_top_k=-1,
            )
        )
    trainer = lightning.Trainer(
        max_steps=config.train_steps,
        max_epochs=-1,
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=num_ranks // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp" if num_ranks > 1 else "auto",
        accumulate_grad_batches=num_micro_batches,
        limit_val_batches=config.eval_batches if config.eval_interval is not None else 0,
        check_val_every_n_epoch=None,
        val_check_interval=None if config.eval_interval is None else config.eval_interval * num_micro_batches,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        callbacks=callbacks,
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(module, datamodule=data, ckpt_path=newest_checkpoint(config.checkpoint_dir))


def newest_checkpoint(folder: str | None) -> str | None:
    """The checkpoint of the last step; Lightning writes each at once, so all that have their name are whole."""
    files = {
        int(match[1]): file
        for file in (Path(folder).glob("step=*.ckpt") if folder is not None else ())
        if (match := re.fullmatch(r"step=(\d+)\.ckpt", file.name))
    }
    return str(files[max(files)]) if files else None
