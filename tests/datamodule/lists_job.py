"""Ranks that find other versions of a list of forgotten samples, for `test_shared_states.py`: what each sees, as JSON.

lists_job FOLDER
"""

import os
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from bridge_data import StateError
from bridge_data.data.metadata import META_FOLDER
from bridge_data.data.withheld import FORGOTTEN_JSONL
from bridge_data.loader.checkpoint.lightning_file import LIGHTNING_KEY
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from tests.datamodule.jobs import as_rank
from tests.datamodule.parts import draw, make_module

NUM_LANES, DRAWN = 8, 5
FORGOTTEN, MEANWHILE = range(12), range(30, 60)


def keys(numbers: range) -> list[str]:
    return [f"{number:06d}" for number in numbers]


class Ranks:
    """One rank, with a view of the data of its own: the same shards, and a list that may lag behind."""

    def __init__(self, folder: Path) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.data, self.own = folder / "data", folder / f"data{self.rank}"
        shutil.copytree(self.data, self.own)
        dist.barrier()  # forget writes into what the others still copy

    def see(self) -> None:
        """Find the list as it is now."""
        file = Path(META_FOLDER) / FORGOTTEN_JSONL
        temporary = self.own / "seen"
        shutil.copy(self.data / file, temporary)
        os.replace(temporary, self.own / file)

    def forget(self, numbers: range) -> None:
        if self.rank == 0:
            forget_samples(self.data, keys(numbers), "asked for")
        dist.barrier()

    def module(self, **options: Any) -> Any:
        chosen = {"num_lanes": NUM_LANES, "num_workers": 1, "global_batch_size": 8, **options}
        return make_module(self.own, micro_batch_size=1, **chosen)

    def refusal(self, what: Any) -> str:
        try:
            what()
        except StateError as error:
            return str(error)
        return ""


def versions(state: dict[str, Any]) -> list[int]:
    return [number for _, lists in state["extras"]["withheld"]["data"] for [[number, _]] in lists.values()]


def run(ranks: Ranks) -> dict[str, Any]:
    seen: dict[str, Any] = {"forgotten meanwhile": list(MEANWHILE)}
    ranks.forget(FORGOTTEN)
    ranks.see()
    loader = ranks.module().train_dataloader()
    (seen["begun under"],) = versions(loader.save_state())
    assert loader.wait_for_workers()
    seen["first"] = draw(loader, 1)
    ranks.forget(MEANWHILE)
    ranks.see()
    for process in loader.dataloader._pool.processes():
        os.kill(process, signal.SIGKILL)  # what comes in their place goes by what the run has found
    seen["before"] = draw(loader, DRAWN)
    seen["restarts"] = loader.metrics().worker_restarts
    state = loader.save_state()
    (seen["saved under"],) = versions(state)

    resumed = ranks.module().train_dataloader()
    resumed.restore_state(state)
    seen["after"] = draw(resumed, DRAWN)
    seen["restarted under"] = versions(resumed.save_state())

    if ranks.rank < ranks.world - 1:  # these see the first version again
        file = ranks.own / META_FOLDER / FORGOTTEN_JSONL
        file.write_text(file.read_text().splitlines(keepends=True)[0])
    seen["fresh"] = ranks.refusal(lambda: ranks.module().train_dataloader())
    seen["validation"] = ranks.refusal(lambda: ranks.module().val_dataloader())

    def resume() -> None:
        module = ranks.module()
        module.load_state_dict({LIGHTNING_KEY: state})
        module.train_dataloader()

    seen["resumed"] = ranks.refusal(resume)
    pairs = [dist.new_group([first, first + 1]) for first in range(0, ranks.world, 2)]
    pair = SimpleNamespace(dp=pairs[ranks.rank // 2])
    seen["of two"] = ranks.refusal(lambda: ranks.module(pg_collection=pair).train_dataloader())
    alone = [dist.new_group([rank]) for rank in range(ranks.world)]
    groups = SimpleNamespace(dp=alone[ranks.rank], tp=pairs[ranks.rank // 2])
    seen["beside"] = ranks.refusal(lambda: ranks.module(pg_collection=groups).train_dataloader())
    return seen


if __name__ == "__main__":
    as_rank(sys.argv[1], lambda: run(Ranks(Path(sys.argv[1]))))
