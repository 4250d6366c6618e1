"""Launch, watch, kill and reap training jobs.

Enters: a torchrun command line and the folder of its logs. Leaves: the exit status, and no process. A job has a
process group of its own and writes to a file, so that nothing it leaves behind can hold our terminal; whatever the
ranks leave behind (a SIGKILL orphans the helpers of a rank) becomes our child, and is killed by its id.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import psutil

from recipes.run_log import read_lines

POLL_S = 0.1
PR_SET_CHILD_SUBREAPER = 36


class JobFailed(Exception):
    """A training job ended otherwise than it should; the message holds the end of its log."""


def _adopt_orphans() -> None:
    """Make this process the parent of every orphan among its descendants (Linux), so that it can reap them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_job(
    module: str,
    arguments: Sequence[str],
    *,
    folder: Path,
    num_ranks: int,
    on_step: Callable[[dict[str, Any]], None],
    kill_after_step: int | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
) -> None:
    """Run `python -m module arguments` on `num_ranks` ranks by torchrun, and wait for its end.

    `on_step` gets each line that rank 0 logs in `folder`. With `kill_after_step`, rank 0 is SIGKILLed once it has
    logged that step, and the job is expected to fail. All that has come to descend from this process ends with the job.

    Raises:
        JobFailed: if the job fails, does not fail when killed, or takes longer than `timeout_s`.
    """
    _adopt_orphans()
    not_ours = descendants()
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / "output.log"
    launcher = ["-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={num_ranks}", "--monitor-interval=0.1"]
    rendezvous = ["--master-addr=127.0.0.1", f"--master-port={_free_port()}"]
    with output.open("ab") as log:
        job = subprocess.Popen(
            [sys.executable, *launcher, *rendezvous, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(environment or {})},
        )
    try:
        was_killed = _watch(job, folder / "steps_dprank000.jsonl", on_step, kill_after_step, timeout_s)
        if was_killed is None:
            end_descendants(not_ours)
        status = job.wait()
    finally:
        end_descendants(not_ours)
    if was_killed is None:
        raise JobFailed(f"{folder.name}: not done after {timeout_s:.0f} s\n{_tail(output)}")
    if kill_after_step is not None and not was_killed:
        raise JobFailed(f"{folder.name}: ended with status {status} before it could be killed\n{_tail(output)}")
    if kill_after_step is None and status:
        raise JobFailed(f"{folder.name}: ended with status {status}\n{_tail(output)}")


def _watch(
    job: "subprocess.Popen[bytes]",
    steps: Path,
    on_step: Callable[[dict[str, Any]], None],
    kill_after_step: int | None,
    timeout_s: float,
) -> bool | None:
    """Follow a job to its end: whether we killed it, None if it ran out of time."""
    deadline = time.monotonic() + timeout_s
    num_seen, killed = 0, False
    while True:
        has_ended = job.poll() is not None
        for line in read_lines(steps)[num_seen:]:
            num_seen += 1
            on_step(line)
            if kill_after_step is not None and line["step"] == kill_after_step and not killed:
                os.kill(line["pid"], signal.SIGKILL)
                killed = True
        if has_ended:
            return killed
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_S if kill_after_step is None else POLL_S / 10)


def descendants() -> Set[psutil.Process]:
    """Every process that descends from this one."""
    return set(psutil.Process().children(recursive=True))


def end_descendants(but: Set[psutil.Process] = frozenset()) -> None:
    """Kill every process that descends from this one, but for some, and collect what is left of it."""
    for _ in range(50):
        left = descendants() - but
        if not left:
            return
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(left, timeout=2.0)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _tail(output: Path, num_lines: int = 60) -> str:
    lines = output.read_text(errors="replace").splitlines()
    return "\n".join([f"the last lines of {output}:", *(f"  {line}" for line in lines[-num_lines:])])
