"""The loader: the batches of a rank in the order of the job, and the state to save after any of them.

Reads a `LaneDataset` and a `LoaderConfig`. Returns batches, `LoaderState`, checkpoints, metrics.

    factory           `get_savable_loader`, `get_loader`
    loader            `SavableDataLoader`: iterators, saving, restoring, closing; the `Position` of a rank in the job
    lane_pool         whose turn it is, and who runs the lanes: the protocol `LanePool`, and this process as one
    workers           `LanePool` of worker processes, their replacement, and batches in shared memory
    pinning           `LanePool` around one, whose batches a thread copies to page-locked memory
    even_ends         ranks of finite data take equally many batches
    rank_states       the states of all ranks on one; what ranks exchange
    checkpoint        the state in a folder, or in a checkpoint of Lightning or Megatron
    metrics           what was handed out, and how long the trainer waited

A batch goes from a `Lane` through `LanePool.take` to `SavableDataLoader._fetch`, and to the trainer by `_hand_out`,
which moves the position; `Iteration` is one pass.

Names are imported on first use: workers need neither the options of a run nor what hands out batches.
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.loader.factory import get_loader as get_loader
    from bridge_data.loader.factory import get_savable_loader as get_savable_loader
    from bridge_data.loader.loader import SavableDataLoader as SavableDataLoader
    from bridge_data.run_options import LoaderConfig as LoaderConfig

_find, __all__ = names_of(__name__)
if not TYPE_CHECKING:
    __getattr__ = _find
