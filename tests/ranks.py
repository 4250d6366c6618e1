"""Training jobs of tests: processes of their own, forked from one that has imported what is heavy; a job starts in
milliseconds, not seconds. As torchrun would, a job of several ranks ends with the first that fails.

`python -m tests.ranks LISTENER PARENT` is the process that jobs are forked from. All processes of pytest share one,
which is no child of those that run tests: a test that counts its processes sees no jobs of others.
"""

import contextlib
import functools
import gc
import importlib
import multiprocessing
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NoReturn

from bridge_data.child_process import SINGLE_THREADED, die_with_parent

ROOT = Path(__file__).parents[1]
PRELOADED = ["bridge_data.datamodule.module", "recipes.megatron.train_vlm", "transformers", "tests.ranks"]
"""Modules that import Lightning, Megatron and what else takes seconds."""


def run_job(
    module: str,
    *arguments: str,
    num_ranks: int | None = None,
    cwd: Path = ROOT,
    timeout_s: float = 150,
    anew: Collection[str] = (),
) -> tuple[int, str]:
    """Run `python -m module arguments` in a process of its own, or on so many gloo ranks; nothing is left of it. As for
    `python`, "-c" for the module takes a program. The packages `anew` are not imported yet, as in a new process.

    Returns the exit status, which is that of the first rank that fails, and the output of all.
    """
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as connection:
        output = Path(folder, "output")
        environment = os.environ | SINGLE_THREADED | {"PYTHONPATH": str(ROOT)}
        work = [str(output)] * 2, environment, [module, *arguments], num_ranks, str(cwd), [*anew]
        connection.connect(job_server())
        with connection.makefile("rwb") as stream:
            pickle.dump(work, stream)
            stream.flush()
            process = pickle.load(stream)
            connection.settimeout(timeout_s)
            try:
                status: int | None = pickle.load(stream)
            except TimeoutError:
                status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        printed = output.read_text(errors="replace") if output.exists() else ""
    assert status is not None, f"not done after {timeout_s} s: {printed}"
    return status, printed


SHARED: dict[str, bytes] = {}
"""The address of the server that another process of pytest has begun for all."""


def job_server() -> bytes:
    """The address of the process that jobs are forked from."""
    return SHARED.get("server") or begin_server()


def write_program(path: Path, *command: str) -> None:
    """Write a program that does what `python command ARGUMENTS` does, as a job, in milliseconds."""
    path.write_text(_PROGRAM.format(python=sys.executable, server=job_server(), command=list(command)))
    path.chmod(0o755)


_PROGRAM = """#!{python} -SE
import os, pickle, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect({server!r})
stream = connection.makefile("rwb")
outputs = [f"/proc/{{os.getpid()}}/fd/{{number}}" for number in (1, 2)]
pickle.dump((outputs, dict(os.environ), {command} + sys.argv[1:], None, os.getcwd(), []), stream)
stream.flush()
process, status = pickle.load(stream), pickle.load(stream)
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


@functools.cache
def begin_server() -> bytes:
    """Begin the process that jobs are forked from; its address. It ends with this process."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(b"")  # to a new name that is no file
        listener.listen()
        command = [sys.executable, "-m", "tests.ranks", str(listener.fileno()), str(os.getpid())]
        environment = os.environ | SINGLE_THREADED
        subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL)
        address: bytes = listener.getsockname()
    return address


def serve(listener: socket.socket, parent: int) -> NoReturn:
    """Fork a process for each that connects; import what is heavy before the first."""
    die_with_parent(parent)
    gc.disable()  # until all is imported
    while True:
        connection, _ = listener.accept()
        if not gc.isenabled():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of others, who miss what a GPU needs
                for name in PRELOADED:
                    with contextlib.suppress(Exception):  # as without plug-ins: a job that needs it says why
                        importlib.import_module(name)
            gc.collect()
            gc.freeze()  # else each job would look at, and copy, all that was imported
            gc.enable()
        if not os.fork():
            listener.close()
            _end(functools.partial(_attend, connection))
        connection.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _attend(connection: socket.socket) -> None:
    """Run one job; tell its first process, and its exit status."""
    with connection, connection.makefile("rwb") as stream:
        job = multiprocessing.get_context("fork").Process(target=_run, args=pickle.load(stream))
        job.start()
        pickle.dump(job.pid, stream)
        stream.flush()
        job.join()
        pickle.dump(job.exitcode, stream)


def _run(
    outputs: list[str],
    environment: Mapping[str, str],
    argv: list[str],
    num_ranks: int | None,
    cwd: str,
    anew: list[str],
) -> None:
    """Be the first process of a job; its outputs are files, or `/proc/PID/fd/NUMBER`."""
    for name in [name for name in sys.modules if name.partition(".")[0] in anew]:
        del sys.modules[name]
    os.setsid()
    for number, output in enumerate(outputs, 1):
        with open(output, "ab") as file:
            os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        work = functools.partial(exec, argv[1], {"__name__": "__main__"})
    elif argv[0].endswith(".py"):
        sys.argv = argv
        sys.path.insert(0, str(Path(argv[0]).resolve().parent))
        work = functools.partial(runpy.run_path, argv[0], run_name="__main__")
    else:
        sys.argv = argv = argv[1:] if argv[0] == "-m" else argv
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


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
