"""The shim changes torch, so it is tried in a process of its own: by what it answers, and by megatron-core itself, on
whichever version of it is installed."""

import json
from typing import Any

import pytest
import torch

from tests.ranks import run_job

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the shim does nothing where CUDA is")

PROGRAM = """
import json, torch
from recipes.demo import cpu_shim
cpu_shim.install()
answered = torch.cuda.current_stream
cpu_shim.install()
cpu = torch.device("cpu")
found = {"twice": torch.cuda.current_stream is answered}

# what is asked of torch.cuda
stream, event = torch.cuda.Stream(device=torch.cuda.current_device()), torch.cuda.Event(enable_timing=True)
with torch.cuda.stream(stream), torch.cuda.device(0):
    stream.wait_stream(torch.cuda.current_stream())
    event.record(stream)
    event.wait(torch.cuda.default_stream())
found["events have passed"] = event.query() and stream.record_event().query() and stream.query()
event.synchronize(), stream.synchronize(), torch.cuda.synchronize()
found["time"] = event.elapsed_time(stream.record_event())
found["devices"] = [str(x.device) for x in (
    torch.zeros(1, device=torch.cuda.current_device()), torch.ones(1, device="cuda"), torch.rand(1, device="cuda:0"),
    torch.empty(1, device=torch.device("cuda"), pin_memory=True), torch.tensor([1.0]).cuda())]
found["types"] = [torch.ones(1).type(), torch.ones(1).type(torch.int64).type()]
found["memory"] = [torch.cuda.memory_allocated(), torch.cuda.max_memory_reserved(), torch.cuda.memory_stats()]
torch.manual_seed(5)
state = torch.cuda.get_rng_state()
first = torch.rand(2)
torch.cuda.set_rng_state(state)
found["random state is the CPU's"] = torch.equal(first, torch.rand(2))
try:
    torch.cuda.get_device_properties(0)
except RuntimeError as error:
    found["refusal"] = str(error)

# what megatron-core makes of it
import megatron.core
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel.random import checkpoint, get_cuda_rng_tracker
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer import TransformerConfig

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel()
groups = ProcessGroupCollection.use_mpu_process_groups()
model_parallel_cuda_manual_seed(1)
config = TransformerConfig(num_layers=1, hidden_size=32, num_attention_heads=2)
tokens = torch.arange(2, 66).reshape(1, 64)
with get_cuda_rng_tracker().fork():
    found["tracked"] = list(torch.rand(3).shape)


def losses(**options):
    model_parallel_cuda_manual_seed(1)
    model = GPTModel(config, get_gpt_layer_local_spec(), 80, 64, position_embedding_type="rope")
    ddp = DistributedDataParallel(
        config=config, ddp_config=DistributedDataParallelConfig(**options), module=model, pg_collection=groups
    )
    is_distributed = options.get("use_distributed_optimizer", False)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=0.01, clip_grad=1.0, use_distributed_optimizer=is_distributed), [ddp]
    )
    seen = []
    for _ in range(3):
        ddp.zero_grad_buffer()
        optimizer.zero_grad()
        loss = ddp(tokens, None, torch.ones(1, 1, 64, 64).triu(1) > 0, labels=tokens.roll(-1, 1)).mean()
        loss.backward()
        finalize_model_grads([ddp])
        optimizer.step()
        seen.append(loss.item())
    return seen


found["losses"] = {
    "plain": losses(),
    "overlapped": losses(overlap_grad_reduce=True),
    "distributed optimizer": losses(use_distributed_optimizer=True, overlap_grad_reduce=True),
}
x = torch.ones(2, requires_grad=True)
checkpoint(lambda x: (x * torch.rand(2)).sum(), False, x).backward()
found["recomputed"] = x.grad is not None
print(json.dumps(found))
"""


def test_the_shim_answers_and_megatron_trains_with_it() -> None:
    status, output = run_job("-c", PROGRAM)
    assert status == 0, output
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert found["twice"], "a second call changes nothing"
    assert found["events have passed"] is True and found["time"] == 0.0
    assert found["devices"] == ["cpu"] * 5
    assert found["types"] == ["torch.cuda.FloatTensor", "torch.cuda.LongTensor"]
    assert found["memory"] == [0, 0, {}]
    assert found["random state is the CPU's"] and found["tracked"] == [3]
    assert "add it to ANSWERS in recipes/demo/cpu_shim.py" in found["refusal"]
    plain, *with_streams = found["losses"].values()
    assert plain[0] > plain[1] > plain[2]
    assert with_streams == [pytest.approx(plain, rel=1e-5)] * 2
    assert found["recomputed"]
