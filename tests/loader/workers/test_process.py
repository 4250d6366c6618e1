import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

GIVE_BACK = """
from bridge_data.loader.workers import process

def anonymous_mb():
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024

process.keep_freed_memory()
blocks = [b"x" * (1 << 20) for _ in range(100)]
last = b"x" * (1 << 16)  # above them, so that glibc cannot give them back by itself
del blocks
assert anonymous_mb() > 90
process.give_back_freed_memory()
assert anonymous_mb() < 50, anonymous_mb()
"""

ONE_THREAD = """
import sys
from bridge_data.loader.workers import process

process.use_one_thread()
assert "torch" not in sys.modules
import torch
assert torch.get_num_threads() == 1
torch.set_num_threads(2)
process.use_one_thread()
assert torch.get_num_threads() == 1
"""


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_freed_memory_is_kept_until_it_is_given_back() -> None:
    run(GIVE_BACK)


@pytest.mark.processes
def test_torch_computes_in_one_thread_whether_it_is_imported_before_or_after() -> None:
    run(ONE_THREAD)
