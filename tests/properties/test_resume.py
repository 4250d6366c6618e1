import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.properties.test_topologies import ONE_THREAD


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_workers", "how", "every"),
    [
        (2, "together", 4),
        *(
            pytest.param(num_workers, how, 1, marks=pytest.mark.slow)
            for num_workers in (0, 2)
            for how in ("together", "each")
        ),
    ],
)
@pytest.mark.timeout(900)
def test_a_run_resumed_after_any_step_equals_the_uninterrupted_one(num_workers: int, how: str, every: int) -> None:
    command = [sys.executable, "-m", "tests.properties.resume_everywhere", str(num_workers), how, str(every)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=os.environ | ONE_THREAD, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-5_000:]
    assert done.stdout.count(f"{len(range(0, 39, every))} resumes equal") == 2
