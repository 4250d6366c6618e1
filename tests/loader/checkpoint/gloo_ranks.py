"""`python -m tests.loader.checkpoint.gloo_ranks FOLDER`: save with 4 data-parallel ranks, load with 2, 1 and 3, by
state files and by `megatron.core.dist_checkpointing`.

A program of its own: its ranks are forked from one process that has imported Megatron (eight imports would take most of
the time), and dist_checkpointing starts processes that import the main module, which therefore imports nothing heavy.
"""

import contextlib
import itertools
import json
import multiprocessing
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NUM_LANES, STEPS, MORE = 8, 3, 4
STEPS_OF_SOME = 22
"""More steps than some of 4 ranks have in the pass over the data."""


def make_loader(folder: Path, rank: int, world_size: int, num_lanes: int = NUM_LANES) -> Any:
    """The loader of a rank, with packing, so that samples are pending; `num_lanes` 0 asks for no number."""
    from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset
    from tests.properties.jobs import Encoder

    dataset = get_train_dataset(
        folder / "texts",
        worker_config=WorkerConfig(rank, world_size, 0, num_lanes=num_lanes),
        batch_size=2,
        packing_buffer_size=12,
        shuffle_buffer_size=20,
        max_samples_per_sequence=10,
        task_encoder=Encoder(skip_every=7),
    )
    return get_savable_loader(dataset)


def make_finite_loader(folder: Path, rank: int, world_size: int) -> Any:
    """The loader of a rank over 600 samples, of which `STEPS_OF_SOME` steps leave one to some ranks, to others none."""
    from bridge_data import WorkerConfig, get_savable_loader, get_val_dataset

    config = WorkerConfig(rank, world_size, 0, num_lanes=NUM_LANES)
    return get_savable_loader(get_val_dataset(folder / "texts", worker_config=config, batch_size=7, split_part="train"))


def draw(loader: Any, count: int) -> list[list[str]]:
    """The next micro-batches: the keys of the samples in each."""
    batches = iter(loader)
    return [[str(key) for pack in next(batches) for key in pack] for _ in range(count)]


@contextlib.contextmanager
def joined(folder: Path, rank: int, world_size: int) -> Iterator[None]:
    """Be a rank of a gloo group."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size)
    try:
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()


def save(folder: Path, rank: int, world_size: int) -> dict[str, Any]:
    """Save in both forms, and go on; a save in which one rank is at another step fails on all."""
    import torch.distributed as dist
    from megatron.core import dist_checkpointing

    from bridge_data import StateError
    from bridge_data.datamodule.sharded_state import sharded_state
    from bridge_data.loader.checkpoint import save_rank_state

    loader = make_loader(folder, rank, world_size)
    before = draw(loader, STEPS)
    state = loader.save_state_rank()
    save_rank_state(folder / "files", state, step=STEPS)
    (folder / "sharded").mkdir(exist_ok=True)
    dist.barrier()
    dist_checkpointing.save({"weights": {}, **sharded_state(state)}, str(folder / "sharded"))
    after = draw(loader, MORE)
    try:
        save_rank_state(folder / "failed", state if rank == 2 else loader.save_state_rank(), step=STEPS)
        refusal = ""
    except StateError as error:
        refusal = str(error)
    ending = make_finite_loader(folder, rank, world_size)
    list(itertools.islice(ending, STEPS_OF_SOME))
    of_rank = ending.save_state_rank()
    save_rank_state(folder / "ending", of_rank, step=STEPS_OF_SOME)
    return {"before": before, "after": after, "refusal": refusal, "ending": of_rank}


def save_replicas(folder: Path, rank: int, world_size: int) -> None:
    """Save as tensor-parallel ranks that share a data-parallel rank and so have the same state, which is whole."""
    import torch.distributed as dist
    from megatron.core import dist_checkpointing

    from bridge_data.datamodule.sharded_state import sharded_state
    from bridge_data.loader.checkpoint import load_states, save_rank_state

    groups = [dist.new_group([tensor_rank]) for tensor_rank in range(world_size)]
    state = load_states(folder / "files")
    (folder / "sharded-by-replicas").mkdir(exist_ok=True)
    dist.barrier()
    dist_checkpointing.save(sharded_state(state, groups[rank]), str(folder / "sharded-by-replicas"))
    if rank == 0:
        save_rank_state(folder / "files-by-replicas", state, step=STEPS, group=groups[rank])


def load(folder: Path, rank: int, world_size: int) -> dict[str, Any]:
    """Load every form, and go on from one of them."""
    from bridge_data.datamodule.sharded_state import load_sharded_state
    from bridge_data.loader.checkpoint import load_states

    states = [load_sharded_state(folder / name) for name in ("sharded", "sharded-by-replicas")]
    states += [load_states(folder / name, step=STEPS) for name in ("files", "files-by-replicas")]
    loader = make_loader(folder, rank, world_size, 0 if NUM_LANES % world_size else NUM_LANES)
    loader.restore_state_rank(states[0])
    after = draw(loader, 4 * MORE // world_size)
    return {"equal": all(state == states[0] for state in states), "after": after}


def refuse(folder: Path, rank: int, world_size: int) -> dict[str, Any]:
    """What is said of folders that hold no sharded state, or a part of one."""
    from bridge_data import StateError
    from bridge_data.datamodule.sharded_state import load_sharded_state

    for name, left_out in (("model-only", "train_dataloader"), ("half", "shard_1_")):
        shutil.copytree(folder / "sharded", folder / name)
        metadata = pickle.loads((folder / name / ".metadata").read_bytes())
        entries = metadata.state_dict_metadata
        metadata.state_dict_metadata = {entry: entries[entry] for entry in entries if left_out not in entry}
        (folder / name / ".metadata").write_bytes(pickle.dumps(metadata))
    messages = {}
    for name in ("texts", "model-only", "half"):
        try:
            load_sharded_state(folder / name)
        except StateError as error:
            messages[name] = str(error)
    return messages


def _run(work: Callable[..., Any], folder: Path, rank: int, world_size: int) -> None:
    with joined(folder, rank, world_size):
        result = work(folder, rank, world_size)
    (folder / f"{work.__name__}-{world_size}-{rank}.json").write_text(json.dumps(result))


def main(folder: Path) -> int:
    import tests.properties.jobs  # noqa: F401  forked ranks have it already, and so Megatron
    from recipes.demo import cpu_shim

    cpu_shim.install()
    import megatron.core.dist_checkpointing  # noqa: F401

    context = multiprocessing.get_context("fork")
    for work, world_size in ((save, 4), (save_replicas, 2), (load, 2), (load, 1), (load, 3), (refuse, 1)):
        (folder / "rendezvous").unlink(missing_ok=True)
        ranks = [context.Process(target=_run, args=(work, folder, rank, world_size)) for rank in range(world_size)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
