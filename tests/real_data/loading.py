"""From tars to batches, as a user goes: the command line prepares, a loader with two workers reads."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import webdataset as wds

from bridge_data import LaneDataset, SavableDataLoader, WorkerConfig, get_savable_loader

WORKERS = WorkerConfig(rank=0, world_size=1, num_workers=2)


def write_shards(folder: Path, samples: Iterable[dict[str, Any]], per_shard: int) -> Path:
    """`samples` in tars of `per_shard` each, with times and modes that are the same anywhere."""
    folder.mkdir(parents=True)
    with wds.ShardWriter(str(folder / "data-%04d.tar"), maxcount=per_shard, mtime=0, verbose=0) as shards:
        for sample in samples:
            shards.write(sample)
    return folder


def bridge_data(*arguments: object) -> str:
    """Run `bridge-data` with these arguments in a process of its own; what it printed."""
    command = [str(Path(sys.executable).with_name("bridge-data")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def open_loader(dataset: LaneDataset, **settings: Any) -> SavableDataLoader:
    """A loader whose batches come from its workers, from the first one on."""
    loader = get_savable_loader(dataset, **settings)
    assert loader.wait_for_workers()
    return loader


def read_all(dataset: LaneDataset, **settings: Any) -> list[Any]:
    """All batches of finite data, of which no sample may be left out."""
    with open_loader(dataset, **settings) as loader:
        batches = list(loader)
        assert loader.skipped == {}
        return batches


def read_interrupted(make_dataset: Callable[[], LaneDataset], after: int) -> list[Any]:
    """All batches of finite data, read in two runs: the second one goes on from what the first saved `after` batches,
    which went through JSON."""
    with open_loader(make_dataset()) as loader:
        batches = list(itertools.islice(loader, after))
        state = json.dumps(loader.save_state_rank())
    with open_loader(make_dataset()) as loader:
        loader.restore_state_rank(json.loads(state))
        return [*batches, *loader]
