"""Train a vision-language model under Megatron-core: a script to copy and to change.

    torchrun --nproc-per-node 8 -m recipes.megatron.train_vlm configs/llava.yaml runs/llava --data.path /data/blend.yaml

Started again it goes on from the newest checkpoint in `run`, on any number of ranks; SIGTERM saves and ends it.
"""

import json
import shutil
import signal
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from jsonargparse import auto_cli
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module

from bridge_data import JsonlSink, MetricsReporter, load_states, save_rank_state
from bridge_data.configs import DataConfig
from recipes.megatron.vlm import LLAVA_7B, Sizes, VisionLanguageModel, forward_step


def main(
    recipe: str,
    run: Path,
    data: dict[str, Any] | None = None,  # settings of the recipe to replace
    model: Sizes = LLAVA_7B,
    tensor_parallel: int = 1,
    train_steps: int = 1000,
    save_interval: int = 100,
    lr: float = 2e-5,
    bf16: bool = True,
) -> None:
    torch.cuda.set_device(dist.get_node_local_rank())
    dist.init_process_group()
    parallel_state.initialize_model_parallel(tensor_parallel)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    torch.manual_seed(1234)
    model_parallel_cuda_manual_seed(1234)
    dm = DataConfig.read(recipe).with_options(**(data or {})).saved_in(run, max_steps=train_steps).build(groups)
    train, val = dm.build()
    precision = {"bf16": bf16, "params_dtype": torch.bfloat16 if bf16 else torch.float32}
    whole = VisionLanguageModel(model, dm, tensor_model_parallel_size=tensor_parallel, **precision).cuda()
    config, whole = whole.config, Float16Module(whole.config, whole) if bf16 else whole
    network = DistributedDataParallel(config, DistributedDataParallelConfig(), whole, pg_collection=groups)
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=lr, clip_grad=1.0, **precision), [network])
    config.finalize_model_grads_func, config.grad_scale_func = finalize_model_grads, optimizer.scale_loss
    trained = {"model": [network], "seq_length": dm.seq_length, "micro_batch_size": dm.micro_batch_size}

    def run_step(batches: Any, *, forward_only: bool) -> tuple[float, list[list[str]]]:
        outputs = get_forward_backward_func()(
            forward_step_func=forward_step,
            data_iterator=batches,
            num_microbatches=dm.batch_schedule.num_micro_batches(0, groups.dp.size()),
            forward_only=forward_only,
            **trained,
        )
        sums = torch.stack([output["sums"] for output in outputs]).sum(0)
        dist.all_reduce(sums, group=groups.dp)
        return float(sums[0] / sums[1]), [output["keys"] for output in outputs]

    def state(*, is_loading: bool) -> dict[str, Any]:
        weights = whole.sharded_state_dict()
        return {"model": weights, "optimizer": optimizer.sharded_state_dict(weights, is_loading=is_loading)}

    step, latest = 0, run / "latest_checkpointed_iteration.txt"
    if latest.exists():
        step = int(latest.read_text())
        saved = dist_checkpointing.load(state(is_loading=True), str(run / f"iter_{step:07d}"))
        whole.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        train.restore_state(load_states(run / f"iter_{step:07d}", step=step) if groups.dp.rank() == 0 else None)
    is_first, is_asked, is_over = dist.get_rank() == 0, *torch.zeros(2, 1, device="cuda")
    signal.signal(signal.SIGTERM, lambda *_: is_asked.fill_(1))
    resource_tracker.ensure_running()  # starting it would unblock signals
    start, ranks = JsonlSink.next_start(run / "steps_dprank000.jsonl"), groups.dp.size()  # as a resume repeats steps
    metrics = MetricsReporter(train, [JsonlSink(run / "data.jsonl", start=start)], every_steps=10)
    log = (run / f"steps_dprank{groups.dp.rank():03d}.jsonl").open("a", buffering=1)
    while step < train_steps and not is_over:
        network.zero_grad_buffer()
        optimizer.zero_grad()
        loss, keys = run_step(train, forward_only=False)
        optimizer.step()
        metrics.step(step := step + 1)
        if groups.tp.rank() == 0:
            log.write(json.dumps({"step": step, "start": start, "ranks": ranks, "loss": loss, "keys": keys}) + "\n")
        dist.all_reduce(is_over.copy_(is_asked), dist.ReduceOp.MAX)  # a signal from now on ends the next step
        if step % save_interval and step < train_steps and not is_over:
            continue
        folder = run / f"iter_{step:07d}"
        if is_first:
            shutil.rmtree(folder, ignore_errors=True)  # left by a job that was killed while saving
            folder.mkdir()
        dist.barrier()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # for good in the processes that this starts
        dist_checkpointing.save(state(is_loading=False), str(folder))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        if groups.tp.rank() == 0:
            save_rank_state(folder, train.save_state(), step=step, group=groups.dp)
        dist.barrier()
        if is_first:
            latest.with_suffix(".new").write_text(str(step))
            latest.with_suffix(".new").replace(latest)
        if val is not None and not is_over:
            validation_loss, _ = torch.no_grad()(run_step)(val, forward_only=True)
            if is_first:
                print(f"step {step}: loss {loss:.4f}, validation loss {validation_loss:.4f}", flush=True)


if __name__ == "__main__":
    auto_cli(main)
