"""One of four ranks of a job whose position Bridge saves and loads, for `test_saving.py`: what it draws under several
ways of parallelism, as JSON. Run it under torchrun.

    saving_job DATA FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.bridge.imports import change_imports

change_imports()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.bridge.data.base import DatasetBuildContext  # noqa: E402
from megatron.bridge.training.checkpointing import (  # noqa: E402
    get_checkpoint_name,
    maybe_load_dataloader_state,
    maybe_save_dataloader_state,
)
from megatron.core import parallel_state, rerun_state_machine  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.rerun_state_machine import RerunDataIterator  # noqa: E402
from megatron.training import checkpointing as megatron  # noqa: E402

from bridge_data import DefaultTaskEncoder, EnergonDatasetBuilder, EnergonDatasetConfig  # noqa: E402
from bridge_data.loader.checkpoint import load_states, save_states  # noqa: E402
from tests.datamodule.parts import draw  # noqa: E402

WAYS = {
    "tensor": {"tensor_model_parallel_size": 2},
    "context": {"context_parallel_size": 2},
    "pipeline": {"pipeline_model_parallel_size": 2},
    "data": {},
}


def build(data: str, groups: Any) -> tuple[Any, Any]:
    """The iterators for training and validation that Bridge's training loop gets."""
    config = EnergonDatasetConfig(
        path=data,
        seq_length=8,
        micro_batch_size=1,
        task_encoder=DefaultTaskEncoder(),
        num_workers=0,
        shuffle_buffer_size=8,
        dataset_kwargs={"num_lanes": 4},
    )
    config.finalize()
    context = DatasetBuildContext(64, 8, 0, pg_collection=groups)
    train, validation, _ = EnergonDatasetBuilder(config).build(context)
    return RerunDataIterator(train), RerunDataIterator(validation)


def load(iterator: Any, folder: Path, iteration: int, groups: Any) -> None:
    maybe_load_dataloader_state(iterator, iteration, str(folder), pg_collection=groups)


def load_by_hand(iterator: Any, folder: Path, groups: Any) -> None:
    """Megatron-LM leaves loading to the caller; its file of a data-parallel rank is somewhere below `folder`."""
    (file,) = folder.rglob(f"train_dataloader_dprank{groups.dp.rank():03d}.pt")
    iterator.iterable.restore_state(torch.load(file, weights_only=True)["dataloader_state_dict"])


def main(data: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rerun_state_machine.initialize_rerun_state_machine()
    seen: dict[str, Any] = {}
    by_bridge, by_megatron = Path(folder, "energon"), Path(folder, "megatron")
    for iteration, (name, sizes) in enumerate(WAYS.items(), start=1):
        parallel_state.initialize_model_parallel(**sizes)
        groups = ProcessGroupCollection.use_mpu_process_groups()
        own: dict[str, Any] = {"rank": groups.dp.rank(), "size": groups.dp.size()}
        train, validation = build(data, groups)
        own["trained"] = draw(train, 3)
        own["evaluated"] = draw(validation, 4)
        maybe_save_dataloader_state([], train, iteration, str(by_bridge), pg_collection=groups)
        megatron.maybe_save_dataloader_state(train, iteration, str(by_megatron))
        dist.barrier()
        own["trained"] += draw(train, 2)
        own["evaluated again"] = draw(validation, 4)
        again, _ = build(data, groups)
        load(again, by_bridge, iteration, groups)
        own["resumed from energon"] = draw(again, 2)
        again, _ = build(data, groups)
        load_by_hand(again, by_megatron / f"iter_{iteration:07d}", groups)
        own["resumed from megatron"] = draw(again, 2)
        seen[name] = own
        if name == "data":
            again, _ = build(data, groups)
            try:
                load(again, by_bridge, 1, groups)
            except RuntimeError as error:
                own["refused"] = str(error)
                again.iterable.restore_state(None)  # what these ranks could do instead
            own["resumed on more"] = draw(again, 2)
            wider = Path(folder, "wider")
            if dist.get_rank() == 0:
                states = load_states(Path(get_checkpoint_name(str(by_bridge), 1)))
                save_states(Path(get_checkpoint_name(str(wider), 1)), states, step=1, world_size=4)
            dist.barrier()
            load(again, wider, 1, groups)
            own["resumed wider"] = draw(again, 2)
        parallel_state.destroy_model_parallel()
    Path(folder, f"rank{dist.get_rank()}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
