"""Trainers as people write them: no main guard, `python -`, what is defined in `__main__`, threads, process groups."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ranks import run_job

ROOT = Path(__file__).parents[2]

TRAINER = """
import dataclasses, itertools, threading
import torch
import torch.distributed as dist
from bridge_data.loader import get_loader
from bridge_data.samples import Batch, edataclass
from tests.loader.streams import Streams, config

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
stop = threading.Event()
threading.Thread(target=stop.wait, daemon=True).start()
print("run once", flush=True)

@edataclass
class Mine(Batch):
    tokens: torch.Tensor
    def total(self):
        return int(self.tokens.sum()) + offset

class MineError(Exception):
    pass

class Encoder:
    limit = 5
    def __call__(self, lane, number, size):
        if (lane, number) == (1, self.limit):
            raise MineError("too long")
        return Mine(__key__=[f"{lane}/{number}"], tokens=scale(torch.full((size,), number)))

offset = 7
scale = lambda tokens: tokens * factor
factor = 3
encoder = Encoder()
total = Mine.total

loader = get_loader(Streams(config(2, 2), make=lambda lane, number, size: encoder(lane, number, size)))
assert loader.wait_for_workers()
batches = list(itertools.islice(loader, 11))
assert [batch.__key__[0] for batch in batches] == [f"{slot % 2}/{slot // 2}" for slot in range(11)]
assert all(type(batch) is Mine for batch in batches) and Mine.total is total
assert batches[-1].total() == 8_192 * 5 * 3 + 7
try:
    next(iter(loader))
except MineError as error:
    assert "lane 1" in error.__notes__[0]
else:
    raise AssertionError("no error")
print("done")
"""


@pytest.mark.processes
@pytest.mark.parametrize("how", ["file", pytest.param("stdin", marks=pytest.mark.slow)])
def test_plain_scripts_just_work(how: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    done = subprocess.run(
        [sys.executable, str(script) if how == "file" else "-"],
        input=TRAINER if how == "stdin" else "",
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "run once\ndone\n"), done.stdout + done.stderr


RANKS = """
import itertools
import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from bridge_data import ConfigError, WorkerConfig
from bridge_data.loader import get_savable_loader
from bridge_data.order.state import merge_states
from tests.loader.streams import Streams, config, names

dist.init_process_group("gloo")
rank = dist.get_rank()
loader = get_savable_loader(Streams(config(0, 6, rank, 2), size=4))
list(itertools.islice(loader, 5))
for wrong in (
    lambda: loader.save_state_global(global_dst_rank=2),
    lambda: WorkerConfig.default_worker_config(0, init_device_mesh("cpu", (2,))),
):
    with pytest.raises(ConfigError, match="global_dst_rank=0|get_group"):
        wrong()
state = loader.save_state_global(global_dst_rank=1)
assert state is None if rank == 0 else (type(state) is list and state[1] == loader.save_state_rank())
expected = names(itertools.islice(loader, 6))
again = get_savable_loader(Streams(config(0, 6, rank, 2), size=4))
again.restore_state_global(state, src_rank=1)
assert names(itertools.islice(again, 6)) == expected
if rank == 1:
    whole = get_savable_loader(Streams(config(0, 6), size=4))
    for given in (state, state[::-1], merge_states(state)):
        whole.restore_state_global(given)
        assert names(itertools.islice(whole, 12))[1::2] == expected
    assert [lane for part in state for lane in part["lanes"]] == ["0", "2", "4", "1", "3", "5"]
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.processes
def test_ranks_save_and_restore_one_state_together() -> None:
    status, output = run_job("-c", RANKS, num_ranks=2)
    assert status == 0, output
