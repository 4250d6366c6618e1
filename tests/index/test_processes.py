import os
import signal
import subprocess
import sys
import threading

import pytest

from bridge_data.index.processes import in_parallel
from tests.index import parallel


def apart(name: str) -> subprocess.CompletedProcess[str]:
    """Check in a process without threads; it ends when those that it forked have ended, which have its output."""
    command = [sys.executable, "-m", "tests.index.parallel", name]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("name", ["order", "sizes", "lazy", "errors", "death"])
def test_processes(name: str) -> None:
    done = apart(name)
    assert (done.returncode, done.stdout) == (0, "")


def test_output_of_processes_is_neither_lost_nor_doubled() -> None:
    assert sorted(apart("output").stdout.split()) == ["a", "b", "c", "here"]


def test_processes_end_with_the_one_that_made_them() -> None:
    done = apart("killed")
    assert done.returncode == -signal.SIGKILL
    assert len(done.stdout.split()) == 11


def test_a_process_with_threads_is_not_forked() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        found = in_parallel(lambda _: os.getpid(), range(30), num_workers=2, what="counted")
        assert list(found) == [os.getpid()] * 30
        parallel.order()
        parallel.lazy()
    finally:
        stop.set()
        thread.join()
