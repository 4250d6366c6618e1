import subprocess
import sys

import pytest

from tests.ranks import ROOT, run_job

GIVE_BACK = """
from bridge_data import child_process

def anonymous_mb():
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024

child_process.keep_freed_memory()
blocks = [b"x" * (1 << 20) for _ in range(100)]
last = b"x" * (1 << 16)  # above them, so that glibc cannot give them back by itself
del blocks
assert anonymous_mb() > 90
child_process.give_back_freed_memory()
assert anonymous_mb() < 50, anonymous_mb()
"""

ONE_THREAD = """
import sys
from bridge_data import child_process

child_process.use_one_thread()
assert "torch" not in sys.modules
import torch
assert torch.get_num_threads() == 1
torch.set_num_threads(2)
child_process.use_one_thread()
assert torch.get_num_threads() == 1

import os
from tokenizers import Tokenizer, models, pre_tokenizers
tokenizer = Tokenizer(models.WordLevel({"a": 0, "?": 1}, "?"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
before = os.listdir("/proc/self/task")
tokenizer.encode_batch(["a b c"] * 500)
assert os.listdir("/proc/self/task") == before
"""


FIRST_BATCHES_TAKE_MORE = """
import itertools
from pathlib import Path
import psutil
from bridge_data.loader import get_loader
from tests.loader.streams import Streams, config, expected

made = []

def make(lane, number, size):
    made.append(number)
    if len(made) <= 2:
        blocks = [b"x" * (1 << 20) for _ in range(50)]
    return expected(lane, number, size)

def below_its_peak_mb(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = {line.split()[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith("Vm")}
    return sizes["VmHWM:"] - sizes["VmRSS:"]

loader = get_loader(Streams(config(1, 1), make=make))
batches = list(itertools.islice(loader, 20))
(worker,) = psutil.Process().children()[0].children()
assert below_its_peak_mb(worker.pid) > 40, below_its_peak_mb(worker.pid)
"""


@pytest.mark.processes
@pytest.mark.parametrize("program", [GIVE_BACK, ONE_THREAD], ids=["freed", "torch"])
def test_a_worker_keeps_neither_memory_nor_threads_that_it_does_not_need(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)


@pytest.mark.processes
def test_nor_does_it_keep_what_its_first_batches_took_more() -> None:
    status, printed = run_job("-c", FIRST_BATCHES_TAKE_MORE)
    assert status == 0, printed


NO_STANDARD_STREAMS = """
import itertools, os
from bridge_data.loader import get_loader
from tests.loader.streams import Streams, config

os.closerange(0, 3)
loader = get_loader(Streams(config(1, 1)))
batches = list(itertools.islice(loader, 20))
assert loader.metrics().worker_restarts == 0
"""


@pytest.mark.processes
def test_a_trainer_without_standard_streams_has_workers() -> None:
    subprocess.run([sys.executable, "-c", NO_STANDARD_STREAMS], cwd=ROOT, check=True, timeout=120)
