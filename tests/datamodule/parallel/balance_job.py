"""`python -m tests.datamodule.parallel.balance_job DATA FOLDER`: jobs of gloo ranks that balance their micro-batches,
for `test_balance.py`; what each rank saw, as JSON. The ranks are forked from one process that has imported all."""

import copy
import gc
import json
import sys
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from bridge_data import Batch, ConfigError, DefaultTaskEncoder, SkipSample, TextSample, WorkerError, edataclass
from bridge_data.plugins.sharing.balance import BalancedLoader
from tests.datamodule.jobs import as_rank
from tests.datamodule.parts import make_module
from tests.ranks import fork_ranks

GLOBAL_BATCH, STEPS, SAVED_AT = 8, 6, 3
BAD = 40
"""The number of a sample whose cost `failing_cost` cannot tell."""
NUM_LEFT_OUT = 31
"""`Picky` leaves out the samples below."""


@edataclass
class Long(Batch):
    """As many tokens as the number of the sample asks for, few for most and many for some."""

    number: Tensor
    tokens: Tensor


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    def batch(self, samples: list[TextSample]) -> Long:
        number = int(samples[0].text)
        tokens = torch.full((1, length_of(number)), number)
        return Long.from_samples(samples, number=torch.tensor(number), tokens=tokens)

    def batch_cost(self, batch: Long) -> float:
        return batch.tokens.numel()


def length_of(number: int) -> int:
    return 40 + number * 37 % 50 + (200 if number % 9 == 0 else 0)


def failing_cost(batch: Long) -> float:
    if int(batch.number) == BAD:
        raise ValueError("no scales for this one")
    return 1.0


class Unsendable(Encoder):
    """The batch of `BAD` cannot be pickled."""

    def batch(self, samples: list[TextSample]) -> Long:
        made = super().batch(samples)
        if int(made.number) == BAD:
            made.__subflavors__ = [{"function": lambda: None}]
        return made


class Picky(Encoder):
    """Leaves samples out, so that lanes and ranks end at different steps."""

    def encode_sample(self, sample: Any) -> Any:
        if int(sample.text) < NUM_LEFT_OUT:
            raise SkipSample
        return sample


def module_of(data: str, **options: Any) -> Any:
    settings = {"num_lanes": 8, "global_batch_size": GLOBAL_BATCH, "seed": 3, "balance": "tokens"}
    return make_module(data, **{"task_encoder": Encoder(), **settings, **options})


def draw(loader: Any, count: int) -> list[int]:
    drawn = [next(loader) for _ in range(count)]
    for batch in drawn:
        assert batch.tokens.tolist() == [[int(batch.number)] * length_of(int(batch.number))], "came through bit by bit"
    return [int(batch.number) for batch in drawn]


def steps(loader: Any, count: int, size: int) -> list[list[int]]:
    return [draw(loader, size) for _ in range(count)]


