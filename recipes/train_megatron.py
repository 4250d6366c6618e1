"""A recipe under our Megatron loop."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.recipe import Recipe

if TYPE_CHECKING:
    from bridge_data import MetricsReporter


def train_megatron(recipe: Recipe) -> None:
    """Train the recipe on this rank, to its end."""
    import torch.distributed as dist

    from bridge_data.errors import WorkerError
    from recipes import cpu_shim
    from recipes.forward_step import forward_step
    from recipes.run_log import StepLog
    from recipes.trainer.loop import MegatronTrainer, StepReport
    from recipes.trainer.parallel import initialize_parallel

    cpu_shim.install()
    training = recipe.training.in_steps(recipe.data.batch_schedule)
    groups = initialize_parallel(recipe.parallel, training.seed)
    tokenizer = recipe.build_tokenizer()
    data = recipe.build_data(groups, tokenizer)
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
    if recipe.loader.wait_for_workers and recipe.loader.num_workers and not loader.wait_for_workers():
        raise WorkerError(f"{recipe.loader.num_workers} workers were not ready in time; look at the log above")
    num_steps = trainer.fit(data)
    if num_steps < trainer.num_steps and not training.skip_train and dist.get_rank() == 0:
        print(f"{training.exit_signal}: saved and ended after {num_steps} steps", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _metrics(recipe: Recipe, loader: Any) -> "MetricsReporter | None":
    """What reports the metrics of the data; None for none. TensorBoard's files are those of the first rank."""
    import torch.distributed as dist

    from bridge_data import MetricsReporter, TensorBoardSink

    config = recipe.metrics
    if config.every_steps is None:
        return None
    sinks = config.sinks(recipe.log_dir)
    if "tensorboard" in config.loggers and recipe.log_dir is not None and dist.get_rank() == 0:
        sinks.append(TensorBoardSink(Path(recipe.log_dir, "tensorboard")))
    return MetricsReporter(loader, sinks, every_steps=config.every_steps)
