"""Four ranks that save, and are restored from what they saved, for `test_shared_states.py`: what each sees, as JSON.

state_job FOLDER DATA
"""

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from bridge_data import StateError
from bridge_data.loader.checkpoint import rank_file
from bridge_data.order.state import LoaderState
from tests.datamodule.jobs import as_rank
from tests.datamodule.parts import draw, make_module, take

NUM_LANES, DRAWN, MORE = 12, 3, 4


class Job:
    """One rank: its loaders, which belong to a data-parallel group, and the files of all."""

    def __init__(self, data: str, folder: str) -> None:
        self.data, self.folder, self.rank = data, Path(folder), dist.get_rank()
        self.num_exchanged = 0

    def loader(self, group: Any, num_lanes: int = NUM_LANES, **options: Any) -> Any:
        chosen = {"num_lanes": num_lanes, "global_batch_size": 12, **options}
        return make_module(self.data, pg_collection=SimpleNamespace(dp=group), **chosen).train_dataloader()

    def save(self, name: str, state: dict[str, Any], rank: int) -> None:
        (self.folder / name).mkdir(exist_ok=True)
        torch.save(state, rank_file(self.folder / name, rank))
        dist.barrier()

    def load(self, name: str, rank: int) -> dict[str, Any] | None:
        file = rank_file(self.folder / name, rank)
        return torch.load(file, weights_only=True) if file.exists() else None

    def resumed(self, name: str, group: Any, **options: Any) -> list[list[int]]:
        """What a new job of the ranks of `group` draws after each was given the file of its rank, if there is one."""
        loader = self.loader(group, **options)
        loader.restore_state(self.load(name, group.rank()))
        return draw(loader, MORE)

    def refusal(self, state: dict[str, Any] | None, group: Any) -> str:
        try:
            self.loader(group).restore_state(state)
        except StateError as error:
            return str(error)
        return ""

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count how often states are handed on."""
        originals = {name: getattr(dist, name) for name in ("broadcast_object_list", "scatter_object_list")}

        def counted(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                self.num_exchanged += 1
                return original(*args, **kwargs)

            return call

        for name, original in originals.items():
            setattr(dist, name, counted(original))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(dist, name, original)


def of_other_step(saved: dict[str, Any] | None) -> dict[str, Any]:
    state = LoaderState.from_dict(saved)
    return dataclasses.replace(state, micro_batch_index=state.micro_batch_index - 4).to_dict()


def run(job: Job) -> dict[str, Any]:
    rank, world = job.rank, dist.group.WORLD
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    three, one = dist.new_group([0, 1, 2]), dist.new_group([3])
    pair, place = pairs[rank // 2], rank % 2
    seen: dict[str, Any] = {}

    loader = job.loader(world)
    draw(loader, DRAWN)
    state = loader.save_state()
    job.save("four", state, rank)
    seen["lanes"] = [int(lane) for lane in state["lanes"]]
    seen["after"] = draw(loader, MORE)
    later = loader.save_state()
    if rank == 2:
        draw(loader, 1)
    try:
        loader.save_state()
    except StateError as error:
        seen["save refused"] = str(error)

    with job.counting():
        seen["same"] = job.resumed("four", world)
    seen["exchanged"] = job.num_exchanged
    seen["two"] = job.resumed("four", pair)
    seen["three" if rank < 3 else "one"] = job.resumed("four", three if rank < 3 else one)
    dist.barrier()
    seen["resharded"] = job.resumed("four", world, num_lanes=8)

    of_pair = job.loader(pair)  # two replicas, whose ranks have the same files
    draw(of_pair, 2 * DRAWN)
    state = of_pair.save_state()
    if rank < 2:
        job.save("two", state, place)
    else:
        dist.barrier()
    seen["more than files"] = job.resumed("two", world)

    seen["alone"] = job.refusal(job.load("four", 1), one) if rank == 3 else ""
    dist.barrier()
    own = job.load("four", rank)
    seen["garbage"] = job.refusal({"energon": 1} if rank == 1 else own, world)
    damaged = {name: value for name, value in (own or {}).items() if name != "lanes"}
    seen["damaged"] = job.refusal(damaged if rank == 2 else own, world)
    seen["none"] = job.refusal(None, world)
    seen["edited"] = job.refusal(own if rank else of_other_step(own), world)
    seen["steps"] = job.refusal(later if rank == 3 else own, world)
    seen["lacking"] = job.refusal(job.load("four", 1 + rank % 3), world)

    finite = {"repeat": False, "micro_batch_size": 3}
    passes: dict[str, Any] = {}
    for count in (7, 8, 9):  # 12 lanes have 8 samples each, which are three micro-batches
        loader = job.loader(world, **finite)
        batches = iter(loader.dataloader)
        before = take(batches, count)
        state = loader.save_state()
        job.save(f"finite{count}", state, rank)
        again = job.loader(world, **finite)
        again.restore_state(state)
        passes[str(count)] = [before, take(again.dataloader, 10), state["micro_batch_index"]]
    seen["finite"] = passes
    return seen


if __name__ == "__main__":
    as_rank(sys.argv[1], lambda: run(Job(sys.argv[2], sys.argv[1])))
