"""Running the same program under Megatron-Energon and under bridge_data, with nothing but the import changed.

BRIDGE_DATA_PEER names a Python that has megatron-energon 7.4.1; it runs in processes of its own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

PEER = os.environ.get("BRIDGE_DATA_PEER", "")
ROOT = Path(__file__).parents[2]

MARKS = [
    pytest.mark.peer,
    pytest.mark.skipif(not PEER, reason="BRIDGE_DATA_PEER names no Python with megatron-energon"),
]

_BEGINNING = """
import itertools, json, sys
import torch
from megatron.energon import Cooker, DefaultTaskEncoder, Sample, SampleDecoder, SkipSample, WorkerConfig
from megatron.energon import basic_sample_keys, cooker, edataclass
from megatron.energon import get_loader, get_train_dataset, get_val_dataset, get_val_datasets, stateless
from tests.peer.describe import describe

given = json.loads(sys.argv[1])
trust = json.loads(sys.argv[2])
ours = {"num_lanes": 1} if WorkerConfig.__module__.startswith("bridge_data") else {}  # Energon's one stream
alone = WorkerConfig(rank=0, world_size=1, num_workers=0, **ours)

def val(path, batch_size=None, cache_pool=None, **settings):
    data = get_val_dataset(path, worker_config=alone, batch_size=batch_size, **settings, **trust)
    return [describe(sample) for sample in get_loader(data, cache_pool=cache_pool)]

def epoch(path, batch_size=None, **settings):
    settings = {"shuffle_buffer_size": 10, "max_samples_per_sequence": 5, "repeat": False} | settings
    data = get_train_dataset(path, worker_config=alone, batch_size=batch_size, **settings, **trust)
    return [describe(sample) for sample in get_loader(data)]
"""
_END = """
json.dump(found, sys.stdout)
"""


def energon(*commands: Sequence[object]) -> None:
    """Commands of the tool `energon`, such as `("prepare", path)`, one after the other in one process."""
    code = f"from megatron.energon.cli.main import main\nfor command in {[[*map(str, line)] for line in commands]}:\n"
    code += "    main(command, standalone_mode=False)"
    run_python(PEER, code)


def run_both(program: str, folder: Path, modules: dict[str, str] | None = None, **given: Any) -> tuple[Any, Any]:
    """What `program` leaves in `found` with Energon and with ours, at the same time in two processes.

    It begins with the usual imports and with `val` and `epoch`, which read all there is. `megatron.energon` stands for
    either package, there and in `modules`, which it can import; `folder` is where they are written. `given` holds its
    arguments.
    """

    def run(python: str, package: str) -> Any:
        path = folder / f"modules of {package}"
        path.mkdir(exist_ok=True)
        for name, text in (modules or {}).items():
            (path / f"{name}.py").write_text(text.replace("megatron.energon", package))
        # Code and modules that come with data are run here only if they are trusted.
        trust = {"trust_dataset_code": True, "trusted_modules": [*(modules or {})]} if package == "bridge_data" else {}
        code = _BEGINNING + program + _END
        if package == "bridge_data":  # whose modules with the names of Energon's are in `bridge_data.energon`
            code = code.replace("megatron.energon.", "bridge_data.energon.")
        code = code.replace("megatron.energon", package)
        search = os.pathsep.join([str(ROOT), str(path), os.environ.get("PYTHONPATH", "")])
        return run_python(python, code, json.dumps(given, default=str), json.dumps(trust), PYTHONPATH=search)

    with ThreadPoolExecutor() as pool:
        printed = [*pool.map(run, (PEER, sys.executable), ("megatron.energon", "bridge_data"))]
    theirs, ours = (json.loads(output.splitlines()[-1]) for output in printed)
    return theirs, ours


def run_python(python: str, code: str, *arguments: str, **environment: str) -> str:
    """What a program prints."""
    command = [python, "-c", code, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=240, env=os.environ | environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_order(samples: list[Any]) -> list[Any]:
    """The samples in an order of their own: what is compared is which there are."""
    return sorted(samples, key=json.dumps)
