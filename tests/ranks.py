"""Training jobs of tests: processes of their own, forked from one that has imported what is heavy; a job starts in
milliseconds, not seconds. As torchrun would, a job of several ranks ends with the first that fails.
"""

import contextlib
import functools
import importlib
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerContext
from pathlib import Path

from bridge_data.child_process import SINGLE_THREADED

ROOT = Path(__file__).parents[1]
PRELOADED = ["bridge_data.datamodule.module", "recipes.megatron.train_vlm", "transformers", "tests.ranks"]
"""Modules that import Lightning, Megatron and what else takes seconds."""


def run_job(
    module: str, *arguments: str, num_ranks: int | None = None, cwd: Path = ROOT, timeout_s: float = 150
) -> tuple[int, str]:
    """Run `python -m module arguments` in a process of its own, or on so many gloo ranks; nothing is left of it. As for
    `python`, "-c" for the module takes a program.

    Returns the exit status, which is that of the first rank that fails, and the output of all.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "output")
        work = output, os.environ | SINGLE_THREADED | {"PYTHONPATH": str(ROOT)}, [module, *arguments], num_ranks, cwd
        job = _forking().Process(target=_run, args=work)
        job.start()
        job.join(timeout_s)
        status = job.exitcode
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid or 0, signal.SIGKILL)
        job.join()
        printed = output.read_text(errors="replace") if output.exists() else ""
    assert status is not None, f"not done after {timeout_s} s: {printed}"
    return status, printed


@functools.cache
def _forking() -> ForkServerContext:
    """Forks from a process with one thread that has imported what most jobs need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    before = {name: os.environ.get(name) for name in SINGLE_THREADED}
    os.environ.update(SINGLE_THREADED)
    try:
        context.Process(target=int).start()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    return context


def _run(output: Path, environment: Mapping[str, str], argv: list[str], num_ranks: int | None, cwd: Path) -> None:
    """Be the first process of a job."""
    os.setsid()
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        work = functools.partial(exec, argv[1], {"__name__": "__main__"})
    else:
        sys.argv = argv
        work = functools.partial(runpy.run_module, argv[0], run_name="__main__", alter_sys=True)
        importlib.import_module(argv[0])  # and with it all that the ranks import
    if num_ranks is None:
        work()
    else:
        sys.exit(fork_ranks(num_ranks, work))


def fork_ranks(num_ranks: int, work: Callable[[], object]) -> int:
    """Do `work` in so many forked ranks of one job; the exit status of the first that fails, else 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(num_ranks))
    running = set()
    for rank in range(num_ranks):
        pid = os.fork()
        if not pid:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            _end(work)
        running.add(pid)
    failed = 0
    while running:
        pid, status = os.wait()
        running.discard(pid)
        if status and not failed:
            failed = os.waitstatus_to_exitcode(status)
            for other in running:  # they wait for the one that failed
                os.kill(other, signal.SIGKILL)
    return failed


def _end(work: Callable[[], object]) -> None:
    """Do `work`, and end this process."""
    status = 0
    try:
        work()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else bool(end.code)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
