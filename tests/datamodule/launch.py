"""Runs jobs of several ranks for tests: real processes, of which nothing is left over."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def on_ranks(num_ranks: int, module: str) -> tuple[str, ...]:
    """The arguments of Python that run `module` on so many ranks."""
    return "-m", "tests.ranks", str(num_ranks), module


def run_job(*arguments: str, timeout_s: float = 150) -> tuple[int, str]:
    """The exit status and the output of `python ARGUMENTS`."""
    job = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = job.communicate(timeout=timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    return job.returncode, output
