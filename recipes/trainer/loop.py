"""A small Megatron-core training loop around the DataModule: parallel groups, DDP, optimizer, checkpoints, evaluation.

Reads the model of this rank's stage, a Megatron forward step, and a DataModule. Returns a report per step, with the
outputs of the micro-batches that the loss was computed from. A run that is killed and resumed at the same DP size
reports bit-identical losses to an uninterrupted one; at another DP size, the micro-batches are the same.

The loss of a step is the sum of its token losses divided by the number of tokens, added in the order of the global
batch. The model's random numbers depend on (seed, step, DP rank, stage), so no generator state is saved.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError
from bridge_data.order.random_draws import key64
from recipes.trainer.checkpoint import latest_iteration, load_checkpoint, save_checkpoint
from recipes.trainer.config import TrainingConfig
from recipes.trainer.exit_signal import ExitSignal
from recipes.trainer.parallel import global_loss, seed_stage

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.rerun_state_machine import RerunDataIterator

    from bridge_data import EnergonDataloader, EnergonMultiModalDataModule

ForwardStep = Callable[[Iterator[Any], torch.nn.Module], tuple[torch.Tensor, Callable[..., Any]]]
"""Megatron's forward step: (data iterator, model) -> (output, loss function). The loss function returns (sum of token
losses, number of tokens as int, outputs); outputs are a dict with `loss_sum`, `num_tokens`, and more for the report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatchReport:
    """One micro-batch of this rank: its number in the whole job, and the outputs of the loss function."""

    number: int
    outputs: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """One step. `loss` is of the global batch; `micro_batches` are this rank's, empty but on the last stage."""

    step: int
    loss: float
    num_tokens: int
    grad_norm: float
    micro_batches: tuple[MicroBatchReport, ...]


