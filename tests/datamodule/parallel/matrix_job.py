"""One rank of a Megatron job that is divided in one way after another, for `test_matrix.py`: what it is sent, as JSON.
Run it under torchrun.

    matrix_job FOLDER DATA TPxCPxPP...
"""

import hashlib
import sys
import time
from functools import partial
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.utils import get_batch_on_this_cp_rank
from torch import Tensor

from bridge_data import Batch, DefaultTaskEncoder, TextSample, edataclass
from bridge_data.datamodule.parallel import slice_for_context_parallel, virtual_iterators
from bridge_data.samples import map_tensors
from bridge_data.storage import content
from tests.datamodule.jobs import as_rank
from tests.datamodule.parts import make_module

NUM_BATCHES, NUM_AHEAD, SAVED_AT = 10, 3, 6

# megatron-core 0.19 asks first whether context parallelism is hybrid.
HYBRID = {"is_hybrid_cp": False} if "is_hybrid_cp" in signature(get_batch_on_this_cp_rank).parameters else {}
megatrons_part = partial(get_batch_on_this_cp_rank, **HYBRID)


@edataclass
class Mixed(Batch):
    """Tensors of several types, one of them empty, packed sequences, and lists."""

    tokens: Tensor
    loss_mask: Tensor
    halves: Tensor
    flags: Tensor
    images: Tensor
    cu_seqlens: Tensor
    names: list[str]
    extra: dict[str, Any]


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    def batch(self, samples: list[TextSample]) -> Mixed:
        number = int(samples[0].text)
        tokens = torch.arange(16).reshape(1, 16) + number
        return Mixed.from_samples(
            samples,
            tokens=tokens,
            loss_mask=tokens.float() / 3,
            halves=torch.full((2, number % 3), 0.1, dtype=torch.bfloat16),
            flags=tokens % 2 == 0,
            images=torch.rand(number % 2, 3, 4, 4),
            cu_seqlens=torch.tensor([0, 4, 16], dtype=torch.int32),
            names=[sample.text for sample in samples],
            extra={"scale": torch.tensor(number), "none": None},
        )


def digest(batch: Any) -> str:
    """Stands for the bits of all tensors of a batch, and for its other content."""
    content = hashlib.sha256()

    def add(tensor: Tensor) -> str:
        content.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return f"{tensor.dtype}{tuple(tensor.shape)}"

    content.update(repr(map_tensors({"batch": vars_of(batch)}, add)).encode())
    return content.hexdigest()[:16]


def vars_of(batch: Mixed) -> dict[str, Any]:
    return {name: getattr(batch, name) for name in ("names", "extra", *Mixed.__annotations__, "__key__")}


class ReadCounter:
    """Counts the bytes that this process reads of shards."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._read = content.read_with_version
        content.read_with_version = self._counted

    def _counted(self, path: Any, start: int, num_bytes: int) -> Any:
        if str(path).endswith(".tar"):
            self.num_bytes += num_bytes
        return self._read(path, start, num_bytes)


def run(data: str, share: str, groups: Any, counter: ReadCounter) -> dict[str, Any]:
    module = make_module(
        data, pg_collection=groups, task_encoder=Encoder(), share=share, num_lanes=4, global_batch_size=4, seed=3
    )
    loader = module.train_dataloader()
    seen: dict[str, Any] = {"place": [groups.dp.rank(), groups.pp.rank(), groups.cp.rank(), groups.tp.rank()]}
    if loader.dataloader.is_idle:
        for _ in range(3):
            dist.barrier()
        assert loader.save_state() == {} and module.val_dataloader().dataloader.is_idle
        dist.barrier()
        return seen | {"idle": True, "bytes": counter.num_bytes}
    counter.num_bytes, begin = 0, time.perf_counter()
    # The first stage draws some batches before the last one draws any, as a pipeline does while it fills.
    is_ahead = groups.pp.rank() == 0
    batches = [next(loader) for _ in range(NUM_AHEAD if is_ahead else 0)]
    dist.barrier()
    batches += [next(loader) for _ in range(SAVED_AT - len(batches))]
    state = loader.save_state()
    batches += [next(loader) for _ in range(NUM_BATCHES - SAVED_AT)]
    seen |= {"seconds": time.perf_counter() - begin, "bytes": counter.num_bytes}
    dist.barrier()
    seen["digests"] = [digest(batch) for batch in batches]
    seen["numbers"] = [int(batch.names[0]) for batch in batches]
    seen["state"] = state
    loader.restore_state(state)
    seen["resumed"] = [digest(next(loader)) for _ in range(3)]
    chunks = virtual_iterators(loader, 2)
    seen["chunks"] = [[digest(next(chunk)) for _ in range(2)] for chunk in chunks]
    whole = batches[0]
    part = slice_for_context_parallel(whole, groups.cp.rank(), groups.cp.size(), cu_seqlens=whole.cu_seqlens)
    cp_rank, cp_size = groups.cp.rank(), groups.cp.size()
    seen["unpacked part"] = slice_for_context_parallel({"tokens": whole.tokens}, cp_rank, cp_size)["tokens"].tolist()
    seen["megatron's part"] = megatrons_part({"tokens": whole.tokens.clone()}, cp_group=groups.cp)["tokens"].tolist()
    seen["part"], seen["whole"] = part.tokens[0].tolist(), whole.tokens[0].tolist()
    dist.barrier()
    evaluation = module.val_dataloader()
    evaluation.restart()
    seen["evaluated"] = [int(next(evaluation).names[0]) for _ in range(3)]
    evaluation.restart()
    seen["evaluated again"] = [int(next(evaluation).names[0]) for _ in range(3)]
    evaluation.cyclic = False
    rest = [batch.names if batch.__key__ else [] for batch in evaluation]
    seen["whole evaluation"] = [name for names in rest for name in names], len(rest)
    evaluation.close()
    loader.close()
    dist.barrier()
    return seen


def run_all(data: str, *topologies: str) -> dict[str, Any]:
    counter = ReadCounter()
    seen: dict[str, Any] = {}
    for topology in topologies:
        tp, cp, pp = map(int, topology.split("x"))
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tp, context_parallel_size=cp, pipeline_model_parallel_size=pp
        )
        groups = ProcessGroupCollection.use_mpu_process_groups()
        for share in ("replicate", "broadcast"):
            seen[f"{topology} {share}"] = run(data, share, groups, counter)
        parallel_state.destroy_model_parallel()
    return seen


if __name__ == "__main__":
    as_rank(sys.argv[1], lambda: run_all(*sys.argv[2:]))
