import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.properties.test_topologies import ONE_THREAD


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_workers", "how"),
    [
        (2, "together"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, "together"), (0, "each"), (2, "each"))),
    ],
)
@pytest.mark.timeout(900)
def test_a_run_resumed_after_any_step_equals_the_uninterrupted_one(num_workers: int, how: str) -> None:
    command = [sys.executable, "-m", "tests.properties.resume_everywhere", str(num_workers), how]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=os.environ | ONE_THREAD, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-5_000:]
    assert done.stdout.count("39 resumes equal") == 2
