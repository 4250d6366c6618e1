"""The loader: the batches of a rank in the order of the job, and the state to save after any of them.

Enters: a `LaneDataset` and a `LoaderConfig`. Leaves: batches, `LoaderState`, checkpoints, ledger files, metrics.

    factory           `get_savable_loader`, `get_loader`
    loader            `SavableDataLoader`: iterators, saving, restoring, closing
    position          whose turn it is in the job's sequence of micro-batches, and the state to save
    lane_source       who runs the lanes: workers when they are ready, this process until then, or without workers
    lane_runner       running lanes; in this process, and in each worker
    workers           worker processes, their replacement, and batches in shared memory
    ray_workers       the same on the nodes of a Ray cluster
    ray_batches       how batches get from there to the trainer
    pinning           batches of workers copied to page-locked memory, in a thread
    even_ends         ranks of finite data take equally many batches
    rank_states       states of all ranks gathered to save, distributed to restore
    gathering_loader  for training code that saves and restores each rank by itself
    checkpoint        the state in a folder, or in a checkpoint of Lightning or Megatron
    ledger_files      which samples each micro-batch had, for audits
    metrics           what was handed out, and how long the trainer waited

To change: a default or a check of an option, `run_options.LoaderConfig`; what happens for each batch, in which order,
`SavableDataLoader._fetch` and `_hand_out`; at the end of a pass, `loader.Iteration`; the hooks of the task encoder,
`lanes.work`. The state is `order.state.LoaderState`, which `Position.advance` makes after each batch. The file of a
checkpoint is `encoded` and `decoded` of `checkpoint.checkpoint_folder`, its name `rank_file` and `_NAME` there; the
state inside one of Lightning, `state_dict` of `datamodule.module`, inside one of Megatron, `sharded_state` of
`checkpoint.other_formats`, which reads both; a ledger file, `record` and `records` of `ledger_files`, with `encoded`
and `decoded` for micro-batches. An error is worded where it is raised; those that users may want to catch are, or
derive from, classes in `errors`.
"""

from bridge_data.loader.factory import get_loader, get_savable_loader
from bridge_data.loader.loader import SavableDataLoader
from bridge_data.run_options import LoaderConfig

__all__ = ["LoaderConfig", "SavableDataLoader", "get_loader", "get_savable_loader"]
