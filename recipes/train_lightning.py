"""A recipe under `lightning.Trainer`: a model of transformers, which makes its own loss of a batch."""

import os
import re
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from bridge_data import MetricsCallback
from bridge_data.errors import ConfigError
from recipes.recipe import Recipe
from recipes.run_log import StepLog, sample_keys
from recipes.trainer.config import TrainingConfig
from recipes.trainer.parallel import global_loss


class RecipeLightningModule(lightning.LightningModule):
    """The model of a recipe with AdamW; logs a step once its last micro-batch is done."""

    def __init__(self, recipe: Recipe, tokenizer: Any, training: TrainingConfig) -> None:
        super().__init__()
        self.recipe, self.tokenizer = recipe, tokenizer
        self.model: Any = None
        self.training_config = training
        self._log: StepLog | None = None
        self._micro_batches: list[tuple[float, float, list[str]]] = []

    def configure_model(self) -> None:
        """Build the model."""
        if self.model is None:
            self.model = self.recipe.build_model(self.tokenizer).train()

    def configure_optimizers(self) -> Any:
        """AdamW over all weights, with the learning rates of the recipe."""
        config = self.training_config
        optimizer = torch.optim.AdamW(self.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, config.learning_rate_factor)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def losses(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum of the losses of a batch, and the number of targets: labels, or pairs if there are none.

        Raises:
            ConfigError: if the batch has no inputs for a model of transformers.
        """
        if not hasattr(batch, "model_inputs"):
            raise ConfigError(
                f"task_encoder: it makes batches of {type(batch).__name__} without `model_inputs()`, the keyword "
                "arguments of the model's `forward`; trainer=lightning takes batches that have it, such as FamilyBatch"
            )
        inputs = batch.model_inputs()
        loss = self.model(**inputs).loss
        if "labels" not in inputs:
            num_targets = torch.tensor(len(batch.__key__), device=loss.device)
        elif "input_features" in inputs:  # the model shifts by putting a start token before
            num_targets = (inputs["labels"] >= 0).sum()
        else:
            num_targets = (inputs["labels"][:, 1:] >= 0).sum()
        return loss * num_targets, num_targets

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
            for log in self.trainer.loggers:
                log.log_metrics({"train_loss": loss}, step=self.trainer.global_step)
            print(f"step {step}: loss {loss:.4f} over {num_tokens} tokens", flush=True)

    def _global_loss(self, sums: list[tuple[float, float]]) -> tuple[float, int]:
        """Mean loss and targets of a step, over all ranks, from the sums of this one's micro-batches."""
        if torch.distributed.is_initialized():
            return global_loss(torch.tensor(sums, dtype=torch.float64, device=self.device), None)
        loss_sum, num_targets = (sum(column) for column in zip(*sums, strict=True))
        return loss_sum / max(num_targets, 1), int(num_targets)


def train_lightning(recipe: Recipe) -> None:
    """Train the recipe to its end, from the newest checkpoint if there is one; with `skip_train`, evaluate that.

    Raises:
        ConfigError: if its parts or its data are not as it says.
    """
    tokenizer = recipe.build_tokenizer()
    data = recipe.build_data(None, tokenizer)
    config = recipe.training_in_steps(data, int(os.environ.get("WORLD_SIZE", "1")))
    module = RecipeLightningModule(recipe, tokenizer, config)
    lightning.seed_everything(config.seed, verbose=False)
    checkpoint = newest_checkpoint(config.checkpoint_dir)
    trainer = _trainer(module)
    if config.skip_train:
        trainer.validate(module, datamodule=data, ckpt_path=checkpoint)
    else:
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint)


def _trainer(module: RecipeLightningModule) -> lightning.Trainer:
    recipe, config = module.recipe, module.training_config
    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    num_micro_batches = recipe.batch_schedule.num_micro_batches(0, num_ranks)
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
    if recipe.metrics.every_steps is not None and not config.skip_train:
        callbacks.append(MetricsCallback(recipe.metrics.every_steps, sinks=recipe.metrics.sinks(recipe.log_dir)))
    is_evaluated = config.eval_interval is not None or config.skip_train
    return lightning.Trainer(
        max_steps=config.train_steps or -1,
        max_epochs=-1,
        accelerator="auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=num_ranks // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        # a micro-batch without images gives the tower no gradients
        strategy="ddp_find_unused_parameters_true" if num_ranks > 1 else "auto",
        accumulate_grad_batches=num_micro_batches,
        gradient_clip_val=config.clip_grad,
        limit_val_batches=config.eval_iters * num_micro_batches if is_evaluated else 0,
        check_val_every_n_epoch=None,
        val_check_interval=None if config.eval_interval is None else config.eval_interval * num_micro_batches,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        callbacks=callbacks,
        enable_checkpointing=config.save_interval is not None,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=_loggers(recipe) or False,
    )


def _loggers(recipe: Recipe) -> list[Any]:
    """Lightning's loggers that the recipe names, in folders of `log_dir`.

    Raises:
        ConfigError: if the package of one is missing.
    """
    from lightning.pytorch import loggers

    folder, made = recipe.log_dir or "", []
    for name in recipe.metrics.loggers:
        try:
            if name == "wandb":
                made.append(loggers.WandbLogger(save_dir=folder))  # its project: the environment variable WANDB_PROJECT
            elif name == "tensorboard":
                made.append(loggers.TensorBoardLogger(folder, name=None, version=name))
            else:
                made.append(loggers.CSVLogger(folder, name=None, version=name))
        except ImportError as error:
            raise ConfigError(f"metrics.loggers: {name} needs a package ({error}): pip install {name}") from error
    return made


def newest_checkpoint(folder: str | None) -> str | None:
    """The checkpoint of the last step; Lightning writes each at once, so all that have their name are whole."""
    files = {
        int(match[1]): file
        for file in (Path(folder).glob("step=*.ckpt") if folder is not None else ())
        if (match := re.fullmatch(r"step=(\d+)\.ckpt", file.name))
    }
    return str(files[max(files)]) if files else None
