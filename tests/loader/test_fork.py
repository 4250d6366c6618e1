import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridge_data.loader.workers.worker import SINGLE_THREADED


@pytest.mark.processes
def test_forked_workers() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:timeout", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [*command, "--rootdir", str(root), "tests/loader/forked.py"],
        cwd=root,
        env=os.environ | SINGLE_THREADED,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
