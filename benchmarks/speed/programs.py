"""The libraries that take part, and one run of one of them: a process with a time limit, killed with its children.

Input: library, workload, workers. Output: the figures that its program prints, or why there are none.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "benchmarks/peers"
ENVIRONMENTS = ROOT / ".venv-peers"
RUN_LIMIT_S, CONVERT_LIMIT_S = 60, 300

OURS, ENERGON, BARE, BY_HAND = "bridge_data", "megatron-energon", "bare loop", "by hand"
LIBRARIES: dict[str, tuple[str, str]] = {
    OURS: ("", "ours.py"),
    BARE: ("", "bare_loop.py"),
    ENERGON: ("energon", "energon_tars.py"),
    "webdataset": ("webdataset", "webdataset_tars.py"),
    "mosaicml-streaming": ("streaming", "streaming_mds.py"),
    "litdata": ("litdata", "litdata_chunks.py"),
    "datasets": ("datasets", "datasets_arrow.py"),
    "torchdata": ("torchdata", "torchdata_files.py"),
    BY_HAND: ("torchdata", "by_hand.py"),
}
"""Environment (of ours: this one) and program of each library."""

PEERS = [name for name in LIBRARIES if name not in (OURS, BARE, BY_HAND)]
CONVERTING = ("mosaicml-streaming", "litdata", "datasets", "torchdata", BY_HAND)

Figures = dict[str, Any]
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


def python_of(name: str) -> Path:
    """The interpreter of a library's environment."""
    environment, _ = LIBRARIES[name]
    return ENVIRONMENTS / environment / "bin/python" if environment else Path(sys.executable)


def convert(name: str, workload: str, data: Path) -> None:
    """Make the library's own format of a workload's data, once; a failure shows in its runs."""
    done = data / f".converted-{name}"
    if name in CONVERTING and not done.exists() and python_of(name).exists():
        print(f"{name}: converting {workload}", file=sys.stderr, flush=True)
        figures = _started(name, ["convert", "--workload", workload, "--data", str(data)], CONVERT_LIMIT_S)
        if "failed" in figures:
            print(f"{name}: {figures['failed']}", file=sys.stderr)
        else:
            done.touch()


def run(
    name: str,
    workload: str,
    data: Path,
    workers: int,
    seconds: float,
    options: Sequence[str] = (),
    variables: Mapping[str, str] = NO_VARIABLES,
) -> Figures:
    """The figures of one run; `{"failed": why}` if there are none."""
    where = ["--workload", workload, "--data", str(data), "--workers", str(workers), "--seconds", str(seconds)]
    arguments = ["run", *where, "--started", str(time.monotonic()), *options]
    return _started(name, arguments, RUN_LIMIT_S, variables)


def _started(name: str, arguments: list[str], limit_s: float, variables: Mapping[str, str] = NO_VARIABLES) -> Figures:
    python = python_of(name)
    if not python.exists():
        return {"failed": f"no environment: `make peers` makes {python.parent.parent.name}"}
    program = LIBRARIES[name][1]
    status, output, errors = limited([str(python), str(PROGRAMS / program), *arguments], limit_s, variables)
    if status is None:
        return {"failed": f"not done after {limit_s} s"}
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if status != 0:
        return {"failed": (errors.strip().splitlines() or [f"exit status {status}"])[-1][:200]}
    return json.loads(lines[-1]) if lines else {}


def limited(
    command: Sequence[str], limit_s: float, variables: Mapping[str, str] = NO_VARIABLES
) -> tuple[int | None, str, str]:
    """Exit status (None: it took too long), output and errors of a command; its processes end with it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    if command[0] != sys.executable:
        environment.pop("PYTHONPATH", None)  # meant for this environment's Python, not for a peer's
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment, start_new_session=True)
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for file in (output, errors):
            file.seek(0)
        return status, output.read(), errors.read()
