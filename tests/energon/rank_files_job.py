"""Training code as Megatron's around Energon, for `test_rank_files.py`: each data-parallel rank saves a file of its
own, and looks for the file of its number; whatever goes wrong with it is printed, and the rank goes on.

    rank_files_job DATA FOLDER RUN...     a RUN is NAME:RANKS:STEPS:LOAD:SAVE, LOAD and SAVE are folders or empty

Each rank writes the texts that it was given, or the error that ended it, to `FOLDER/NAME-RANK.json`.
"""

import json
import sys
from pathlib import Path

from bridge_data.energon import replace_energon

replace_energon()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.energon import (  # type: ignore[import-not-found]  # noqa: E402
    DefaultTaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)

from tests.ranks import fork_ranks  # noqa: E402

NUM_LANES = 12
FILE = "train_dataloader_dprank{:03d}.pt"


def train(data: str, folder: Path, name: str, num_steps: int, load: str, save: str) -> None:
    dist.init_process_group("gloo")
    group = dist.group.WORLD
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    worker_config = WorkerConfig(
        rank=rank, world_size=world_size, num_workers=0, data_parallel_group=group, num_lanes=NUM_LANES
    )
    dataset = get_train_dataset(
        data,
        batch_size=2,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=worker_config,
        task_encoder=DefaultTaskEncoder(),
    )
    loader = get_savable_loader(dataset, worker_config=worker_config)
    if load and (file := folder / load / FILE.format(rank)).exists():
        try:
            loader.restore_state_rank(torch.load(file)["dataloader_state_dict"])
        except Exception as error:
            print(f"not restored, skipping: {error}")
    texts: list[list[str]] = []
    failure = ""
    try:
        iterator = iter(loader)
        texts += (next(iterator).text for _ in range(num_steps))
        if save:
            (folder / save).mkdir(exist_ok=True)
            torch.save({"dataloader_state_dict": loader.save_state_rank()}, folder / save / FILE.format(rank))
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    (folder / f"{name}-{rank}.json").write_text(json.dumps({"texts": texts, "failure": failure}))
    dist.destroy_process_group()


def main() -> int:
    data, folder, *runs = sys.argv[1:]
    for run in runs:
        name, num_ranks, num_steps, load, save = run.split(":")
        settings = (data, Path(folder), name, int(num_steps), load, save)
        if status := fork_ranks(int(num_ranks), lambda settings=settings: train(*settings)):  # type: ignore[misc]
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
