"""`get_loader` and `get_savable_loader`: the loader of a dataset, with the parameters of Energon's functions."""

from typing import Unpack

from bridge_data.errors import ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.wrappers import samples_of
from bridge_data.loader.loader import SavableDataLoader
from bridge_data.loader.loader_config import LOADER_DEFAULTS, LoaderConfig, LoaderOptions
from bridge_data.options import takes_options, warn_ignored
from bridge_data.plan import Plan
from bridge_data.replacement import replacement
from bridge_data.task.stores import CachePool
from bridge_data.topology import WorkerConfig


@takes_options(LoaderOptions, LOADER_DEFAULTS)
def get_loader(
    dataset: LaneDataset | Plan,
    *,
    worker_config: WorkerConfig | None = None,
    prefetch_factor: int = 2,
    cache_pool: CachePool | None = None,
    watchdog_timeout_seconds: float | None = 60,
    watchdog_initial_timeout_seconds: float | None = None,
    fail_on_timeout: bool = False,
    pin_memory: bool = False,
    **options: Unpack[LoaderOptions],
) -> SavableDataLoader:
    """A loader for `dataset`; `LoaderConfig` and `LoaderOptions` explain the settings.

    `worker_config` is that of the dataset and may be left out. `cache_pool` is the cache of the cookers; without one
    nothing is prefetched for them. A plan, as a factory's `build()` returns it, is read sample by sample: in the order
    of the data, or endlessly shuffled if it is for training; by the `worker_config` of the factory, or else the one
    given here, or else in this process.

    Raises:
        ConfigError: if a setting is out of range, or `worker_config` is not the dataset's.
        WorkerError: if the dataset cannot be sent to workers, or they cannot be started in this way.
    """
    config = LoaderConfig(
        prefetch_factor=prefetch_factor,
        watchdog_timeout_seconds=watchdog_timeout_seconds,
        watchdog_initial_timeout_seconds=watchdog_initial_timeout_seconds,
        fail_on_timeout=fail_on_timeout,
        pin_memory=pin_memory,
        **options,
    )
    return SavableDataLoader(_dataset(dataset, worker_config, cache_pool), config)


@takes_options(LoaderOptions, LOADER_DEFAULTS)
def get_savable_loader(
    dataset: LaneDataset | Plan,
    *,
    worker_config: WorkerConfig | None = None,
    checkpoint_every_sec: float | None = None,
    checkpoint_every_min_n_samples: int | None = None,
    n_checkpoints: int | None = None,
    gc_collect_every_n_steps: int | None = None,
    prefetch_factor: int = 2,
    cache_pool: CachePool | None = None,
    watchdog_timeout_seconds: float | None = 60,
    watchdog_initial_timeout_seconds: float | None = None,
    fail_on_timeout: bool = False,
    pin_memory: bool = False,
    gathers_states: bool | None = None,
    **options: Unpack[LoaderOptions],
) -> SavableDataLoader:
    """The same as `get_loader`: every loader can be saved.

    Energon's settings of internal checkpoints have no effect: there are none, as saving asks no worker.

    With `gathers_states`, the loader is a `GatheringLoader`: all data-parallel ranks save together, so that the file of
    rank 0 holds the whole position, and restores on any number of ranks. None: if `replace_energon` was called.

    Raises:
        ConfigError: if a setting is out of range, or `worker_config` is not the dataset's.
        WorkerError: if the dataset cannot be sent to workers, or they cannot be started in this way.
    """
    warn_ignored(
        checkpoint_every_sec=checkpoint_every_sec,
        checkpoint_every_min_n_samples=checkpoint_every_min_n_samples,
        n_checkpoints=n_checkpoints,
        gc_collect_every_n_steps=gc_collect_every_n_steps,
    )
    config = LoaderConfig(
        prefetch_factor=prefetch_factor,
        watchdog_timeout_seconds=watchdog_timeout_seconds,
        watchdog_initial_timeout_seconds=watchdog_initial_timeout_seconds,
        fail_on_timeout=fail_on_timeout,
        pin_memory=pin_memory,
        **options,
    )
    dataset = _dataset(dataset, worker_config, cache_pool)
    if replacement().gathers_states if gathers_states is None else gathers_states:
        from bridge_data.loader.gathering_loader import GatheringLoader  # here: it imports torch.distributed

        return GatheringLoader(dataset, config)
    return SavableDataLoader(dataset, config)


def _dataset(
    dataset: LaneDataset | Plan, worker_config: WorkerConfig | None, cache_pool: CachePool | None
) -> LaneDataset:
    """`dataset`, or the samples of a plan, with `cache_pool`."""
    if isinstance(dataset, Plan):
        dataset = samples_of(dataset, worker_config)
    if not hasattr(dataset, "worker_config"):
        made = "get_loader(get_train_dataset(path, ...))"
        raise ConfigError(f"get_loader({dataset!r}): expected a data set; for a path, write {made}")
    _check_same(worker_config, dataset.worker_config)
    if cache_pool is not None:
        if not isinstance(cache_pool, CachePool):
            raise ConfigError(f"cache_pool={cache_pool!r}: expected a CachePool, such as FileStoreCachePool()")
        dataset = dataset.with_cache_pool(cache_pool)
    return dataset


def _check_same(given: WorkerConfig | None, expected: WorkerConfig) -> None:
    if given is None:
        return
    if not isinstance(given, WorkerConfig):
        raise ConfigError(f"worker_config={given!r}: expected a WorkerConfig; or leave it out: the dataset's is used")
    for name in ("rank", "world_size", "num_workers", "num_lanes"):
        if getattr(given, name) != getattr(expected, name):
            raise ConfigError(
                f"worker_config: {name}={getattr(given, name)}, but the dataset was made with "
                f"{name}={getattr(expected, name)}. Leave worker_config out: the dataset's is used."
            )
