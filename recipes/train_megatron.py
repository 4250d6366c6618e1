"""A recipe under our Megatron loop: its forward step, and the run with its log and metrics."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bridge_data import MetricsReporter, TensorBoardSink
from bridge_data.errors import ConfigError
from recipes import cpu_shim
from recipes.packed_attention import sequence_numbers
from recipes.recipe import Recipe
from recipes.run_log import StepLog, sample_keys
from recipes.trainer.loop import MegatronTrainer, StepReport
from recipes.trainer.parallel import initialize_parallel

SEQUENCE_FIELDS = ("tokens", "labels", "loss_mask", "position_ids", "cu_seqlens")
POSITION_MEDIA = ("second_per_grid_ts",)
"""Media used only to compute positions."""


def train_megatron(recipe: Recipe) -> None:
    """Train the recipe on this rank, to its end."""
    cpu_shim.install()
    groups = initialize_parallel(recipe.parallel, recipe.training.seed)
    tokenizer = recipe.build_tokenizer()
    data = recipe.build_data(groups, tokenizer)
    training = recipe.training_in_steps(data, groups.dp.size())
    loader = data.train_dataloader()  # its workers start while the model is built
    is_logged = groups.tp.rank() == groups.cp.rank() == 0 and groups.pp.rank() == groups.pp.size() - 1
    log = StepLog(Path(recipe.log_dir), groups.dp.rank(), groups.dp.size()) if recipe.log_dir and is_logged else None

    metrics = _metrics(recipe, loader)

    def on_step(report: StepReport) -> None:
        if metrics is not None:
            metrics.step(report.step + 1)
        if log is not None:
            log.append(
                report.step,
                report.loss,
                [(micro_batch.number, micro_batch.outputs["keys"]) for micro_batch in report.micro_batches],
                num_tokens=report.num_tokens,
                grad_norm=report.grad_norm,
            )
        if dist.get_rank() == 0:
            print(f"step {report.step}: loss {report.loss:.4f} over {report.num_tokens} tokens", flush=True)

    def on_evaluation(num_steps: int, losses: Mapping[str, float]) -> None:
        if dist.get_rank() == 0:
            for name, loss in losses.items():
                of = "" if name == "validation" else f" of {name}"
                print(f"after {num_steps} steps: validation loss{of} {loss:.6f}", flush=True)

    model = recipe.build_megatron_model(groups, tokenizer)
    trainer = MegatronTrainer(training, groups, model, forward_step, on_step, on_evaluation)
    num_steps = trainer.fit(data)
    if num_steps < trainer.num_steps and not training.skip_train and dist.get_rank() == 0:
        print(f"{training.exit_signal}: saved and ended after {num_steps} steps", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _metrics(recipe: Recipe, loader: Any) -> MetricsReporter | None:
    """What reports the metrics of the data; None for none. TensorBoard's files are those of the first rank."""
    config = recipe.metrics
    if config.every_steps is None:
        return None
    sinks = config.sinks(recipe.log_dir)
    if "tensorboard" in config.loggers and recipe.log_dir is not None and dist.get_rank() == 0:
        sinks.append(TensorBoardSink(Path(recipe.log_dir, "tensorboard")))
    return MetricsReporter(loader, sinks, every_steps=config.every_steps)


def forward_step(iterator: Iterator[Any], model: torch.nn.Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Megatron's forward step, whose outputs hold the keys of its batch. Every stage draws the batch, so that the data
    state of all ranks agrees.

    Raises:
        ConfigError: if the batches are not sequences, or cannot be cut for context parallelism.
    """
    batch = next(iterator)
    missing = [name for name in SEQUENCE_FIELDS if not hasattr(batch, name)]
    if missing:
        raise ConfigError(
            f"task_encoder: it makes batches of {type(batch).__name__} without {', '.join(missing)}; trainer=megatron "
            "takes those of bridge_data.encoders (SequenceBatch)"
        )
    batch = batch.to(next(model.parameters()).device, non_blocking=True)
    length, whole = batch.tokens.shape[1], _unwrapped(model)
    num_parts = 2 * whole.cp.size() if whole.cp.size() > 1 else 1
    if length % num_parts:
        raise ConfigError(
            f"a sequence of {length} tokens cannot be cut for parallel.context_parallel_size={whole.cp.size()}; set "
            f"encoder.conversation.pad_to_multiple_of={num_parts} (data.seq_length must be a multiple of it too)"
        )
    sequences = sequence_numbers(batch.cu_seqlens, length)
    output = model(batch.tokens, media_of(batch), sequences, batch.labels, batch.position_ids)

    def loss(losses: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        mask = batch.loss_mask[:, whole.local_positions(length).to(losses.device)]
        loss_sum, num_tokens = (losses.float() * mask).sum(), mask.sum().int()
        outputs = {"loss_sum": loss_sum.detach(), "num_tokens": num_tokens, "keys": sample_keys(batch)}
        return loss_sum, num_tokens.clone(), outputs

    return output, loss


def media_of(batch: Any) -> Mapping[str, Tensor]:
    """What the tower takes: the media of a `FamilyBatch`, or the images of an `ImageTextBatch`."""
    if hasattr(batch, "media"):
        return {name: value for name, value in batch.media.items() if name not in POSITION_MEDIA}
    images = getattr(batch, "images", None)
    return {} if images is None or not len(images) else {"pixel_values": images}


def _unwrapped(model: Any) -> Any:
    """The model inside Megatron's wrappers."""
    while hasattr(model, "module"):
        model = model.module
    return model
