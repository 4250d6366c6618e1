import subprocess
import sys
from pathlib import Path

import pytest

FIRST_BATCHES_TAKE_MORE = """
import itertools
from pathlib import Path
import psutil
from bridge_data.loader import get_loader
from bridge_data.loader.position import LaneRunner
from tests.loader.streams import Streams, config, expected

made = []

def make(lane, number, size):
    made.append(number)
    if len(made) <= 2:  # in each process
        blocks = [b"x" * (1 << 20) for _ in range(50)]
    return expected(lane, number, size)

def below_its_peak_mb(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = {line.split()[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith("Vm")}
    return sizes["VmHWM:"] - sizes["VmRSS:"]

loader = get_loader(Streams(config(1, 1), make=make))
first = next(iter(loader))
trainer, server = psutil.Process(), psutil.Process().children()[0]
assert isinstance(loader._source, LaneRunner) and below_its_peak_mb(trainer.pid) < 30
assert loader.wait_for_workers()
batches = list(itertools.islice(loader, 20))
(worker,) = server.children()
below = below_its_peak_mb(trainer.pid), below_its_peak_mb(worker.pid)
assert min(below) > 40, below
"""


@pytest.mark.processes
def test_what_first_batches_took_is_given_back() -> None:
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", FIRST_BATCHES_TAKE_MORE], cwd=root, check=True, timeout=120)
