import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from bridge_data.errors import ConfigError
from recipes.trainer.exit_signal import ExitSignal, signal_number

ROOT = Path(__file__).parents[3]

ASKS_AT_EACH_STEP = """
import json, os, signal, sys
import torch
import torch.distributed as dist
from recipes.trainer.exit_signal import ExitSignal
store, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
with ExitSignal("SIGTERM", torch.device("cpu")) as asked:
    heard = []
    for step in range(4):
        if step == 2 and rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        heard.append(asked.received())
print(json.dumps(heard))
dist.destroy_process_group()
"""


def test_all_ranks_hear_at_the_same_step_of_a_signal_to_one(tmp_path: Path) -> None:
    jobs = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", ASKS_AT_EACH_STEP, str(tmp_path / "store"), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(2)
    ]
    heard = [json.loads(job.communicate(timeout=100)[0]) for job in jobs]
    assert heard == 2 * [[False, False, True, True]]


def test_outside_its_context_the_signal_means_what_it_did() -> None:
    noted: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: noted.append(number))
    try:
        with ExitSignal("SIGUSR1", torch.device("cpu")):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert not noted
        os.kill(os.getpid(), signal.SIGUSR1)
        assert noted == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_without_a_name_nobody_is_asked_and_no_handler_set() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with ExitSignal(None, torch.device("cpu")) as asked:
        assert signal.getsignal(signal.SIGTERM) is before
        assert not asked.received()


def test_only_signals_that_can_be_caught_are_taken() -> None:
    assert signal_number("SIGUSR2") is signal.SIGUSR2
    for name in ("SIGKILL", "SIGSTOP"):
        with pytest.raises(ConfigError, match="no process can catch it"):
            signal_number(name)
    with pytest.raises(ConfigError, match="such as 'SIGTERM'"):
        signal_number("TERM")


def test_outside_the_main_thread_it_is_an_error() -> None:
    errors: list[ConfigError] = []

    def enter() -> None:
        try:
            ExitSignal("SIGTERM", torch.device("cpu")).__enter__()
        except ConfigError as error:
            errors.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert "only caught in the main thread" in str(errors[0])
