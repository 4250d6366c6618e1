"""One of two ranks of a Megatron job, for `test_jobs.py`: what it draws, saves and restores.

megatron_job FOLDER DATA
"""

import sys
from types import SimpleNamespace
from typing import Any

from megatron.core import parallel_state, rerun_state_machine
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.rerun_state_machine import RerunDataIterator

from tests.datamodule.jobs import as_rank
from tests.datamodule.parts import draw, make_module


def rank_and_size(module: Any) -> tuple[int, int]:
    config = module.train_dataloader().dataloader.dataset.worker_config
    return config.rank, config.world_size


def run(data: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    options = {"num_lanes": 2, "global_batch_size": 2}

    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    groups = ProcessGroupCollection.use_mpu_process_groups()
    seen["tensor parallel, collection"] = rank_and_size(make_module(data, pg_collection=groups, **options))
    module = make_module(data, pg_collection=SimpleNamespace(tp=groups.tp), **options)
    seen["tensor parallel, state"] = rank_and_size(module)
    seen["tensor parallel"] = draw(module.train_dataloader(), 4)
    parallel_state.destroy_model_parallel()

    seen["default"] = rank_and_size(make_module(data, **options))
    parallel_state.initialize_model_parallel()
    groups = ProcessGroupCollection.use_mpu_process_groups()
    seen["data parallel"] = rank_and_size(make_module(data, pg_collection=groups, **options))

    rerun_state_machine.initialize_rerun_state_machine()
    train, val = make_module(data, pg_collection=groups, eval_batches=3, **options).build()
    iterator = RerunDataIterator(train)
    seen["trained"] = draw(iterator, 5)
    seen["evaluated"] = draw(val, 6)
    state = iterator.iterable.save_state()
    seen["lanes"] = list(state["lanes"])
    seen["trained"] += draw(iterator, 3)
    iterator.rewind()

    beside = SimpleNamespace(tp=groups.tp, pp=groups.pp)  # the data-parallel group is that of Megatron
    shared = make_module(data, pg_collection=beside, share="broadcast", **options).train_dataloader()
    seen["shared"] = draw(shared, 3)
    shared.close()

    resumed = make_module(data, pg_collection=groups, **options)
    resumed.train_dataloader().restore_state(state)
    seen["resumed"] = draw(resumed.train_dataloader(), 3)
    seen["init_global_step"] = resumed.init_global_step
    return seen


if __name__ == "__main__":
    as_rank(sys.argv[1], lambda: run(sys.argv[2]))
