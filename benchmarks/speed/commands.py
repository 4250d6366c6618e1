"""Whole commands: `import bridge_data` compared with `import torch`, and `prepare` with Energon's.

Input: the texts of the throughput benchmark. Output: seconds of each, in turn, as runs with `wall_s`.
"""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.speed import data
from benchmarks.speed.programs import ENERGON, OURS, Figures, limited, python_of
from benchmarks.speed.rounds import Extent

IMPORTS, LIMIT_S, WORKERS = 7, 120, 2
IMPORTED = {
    "bridge_data alone": "import bridge_data",
    OURS: "from bridge_data import TaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset",
    "torch": "import torch",
}
"""A bare `import bridge_data` brings nothing until a name is used, so what a training script imports is timed, too."""


def imports(extent: Extent) -> dict[str, list[Figures]]:
    """New processes that import, and nothing else."""
    results: dict[str, list[Figures]] = {name: [] for name in IMPORTED}
    for _ in range(1 + (IMPORTS if extent.rounds > 1 else 3)):
        for name, statement in IMPORTED.items():
            results[name].append(_timed([sys.executable, "-c", statement]))
    return {name: runs[1:] for name, runs in results.items()}  # the first may have read the files from disk


def prepare(extent: Extent) -> dict[str, list[Figures]]:
    """`prepare` of shards without an index, with two workers each."""
    folder = data.make("text", extent.folder, extent.scale)
    kind = ["--non-interactive", "--split-ratio", "1,0,0", "--num-workers", str(WORKERS)]
    kind += ["--sample-type", "TextSample", "--field-map", '{"text": "txt"}']
    commands: dict[str, list[str]] = {OURS: [sys.executable, "-m", "bridge_data.tools.cli", "prepare"]}
    ours = Path(sys.executable).parent / "bridge-data"
    if ours.exists():
        commands[OURS] = [str(ours), "prepare"]
    energon = python_of(ENERGON).parent / "energon"
    if ENERGON in extent.peers and energon.exists():
        commands[ENERGON] = [str(energon), "prepare"]
    results: dict[str, list[Figures]] = {name: [] for name in commands}
    for _ in range(extent.rounds):
        for name, command in commands.items():
            with tempfile.TemporaryDirectory(dir=extent.folder) as copy:
                for shard in (folder / "tars").glob("*.tar"):
                    os.link(shard, Path(copy) / shard.name)
                results[name].append(_timed([*command, copy, *kind]))
    return results


def _timed(command: Sequence[str]) -> Figures:
    begin = time.monotonic()
    status, _, errors = limited(command, LIMIT_S)
    wall = time.monotonic() - begin
    if status != 0:
        return {"failed": (errors.strip().splitlines() or [f"exit status {status}"])[-1][:200]}
    return {"wall_s": wall}