def train(data: str, folder: Path) -> dict[str, Any]:
    """Some steps; saved in the middle of one, and after it; restored when ranks are at different batches."""
    rank, size = dist.get_rank(), GLOBAL_BATCH // dist.get_world_size()
    module = module_of(data, balance=True)
    loader = module.train_dataloader()
    seen: dict[str, Any] = {"steps": steps(loader, SAVED_AT, size)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        at_start = loader.save_state()
    within = draw(loader, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen["saved within"] = loader.save_state() == at_start
    seen["warned"] = [str(warning.message) for warning in caught]
    seen["steps"].append(within + draw(loader, size - 1))
    seen["steps"] += steps(loader, STEPS - SAVED_AT - 1, size)
    if rank % 2:  # some have drawn a part of the next step, and threads are steps ahead
        draw(loader, 1)
    loader.restore_state(at_start)
    seen["resumed"] = steps(loader, STEPS - SAVED_AT, size)
    loader.restore_state(at_start)
    loader.restore_state(at_start)
    seen["resumed again"] = steps(loader, 1, size)
    balanced = loader.dataloader
    assert isinstance(balanced, BalancedLoader)
    report = copy.copy(balanced.report)  # steps are exchanged meanwhile
    seen["report"] = [report.num_steps, report.unbalanced, report.balanced, report.num_bytes_sent]
    seen["state"] = at_start
    validation = module.val_dataloader()
    seen["validated"] = [int(next(validation).number) for _ in range(3)]
    loader.close()
    return seen


def resume(data: str, folder: Path) -> dict[str, Any]:
    """Another number of ranks goes on from the state of `train`, balanced and not."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    state = json.loads((folder / f"train/rank{rank}.json").read_text())["state"]
    seen: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module_of(data, global_batch_size=num_ranks).train_dataloader()
    seen["warned"] = [str(warning.message) for warning in caught]
    for balance in ("tokens", False):
        loader = module_of(data, balance=balance).train_dataloader()
        loader.restore_state(state)
        seen[str(balance)] = steps(loader, STEPS - SAVED_AT, GLOBAL_BATCH // num_ranks)
        loader.close()
    return seen


def share(data: str, folder: Path) -> dict[str, Any]:
    """Two replicas of two tensor-parallel ranks, each with one reader."""
    rank = dist.get_rank()
    tensor, replicas = ([dist.new_group(ranks) for ranks in pairs] for pairs in ([[0, 1], [2, 3]], [[0, 2], [1, 3]]))
    groups = SimpleNamespace(tp=tensor[rank // 2], dp=replicas[rank % 2])
    loader = module_of(data, share="broadcast", pg_collection=groups).train_dataloader()
    seen = {"steps": steps(loader, STEPS, GLOBAL_BATCH // 2)}
    state = loader.save_state()
    seen["further"] = steps(loader, 2, GLOBAL_BATCH // 2)
    draw(loader, 1 + rank % 2)
    loader.restore_state(state)
    seen["resumed"] = steps(loader, 2, GLOBAL_BATCH // 2)
    loader.close()
    dist.barrier()
    return seen


def end(data: str, folder: Path) -> dict[str, Any]:
    """Finite data, of which not all ranks have equally much: two passes. Then virtual epochs that end within a step."""
    options = {"num_lanes": 6, "global_batch_size": 15, "repeat": False, "task_encoder": Picky()}
    dataloader = module_of(data, **options).train_dataloader().dataloader
    seen: dict[str, Any] = {"passes": [[int(batch.number) for batch in dataloader] for _ in range(2)]}
    dataloader.close()
    dataloader = module_of(data, num_lanes=6, global_batch_size=6, virtual_epoch_length=3).train_dataloader().dataloader
    seen["epochs"] = [[int(batch.number) for batch in dataloader] for _ in range(4)]
    dataloader.close()
    return seen


def ramp(data: str, folder: Path) -> dict[str, Any]:
    """A step of 4, one of 8 after 4 samples, then steps of 12."""
    loader = module_of(data, num_lanes=4, global_batch_size=12, rampup_batch_size=[4, 4, 8]).train_dataloader()
    seen = {"steps": [draw(loader, size // dist.get_world_size()) for size in (4, 8, 12, 12)]}
    loader.close()
    return seen


def fail(data: str, folder: Path) -> dict[str, Any]:
    """A cost that cannot be told on one rank stops them all, until they go elsewhere."""
    loader = module_of(data, balance=failing_cost).train_dataloader()
    state, seen = loader.save_state(), []
    try:
        for _ in range(100):
            seen += draw(loader, 1)
        raise AssertionError("the bad sample did not come")
    except (ValueError, WorkerError) as error:
        message = f"{type(error).__name__}: {error}"
    loader.restore_state(state)
    again = draw(loader, 2)
    loader.close()
    gc.collect()  # what an error with its batches leaves can be freed
    unsent = module_of(data, task_encoder=Unsendable()).train_dataloader()
    try:
        for _ in range(100):
            draw(unsent, 1)
        raise AssertionError("the batch that cannot be sent did not come")
    except WorkerError as error:
        refused = str(error)
    unsent.close()
    gc.collect()
    even = ""
    try:
        module_of(data, ends="even").train_dataloader()
    except ConfigError as error:
        even = str(error)
    return {"message": message, "seen": seen, "again": again, "even": even, "refused": refused}


def main(data: str, folder: Path) -> int:
    for work, num_ranks in ((train, 4), (resume, 2), (share, 4), (end, 3), (ramp, 2), (fail, 2)):
        own = folder / work.__name__
        own.mkdir()
        status = fork_ranks(num_ranks, partial(as_rank, str(own), partial(work, data, folder)))
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
