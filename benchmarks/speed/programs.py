"""The libraries and workloads that take part, and one run of a library: a process with a time limit.

Reads the name of a library, a workload, a number of workers. Returns the figures that its program prints, or why there
are none. What a run leaves running is killed with it.
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
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.figures import ROOT

PROGRAMS = ROOT / "benchmarks/peers"
ENVIRONMENTS = ROOT / ".venv-peers"
RUN_LIMIT_S, CONVERT_LIMIT_S = 60, 300

OURS, ENERGON, BARE = "bridge_data", "megatron-energon", "bare loop"


@dataclass(frozen=True)
class Library:
    """The environment of a library (of ours: this one), and its program."""

    environment: str
    program: str
    format: str = ""
    """The folder of its own format, which its program makes of the tars."""
    is_threaded: bool = False
    """Whether it has threads where the others have worker processes, and no mode without."""
    made_by: str = "`make peers`"
    """What makes its environment."""
    tolerance: float = 1e-4
    """How far the mean of a sample may be off, as a share: other decoders convert colours otherwise."""

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return ENVIRONMENTS / self.environment / "bin/python" if self.environment else Path(sys.executable)


LIBRARIES = {
    OURS: Library("", "ours.py"),
    BARE: Library("", "bare_loop.py"),
    ENERGON: Library("energon", "energon_tars.py"),
    "webdataset": Library("webdataset", "webdataset_tars.py"),
    "mosaicml-streaming": Library("streaming", "streaming_mds.py", "mds"),
    "litdata": Library("litdata", "litdata_chunks.py", "chunks"),
    "datasets": Library("datasets", "datasets_arrow.py", "arrow"),
    "torchdata": Library("torchdata", "torchdata_files.py", "files"),
    "grain": Library("grain", "grain_records.py", "records"),
    "spdl": Library("spdl", "spdl_files.py", "files", is_threaded=True, tolerance=1e-2),
}
PEERS = [name for name in LIBRARIES if name not in (OURS, BARE)]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A workload that its libraries run in-process and with workers."""

    label: str
    unit: str = ""
    peers: tuple[str, ...] = tuple(PEERS)
    data: str = ""
    """The data set, where it is another workload's."""
    tolerance: float = 0.0
    """As of a library."""
    bare: bool = False
    """Whether the bare loop does this work, too."""


WITHOUT_MIXING = tuple(name for name in PEERS if name != "spdl")
WORKLOADS = {
    "text": Workload(label="text, 200 B, batch 32", bare=True),
    "jpeg": Workload(label="JPEG 500×400, 55 KB → uint8, batch 32", bare=True),
    "photos": Workload(label="JPEG 1600×1200 → 336² float, batch 16", bare=True),
    "photos_torch": Workload(label="the same, resized by torch", peers=(), data="photos", tolerance=1e-2),
    "video": Workload(label="8 frames of 10 s of H.264, 640×360, batch 4", peers=(ENERGON, "torchdata", "spdl")),
    "audio": Workload(label="5 s of FLAC, 16 kHz → float, batch 16", peers=(ENERGON, "torchdata", "spdl")),
    "chat": Workload(label="packed chat, 4 × 2,048 tokens", unit=" packs", peers=WITHOUT_MIXING, bare=True),
    "aux": Workload(label="questions with photos of another data set, batch 16", peers=(ENERGON,)),
    "blend": Workload(label="blend of 20 sets of text, batch 32", peers=WITHOUT_MIXING),
}

Figures = dict[str, Any]
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


def python_of(name: str) -> Path:
    """The interpreter of a library's environment."""
    return LIBRARIES[name].python


def convert(name: str, workload: str, data: Path) -> None:
    """Make the library's own format of a workload's data, once; a failure shows in its runs."""
    done = data / f".converted-{LIBRARIES[name].format}"
    if LIBRARIES[name].format and not done.exists() and python_of(name).exists():
        print(f"{name}: converting {workload}", file=sys.stderr, flush=True)
        figures = started(LIBRARIES[name], ["convert", "--workload", workload, "--data", str(data)], CONVERT_LIMIT_S)
        if "failed" in figures:
            print(f"{name}: {figures['failed']}", file=sys.stderr)
        else:
            done.touch()


def run(
    library: str | Library,
    workload: str,
    data: Path,
    workers: int,
    seconds: float,
    options: Sequence[str] = (),
    variables: Mapping[str, str] = NO_VARIABLES,
    limit_s: float = RUN_LIMIT_S,
) -> Figures:
    """The figures of one run of a library, which may be named; `{"failed": why}` if there are none."""
    library = LIBRARIES[library] if isinstance(library, str) else library
    where = ["--workload", workload, "--data", str(data), "--workers", str(workers), "--seconds", str(seconds)]
    arguments = ["run", *where, "--started", str(time.monotonic()), *options]
    return started(library, arguments, limit_s, variables)


def started(
    library: Library, arguments: Sequence[str], limit_s: float, variables: Mapping[str, str] = NO_VARIABLES
) -> Figures:
    """The last line of JSON that the program of a library prints; `{"failed": why}` if it fails."""
    if not library.python.exists():
        return {"failed": f"no environment: {library.made_by} makes {library.environment}"}
    command = [str(library.python), str(PROGRAMS / library.program), *arguments]
    status, output, errors = limited(command, limit_s, variables)
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