class MegatronTrainer:
    """Trains one model on one DataModule.

    `model` is this rank's stage, with its `TransformerConfig` as `model.config`. Build it after `initialize_parallel`,
    which seeds the weights. `on_step` is called with the report of each step, `on_evaluation` with the number of steps
    done and the loss of each validation set by name.
    """

    def __init__(
        self,
        config: TrainingConfig,
        groups: "ProcessGroupCollection",
        model: torch.nn.Module,
        forward_step: ForwardStep,
        on_step: Callable[[StepReport], None],
        on_evaluation: Callable[[int, Mapping[str, float]], None],
    ) -> None:
        from megatron.core import rerun_state_machine

        if config.train_steps is None:
            raise ConfigError("MegatronTrainer(config=...): it counts steps; pass TrainingConfig.in_steps(...)")
        self.config, self.num_steps = config, config.train_steps
        self.groups = groups
        self.device = (
            torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        )
        self._forward_step = forward_step
        self._on_step, self._on_evaluation = on_step, on_evaluation
        self._checkpoint_dir = Path(config.checkpoint_dir) if config.checkpoint_dir is not None else None
        rerun_state_machine.destroy_rerun_state_machine()
        rerun_state_machine.initialize_rerun_state_machine()
        self.model = self._wrapped(model.to(self.device))
        self.optimizer, self.scheduler = self._optimizer_and_schedule()

    def _wrapped(self, model: torch.nn.Module) -> Any:
        """The model in Megatron's DDP (in bf16 also `Float16Module`), with equal weights on all ranks."""
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
            finalize_model_grads,
        )
        from megatron.core.transformer.module import Float16Module

        model_config: Any = model.config
        if not model_config.calculate_per_token_loss:
            raise ConfigError(
                "the model's TransformerConfig has calculate_per_token_loss=False: the mean of micro-batch means is "
                "not the loss of the global batch. Set it to True and return (sum, num_tokens, outputs) as the loss."
            )
        model_config.finalize_model_grads_func = finalize_model_grads
        wrapped = DistributedDataParallel(
            config=model_config,
            ddp_config=DistributedDataParallelConfig(grad_reduce_in_fp32=True),
            module=Float16Module(model_config, model) if model_config.bf16 else model,
            pg_collection=self.groups,
        )
        wrapped.broadcast_params()
        return wrapped

    def _optimizer_and_schedule(self) -> tuple[Any, Any]:
        """Adam, with linear warm-up and cosine decay."""
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

        config, model_config = self.config, self.model.config
        optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=config.learning_rate,
                min_lr=config.min_learning_rate,
                weight_decay=config.weight_decay,
                clip_grad=config.clip_grad,
                bf16=model_config.bf16,
                params_dtype=model_config.params_dtype,
            ),
            [self.model],
        )
        model_config.grad_scale_func = optimizer.scale_loss
        schedule = OptimizerParamScheduler(
            optimizer,
            init_lr=0.0,
            max_lr=config.learning_rate,
            min_lr=config.min_learning_rate,
            lr_warmup_steps=config.warmup_steps,
            lr_decay_steps=self.num_steps,
            lr_decay_style="cosine",
            start_wd=config.weight_decay,
            end_wd=config.weight_decay,
            wd_incr_steps=self.num_steps,
            wd_incr_style="constant",
        )
        return optimizer, schedule

    def fit(self, data: "EnergonMultiModalDataModule") -> int:
        """Resume from the newest checkpoint, if any, and train to `train_steps` or an `exit_signal`. With `skip_train`,
        only evaluate it.

        Returns:
            The number of steps done.
        """
        from megatron.core.rerun_state_machine import RerunDataIterator

        loader = data.train_dataloader()  # checks that the batch sizes fit the number of ranks
        step = self._restore(loader)
        if self.config.skip_train:
            self._report_evaluation(step, self.evaluate(data))
            return step
        first, dp_size = loader.first_micro_batch, self.groups.dp.size()
        schedule = data.batch_schedule
        schedule.check(first * data.micro_batch_size, dp_size)
        iterator = RerunDataIterator(loader)
        with ExitSignal(self.config.exit_signal, self.device) as exit_signal:
            while step < self.num_steps:
                num_micro_batches = schedule.num_micro_batches(first * data.micro_batch_size, dp_size)
                report = self._train_step(step, first, iterator, num_micro_batches, data)
                step, first = step + 1, first + num_micro_batches * dp_size
                self._on_step(report)
                is_over = exit_signal.received()
                if self._is_due(step, self.config.save_interval) or is_over:
                    self._save(step, iterator)
                if is_over:
                    break
                if self._is_due(step, self.config.eval_interval):
                    self._report_evaluation(step, self.evaluate(data))
        return step

    def evaluate(self, data: "EnergonMultiModalDataModule") -> dict[str, float]:
        """Mean token loss over the first `eval_iters` global batches of each validation set, by name.

        Empty if the split is declared empty. The same on any number of ranks, unless the batches reach the end of the
        set. Training is not affected.
        """
        loaders = data.val_dataloader()
        if loaders is None:
            return {}
        schedule = BatchSchedule(data.global_batch_size, data.micro_batch_size)
        num_micro_batches = self.config.eval_iters * schedule.num_micro_batches(0, self.groups.dp.size())
        losses = {}
        self.model.eval()
        with torch.no_grad():
            for name, loader in zip(data.val_names, loaders if isinstance(loaders, list) else [loaders], strict=True):
                loader.restart()
                outputs = self._run_micro_batches(loader, num_micro_batches, data, forward_only=True)
                losses[name], _ = self._global_loss(outputs, num_micro_batches)
        self.model.train()
        return losses

    def _is_due(self, step: int, interval: int | None) -> bool:
        return interval is not None and (step % interval == 0 or step == self.num_steps)

    def _report_evaluation(self, step: int, losses: Mapping[str, float]) -> None:
        if losses:
            self._on_evaluation(step, losses)

    def _train_step(
        self,
        step: int,
        first: int,
        iterator: "RerunDataIterator",
        num_micro_batches: int,
        data: "EnergonMultiModalDataModule",
    ) -> StepReport:
        """One step; `first` is the number of its first micro-batch in the whole job."""
        from megatron.core.rerun_state_machine import get_rerun_state_machine

        seed_stage(key64(self.config.seed, step, self.groups.dp.rank()) >> 33, self.groups.pp.rank())
        outputs: list[dict[str, Any]] = []
        while get_rerun_state_machine().should_run_forward_backward(iterator):
            self.model.zero_grad_buffer()
            self.optimizer.zero_grad()
            outputs = self._run_micro_batches(iterator, num_micro_batches, data, forward_only=False)
        _, grad_norm, _ = self.optimizer.step()
        self.scheduler.step(1)
        loss, num_tokens = self._global_loss(outputs, num_micro_batches, first)
        dp_size = self.groups.dp.size()
        own = first + (self.groups.dp.rank() - first) % dp_size  # after a batch-size ramp, `first` may be of any rank
        return StepReport(
            step=step,
            loss=loss,
            num_tokens=num_tokens,
            grad_norm=float(grad_norm or 0.0),
            micro_batches=tuple(
                MicroBatchReport(number=own + i * dp_size, outputs=output) for i, output in enumerate(outputs)
            ),
        )

    def _run_micro_batches(
        self, iterator: Any, num_micro_batches: int, data: "EnergonMultiModalDataModule", *, forward_only: bool
    ) -> list[dict[str, Any]]:
        """The outputs of the loss function, one dict per micro-batch; empty except on the last stage."""
        from megatron.core.pipeline_parallel import get_forward_backward_func

        outputs: list[dict[str, Any]] = get_forward_backward_func()(
            forward_step_func=self._forward_step,
            data_iterator=iterator,
            model=[self.model],
            num_microbatches=num_micro_batches,
            seq_length=data.seq_length,
            micro_batch_size=data.micro_batch_size,
            forward_only=forward_only,
        )
        return outputs

    def _global_loss(
        self, outputs: list[dict[str, Any]], num_micro_batches: int, first_micro_batch: int = 0
    ) -> tuple[float, int]:
        """(mean token loss, number of tokens) of the global batch, on every rank."""
        sums = torch.zeros(num_micro_batches, 2, dtype=torch.float64, device=self.device)
        for row, output in zip(sums, outputs, strict=False):  # only the last stage has outputs
            row[0], row[1] = output["loss_sum"], output["num_tokens"]
        for group in (self.groups.cp, self.groups.pp):
            if group.size() > 1:
                dist.all_reduce(sums, group=group)
        return global_loss(sums, self.groups.dp, first_micro_batch)

    def _sharded_state(self, *, is_loading: bool) -> dict[str, Any]:
        model = self.model.module.sharded_state_dict()
        return {"model": model, "optimizer": self.optimizer.sharded_state_dict(model, is_loading=is_loading)}

    def _save(self, step: int, iterator: "RerunDataIterator") -> None:
        data_state = iterator.iterable.save_state()
        if self._checkpoint_dir is not None:
            save_checkpoint(self._checkpoint_dir, step, self._sharded_state(is_loading=False), data_state, self.groups)

    def _restore(self, loader: "EnergonDataloader") -> int:
        """Restore model, optimizer, schedule and data from the newest checkpoint; returns the number of steps done."""
        step = latest_iteration(self._checkpoint_dir) if self._checkpoint_dir is not None else None
        if self._checkpoint_dir is None or step is None:
            return 0
        state, data_state = load_checkpoint(
            self._checkpoint_dir, step, self._sharded_state(is_loading=True), self.groups.dp
        )
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.num_steps = 0
        self.scheduler.step(step)
        loader.restore_state(data_state)
        return step
