"""Launch, watch, kill and reap training jobs.

Reads a torchrun command line, and the folder of its logs. Returns the exit status, and leaves no process behind. A job
has a process group of its own and writes to a file, so that nothing it leaves behind can block our terminal. Processes
that ranks leave behind (a SIGKILL orphans the helpers of a rank) become our children, and are killed by their ids.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import psutil

from recipes.demo.compare import log_file, read_lines

POLL_S = 0.1
PR_SET_CHILD_SUBREAPER = 36
LAUNCHER_LOG, RANKS = "launcher.log", "ranks"
MAX_ERROR_LINES = 8
MAX_LINE_LENGTH = 200


class JobFailed(Exception):
    """A training job ended unexpectedly; the message holds the error of the rank that failed first."""


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
    timeout_s: float = 600.0,
) -> None:
    """Run `python -m module arguments` on `num_ranks` ranks by torchrun, and wait for its end.

    `on_step` gets each line that rank 0 logs in `folder`. With `kill_after_step`, rank 0 is SIGKILLed once it has
    logged that step, and the job is expected to fail. All descendants of this process end with the job.
    The launcher's output is in `folder/launcher.log`, that of rank r in `folder/ranks/*/attempt_0/r`.

    Raises:
        JobFailed: if the job fails, does not fail when killed, or takes longer than `timeout_s`.
    """
    _adopt_orphans()
    not_ours = descendants()
    folder.mkdir(parents=True, exist_ok=True)
    launcher = ["-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={num_ranks}", "--monitor-interval=0.1"]
    launcher += [f"--log-dir={folder / RANKS}", "--redirects=3"]
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]  # 0: a free port
    with (folder / LAUNCHER_LOG).open("ab") as log:
        job = subprocess.Popen(
            [sys.executable, *launcher, *rendezvous, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(environment or {})},
        )
    try:
        was_killed = _watch(job, log_file(folder, 0), on_step, kill_after_step, timeout_s)
        if was_killed is None:
            end_descendants(not_ours)
        status = job.wait()
    finally:
        end_descendants(not_ours)
    if was_killed is None:
        raise JobFailed(_report(folder, f"not done after {timeout_s:.0f} s"))
    if kill_after_step is not None and not was_killed:
        raise JobFailed(_report(folder, f"ended with status {status} before it could be killed"))
    if kill_after_step is None and status:
        raise JobFailed(_report(folder, f"ended with status {status}"))


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
                _rank(0, job).kill()
                killed = True
        if has_ended:
            return killed
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_S if kill_after_step is None else POLL_S / 10)


def _rank(number: int, job: "subprocess.Popen[bytes]") -> psutil.Process:
    """The process of a rank: a child of torchrun, which tells it its number."""
    return next(one for one in psutil.Process(job.pid).children() if one.environ().get("RANK") == str(number))


def descendants() -> Set[psutil.Process]:
    """All descendants of this process."""
    return set(psutil.Process().children(recursive=True))


def end_descendants(but: Set[psutil.Process] = frozenset()) -> None:
    """Kill all descendants of this process, except some, and reap them."""
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


def _report(folder: Path, what: str) -> str:
    """How the job of `folder` failed: its first rank's own error, in ten lines at most, then where the logs are."""
    lines = [line[:MAX_LINE_LENGTH] for line in _recorded_error(folder) or _last_words(folder)]
    logs = next((folder / RANKS).glob("*/attempt_*"), folder / RANKS)
    where = f"logs: {logs}/RANK/stderr.log, {folder / LAUNCHER_LOG}"
    return "\n".join([f"{folder.name}: {what}", *(f"  {line}" for line in lines), where])


def _recorded_error(folder: Path) -> list[str]:
    """The exception of the rank that was the first to record one, and where it was raised, innermost call last."""
    records = sorted((folder / RANKS).glob("*/attempt_*/*/error.json"), key=lambda file: file.stat().st_mtime_ns)
    if not records:
        return []
    recorded = json.loads(records[0].read_text())["message"]
    error = [line for line in recorded["message"].splitlines() if line.strip()][: MAX_ERROR_LINES // 2]
    calls = re.findall(r"^  (File .*)$", recorded["extraInfo"]["py_callstack"], re.MULTILINE)
    return [f"rank {records[0].parent.name}: {error[0]}", *error[1:], *calls[len(error) - MAX_ERROR_LINES :]]


def _last_words(folder: Path) -> list[str]:
    """The end of what the rank wrote that the launcher saw fail first; for jobs that record no exception, or were
    killed."""
    launcher = (folder / LAUNCHER_LOG).read_text(errors="replace")
    found = re.search(r"Root Cause.*?rank\s*: (\d+).*?exitcode\s*: ([^\n]*)", launcher, re.DOTALL)
    if found is None:
        return launcher.splitlines()[-MAX_ERROR_LINES:]
    rank, code = found.groups()
    logs = (folder / RANKS).glob(f"*/attempt_*/{rank}/stderr.log")
    written = [line for file in logs for line in file.read_text(errors="replace").splitlines()]
    return [f"rank {rank}: exit code {code.strip()}", *written[1 - MAX_ERROR_LINES :]]
