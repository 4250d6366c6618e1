"""Loaders of one process share a server, and each is served as if it were alone."""

import importlib
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from bridge_data.loader import SavableDataLoader, get_loader
from bridge_data.loader.workers import launch
from bridge_data.loader.workers.messages import Environment
from tests.loader.conftest import in_turn
from tests.loader.streams import Streams, config
from tests.loader.test_loader import some
from tests.waiting import until


@pytest.fixture(autouse=True)
def own_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one that all tests share."""
    monkeypatch.setenv("BRIDGE_DATA_TEST_OF", "launch")


def server_of(loader: SavableDataLoader) -> psutil.Process:
    pool = loader._pool
    assert pool is not None
    return psutil.Process(pool._launcher.server.process.pid)


def one_worker() -> SavableDataLoader:
    return get_loader(Streams(config(1, 2)))


@pytest.mark.processes
def test_loaders_share_a_server_which_ends_with_the_last_one() -> None:
    first, second = one_worker(), one_worker()
    server = server_of(first)
    assert server == server_of(second)
    assert first.wait_for_workers() and second.wait_for_workers()
    assert len(server.children()) == 2
    assert some(first, 20) == some(second, 20) == in_turn(20, 2)

    first.close()
    assert len(server.children()) == 1
    assert some(second, 20) == in_turn(20, 2, start=20)

    server.send_signal(signal.SIGKILL)  # it is lost for all, and all get the same new one
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
    third = one_worker()
    assert some(second, 20) == in_turn(20, 2, start=40)
    assert second.wait_for_workers() and third.wait_for_workers()
    assert server_of(third) == server_of(second) != server
    assert some(third, 20) == in_turn(20, 2)

    server = server_of(third)
    second.close()
    third.close()
    assert not server.is_running()


def test_workers_that_would_inherit_other_things_get_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with one_worker() as loader:
        monkeypatch.setenv("CACHE_OF_MODELS", "elsewhere")
        with one_worker() as other:
            assert server_of(loader) != server_of(other)


def test_after_a_module_was_edited_new_workers_do_not_run_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook the trainer loads the edited module again, while loaders of earlier cells keep their server."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "edited_module.py"
    file.write_text("SIZE = 1")
    importlib.import_module(file.stem)
    with one_worker() as loader, one_worker() as same:
        assert server_of(loader) == server_of(same)
        file.write_text("SIZE = 22")
        with one_worker() as after, one_worker() as another:
            assert server_of(after) == server_of(another) != server_of(loader)
            assert some(loader, 4) == some(after, 4) == in_turn(4, 2)
        del sys.modules[file.stem]


def test_a_loader_does_not_wait_for_a_server_that_is_still_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_STOP_TIMEOUT_S", 3600.0)
    loader = one_worker()
    server = server_of(loader)
    server.send_signal(signal.SIGSTOP)  # it will not come to serve
    loader.close()
    assert not server.is_running()


def test_an_early_server_does_nothing_after_its_release() -> None:
    before = {*launch._servers}
    early = launch.EarlyServer("server")
    early.release()
    early.prepare(["json"])
    assert {*launch._servers} == before


_WAITS = """
import pathlib, time
while not pathlib.Path(__file__ + ".go").exists():
    time.sleep(0.01)
"""


def test_what_a_server_imports_is_known_whoever_asked_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the loader that asked was closed, and before another was told that it is served."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("waits_1", "waits_2", "waits_3"):
        (tmp_path / f"{name}.py").write_text(_WAITS)
    first, second = (
        launch.Launcher("server", Environment.of_this_process(), names) for names in (["waits_1"], ["waits_2"])
    )
    server = second.server
    assert first.server is server and "waits_1" not in sys.modules
    server.prepare(["waits_3"])
    until(lambda: server.importing == "waits_1", 60)
    first.close()
    for name, following in (("waits_1", "waits_2"), ("waits_2", "waits_3"), ("waits_3", "")):
        assert server.importing == name
        (tmp_path / f"{name}.py.go").touch()
        until(lambda following=following: server.importing == following, 60)
    second.close()
