"""Which `LanePool` a loader has.

Reads its data set and its options. Returns the pool: this process if there are no workers, worker processes, or Ray
actors, by a plug-in, if `workers=RayWorkers(...)`; with a thread around it that pins batches, if they come from
workers."""

from collections.abc import Callable

from bridge_data.extensions import Feature
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.lane_pool import InProcessPool, LanePool, Pin
from bridge_data.run_options import LoaderConfig, RayWorkers

_RAY = Feature[Callable[[LaneDataset, LoaderConfig], LanePool | None]]("ray")
"""The workers on a cluster; None if they are to run on this machine."""


def open_pool(dataset: LaneDataset, config: LoaderConfig, pin: Pin | None = None) -> LanePool:
    """What runs the lanes of a loader with these options; with `pin`, batches come pinned.

    Raises:
        ConfigError: if an option needs a plug-in that is not installed.
        WorkerError: if workers cannot be started as asked.
    """
    pool: LanePool | None = None
    if isinstance(config.workers, RayWorkers):
        pool = _RAY.get(needed_by="workers=RayWorkers(...)")(dataset, config)
    ranks = dataset.worker_config
    if pool is None:
        if not ranks.num_workers:
            return InProcessPool(dataset, pin)
        # Imported here: without workers neither is needed.
        from bridge_data.loader.workers.worker_pool import WorkerPool

        pool = WorkerPool(dataset, min(ranks.num_workers, len(ranks.lanes)), config)
    if pin is None:
        return pool
    from bridge_data.loader.pinning import PinningPool

    return PinningPool(pool, pin)
