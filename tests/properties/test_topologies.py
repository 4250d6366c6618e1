import os
import subprocess
import sys
from pathlib import Path

import pytest

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@pytest.mark.long
@pytest.mark.parametrize("examples", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_global_batches_are_equal_for_any_number_of_ranks_and_workers(examples: int) -> None:
    command = [sys.executable, "-m", "tests.properties.topologies", str(examples)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=os.environ | ONE_THREAD, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-5_000:]
    assert done.stdout.count("equal in 12 topologies") >= examples
