"""One of four ranks of a Bridge job, for `test_bridge.py`: what it draws, saves and restores under several ways of
parallelism, as JSON. Run it under torchrun.

    bridge_job DATA FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, rerun_state_machine
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.rerun_state_machine import RerunDataIterator

from bridge_data import DefaultTaskEncoder, EnergonDatasetBuilder, EnergonDatasetConfig
from bridge_data.loader.checkpoint import load_states, save_states
from tests.datamodule import bridge
from tests.datamodule.parts import draw

WAYS = {
    "tensor": {"tensor_model_parallel_size": 2},
    "context": {"context_parallel_size": 2},
    "pipeline": {"pipeline_model_parallel_size": 2},
    "data": {},
}


def build(data: str, groups: Any) -> tuple[Any, Any]:
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
    train, validation, _ = EnergonDatasetBuilder(config).build(bridge.Context(64, 8, 0, None, groups))
    return RerunDataIterator(train), RerunDataIterator(validation)


def main(data: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rerun_state_machine.initialize_rerun_state_machine()
    seen: dict[str, Any] = {}
    saved = Path(folder, "energon")
    for iteration, (name, sizes) in enumerate(WAYS.items(), start=1):
        parallel_state.initialize_model_parallel(**sizes)
        groups = ProcessGroupCollection.use_mpu_process_groups()
        own: dict[str, Any] = {"rank": groups.dp.rank(), "size": groups.dp.size()}
        train, validation = build(data, groups)
        own["trained"] = draw(train, 3)
        own["evaluated"] = draw(validation, 4)
        own["saves"] = [
            bridge.save_dataloader(train, saved / release, iteration, groups, release) for release in ("0.3", "0.6")
        ]
        dist.barrier()
        own["trained"] += draw(train, 2)
        own["evaluated again"] = draw(validation, 4)
        for release in ("0.3", "0.6"):
            again, _ = build(data, groups)
            bridge.load_dataloader(again, saved / release, iteration, groups)
            own[f"resumed {release}"] = draw(again, 2)
        seen[name] = own
        if name == "data":
            again, _ = build(data, groups)
            try:
                bridge.load_dataloader(again, saved / "0.6", 1, groups)
            except RuntimeError as error:
                own["refused"] = str(error)
                again.iterable.restore_state(None)  # what these ranks could do instead
            own["resumed on more"] = draw(again, 2)
            if dist.get_rank() == 0:
                save_states(
                    saved / "wider" / "iter_0000001", load_states(saved / "0.6" / "iter_0000001"), step=1, world_size=4
                )
            dist.barrier()
            bridge.load_dataloader(again, saved / "wider", 1, groups)
            own["resumed wider"] = draw(again, 2)
        parallel_state.destroy_model_parallel()
    Path(folder, f"rank{dist.get_rank()}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
