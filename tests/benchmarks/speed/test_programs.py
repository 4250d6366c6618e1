"""Commands with a time limit, of which nothing is left."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.speed import programs

FORGETFUL = """
import subprocess, sys
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(sleeper.pid)
"""


def test_a_command_that_takes_too_long_has_no_status_and_what_one_leaves_running_ends_with_it() -> None:
    status, _, _ = programs.limited([sys.executable, "-c", "import time; time.sleep(600)"], 0.2)
    assert status is None
    status, output, _ = programs.limited([sys.executable, "-c", FORGETFUL], 60)
    assert status == 0
    deadline = time.monotonic() + 60
    while is_running(int(output)):
        assert time.monotonic() < deadline


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_program_that_fails_or_a_peer_without_an_environment_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = programs.run(programs.OURS, "text", tmp_path / "nothing", 0, 0.1)
    assert "nothing" in figures["failed"]
    monkeypatch.setattr(programs, "ENVIRONMENTS", tmp_path)
    assert "make peers" in programs.run("litdata", "text", tmp_path, 0, 0.1)["failed"]
