"""What every test may use."""

import gc
import os
import sys
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from _pytest import runner
from hypothesis.internal.conjecture import providers

from tests import ranks
from tests.object_store import Bucket, Server, environment
from tests.worker_server import WorkerServer

# `make test` draws the same examples each time, so that what lands does not hang on luck; `make test-all` draws anew,
# and more. `make test-fast` draws fewer. A test may say how many it draws.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=25)
hypothesis.settings.register_profile("fast", derandomize=True, deadline=None, max_examples=15)
hypothesis.settings.register_profile("search", print_blob=True, deadline=None)
PROFILE = "search" if "BRIDGE_DATA_EXAMPLES" in os.environ else "repeatable"
hypothesis.settings.load_profile(os.environ.get("BRIDGE_DATA_PROFILE", PROFILE))
if hypothesis.settings().derandomize and hasattr(providers, "_get_local_constants"):
    # Nor do examples have constants out of our modules, as far as these happen to be imported when a test begins.
    providers._get_local_constants = lambda: providers._local_constants

# One thread of torch: tests run on all cores, and threads that wait for each other on a busy one take most of its time.
torch.set_num_threads(1)

# pytest would tell the name of each test in the environment; but loaders share a server only if it is the same.
runner._update_current_test_var = lambda item, when: None


def _check_open(descriptor: int) -> None:
    """Instead of `os.fsync`: what a test has written need not outlive a power failure, and waits for no disk."""
    os.fstat(descriptor)


os.fsync = _check_open

WORKERS = {"two_workers", "three_workers"}
"""Fixtures that start worker processes."""


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Processes that run tests share what training jobs are forked from, as it imports for many seconds."""
    node.workerinput["job_server"] = ranks.begin_server()


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        ranks.SHARED["server"] = config.workerinput["job_server"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use `WORKERS` as `processes`. Skip tests marked `gpu` where there is none."""
    for item in items:
        fixtures = getattr(item, "fixturenames", [])
        if WORKERS.intersection(fixtures):
            item.add_marker(pytest.mark.processes)
        if item.get_closest_marker("processes"):
            defined = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
            longer = [name for name in fixtures if name in defined and defined[name][-1].scope != "function"]
            fixtures.insert(len(longer), "worker_server")  # after what else may change the environment of many tests
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """What a test or a package that it imports adds to the environment or to `sys.path` goes with it: workers inherit
    both, and loaders share a server only while both are the same."""
    environment, path = dict(os.environ), [*sys.path]
    try:
        return (yield)
    finally:
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        sys.path[:] = path


gc.disable()  # until all is imported


def pytest_collection_finish() -> None:
    """Leave what is imported by now, most of all objects, out of each collection of garbage from here on."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def one_worker_server() -> Iterator[WorkerServer]:
    server = WorkerServer()
    yield server
    server.close()


@pytest.fixture
def worker_server(one_worker_server: WorkerServer) -> None:
    """The process that starts the workers of all loaders is there, as each would import torch anew."""
    one_worker_server.be_there()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An S3 server."""
    server = Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def bucket(s3_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A new bucket of an S3 server that the environment leads to; what is copied from it is kept below `tmp_path`. No
    request is late: tests of late ones delete `AWS_TIMEOUT`."""
    for name, value in environment(s3_server.port).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "copies"))
    monkeypatch.setenv("AWS_TIMEOUT", "60s")
    name = f"bucket-{uuid.uuid4().hex}"
    (s3_server.folder / name).mkdir()
    return Bucket(s3_server.folder / name, f"s3://{name}")
