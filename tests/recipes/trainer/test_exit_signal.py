import json
import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from bridge_data.errors import ConfigError
from recipes.trainer.exit_signal import ExitSignal, signal_number
from tests.ranks import run_job

ASKS_AT_EACH_STEP = """
import json, os, signal, sys
import torch
import torch.distributed as dist
from recipes.trainer.exit_signal import ExitSignal
dist.init_process_group("gloo")
rank = dist.get_rank()
with ExitSignal("SIGTERM", torch.device("cpu")) as asked:
    heard = []
    for step in range(4):
        if step == 2 and rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        heard.append(asked.received())
with open(f"{sys.argv[1]}/{rank}", "w") as file:
    json.dump(heard, file)
dist.destroy_process_group()
"""


def test_all_ranks_hear_at_the_same_step_of_a_signal_to_one(tmp_path: Path) -> None:
    status, output = run_job("-c", ASKS_AT_EACH_STEP, str(tmp_path), num_ranks=2)
    assert status == 0, output
    heard = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
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


def test_only_signals_that_can_be_caught_are_taken() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with ExitSignal(None, torch.device("cpu")) as asked:
        assert signal.getsignal(signal.SIGTERM) is before
        assert not asked.received()
    assert signal_number("SIGUSR2") is signal.SIGUSR2
    for name, message in (
        ("SIGKILL", "no process can catch"),
        ("SIGSTOP", "no process can catch"),
        ("TERM", "'SIGTERM'"),
    ):
        with pytest.raises(ConfigError, match=message):
            signal_number(name)


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
