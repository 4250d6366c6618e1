import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from bridge_data.errors import ConfigError
from bridge_data.prepare.executors import Executor, LocalProcesses, pool


@pytest.mark.parametrize("num_workers", [1, 3])
def test_results_come_in_the_order_of_the_arguments(num_workers: int) -> None:
    assert list(LocalProcesses(num_workers).map(abs, range(-40, 0), what="counted")) == list(range(40, 0, -1))


def test_a_process_with_threads_is_not_forked() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with pool(2) as executor:
            assert executor.submit(os.getpid).result() == os.getpid()
    finally:
        stop.set()
        thread.join()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("num_workers", [1, 3])
def test_an_executor_takes_any_function_and_arguments_when_there_is_a_worker_for_them(num_workers: int) -> None:
    taken: list[int] = []

    def arguments() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    offset = 3
    executor: Executor = LocalProcesses(num_workers)
    with contextlib.closing(executor.map(lambda number: number + offset, arguments(), what="added")) as results:
        assert [next(results) for _ in range(5)] == [3, 4, 5, 6, 7]
    assert len(taken) < 30  # closing cancels the rest
    with pytest.raises(ConfigError, match="num_workers=0: expected at least 1"):
        LocalProcesses(0)


INTERRUPTED = """
import multiprocessing, os, signal, sys, time
from bridge_data.errors import WorkerError
from bridge_data.prepare.executors import LocalProcesses
all_begun = multiprocessing.get_context("fork").Barrier(3)
tasks = LocalProcesses(3).map(lambda task: time.sleep(99) if task else all_begun.wait(), [0, 0, 0, 1], what="slept")
try:
    for number, _ in enumerate(tasks):
        if number == 2:
            os.killpg(0, signal.SIGINT)
except (KeyboardInterrupt, WorkerError):  # whichever is noticed first: Ctrl-C, or that the others have ended
    sys.exit(7)
"""


@pytest.mark.processes
def test_ctrl_c_ends_all_processes_and_only_the_first_says_so() -> None:
    run = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, start_new_session=True)
    assert run.returncode == 7 and "Traceback" not in run.stderr


TORCH = """
import torch
from bridge_data.prepare.executors import LocalProcesses
torch.set_num_threads(3)
assert set(LocalProcesses(2).map(lambda _: torch.get_num_threads(), range(4), what="asked")) == {1}
"""


@pytest.mark.processes
def test_torch_has_one_thread_in_a_forked_process() -> None:
    subprocess.run([sys.executable, "-c", TORCH], check=True)
