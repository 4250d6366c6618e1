"""`get_loader` and `get_savable_loader`: the loader of a dataset, with the parameters of Energon's functions."""

from collections.abc import Callable
from typing import Unpack

from bridge_data.errors import ConfigError
from bridge_data.extensions import Feature
from bridge_data.ignored import OF_LOADERS
from bridge_data.keywords import LoaderKeywords
from bridge_data.lanes.datasets import samples_of
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader.loader import SavableDataLoader
from bridge_data.options import takes_options
from bridge_data.order.extras import extras_of
from bridge_data.plan import Plan
from bridge_data.replacement import replacement
from bridge_data.run_options import LoaderConfig, Memo
from bridge_data.topology import WorkerConfig

_MEMO = Feature[Callable[[LaneDataset, Memo], LaneDataset]]("memo")
"""The data set whose lanes look for encoded samples there first."""


_GATHERING = Feature[Callable[[LaneDataset, LoaderConfig], SavableDataLoader]]("gathering")
"""A loader whose data-parallel ranks save together."""


@takes_options(LoaderConfig)
def get_loader(
    dataset: LaneDataset | Plan, *, worker_config: WorkerConfig | None = None, **options: Unpack[LoaderKeywords]
) -> SavableDataLoader:
    """A loader for `dataset`; `LoaderConfig` explains the options.

    `worker_config` is that of the dataset and may be left out. A plan, as a factory's `build()` returns it, is read
    sample by sample: in the order of the data, or endlessly shuffled if it is for training; by the `worker_config` of
    the factory, or else the one given here, or else in this process.

    >>> from bridge_data import InMemoryDataset, TextSample
    >>> texts = InMemoryDataset([TextSample(__key__=text, text=text) for text in ("a", "b")], training=False)
    >>> [sample.text for sample in get_loader(texts.build())]
    ['a', 'b']

    Raises:
        ConfigError: if a setting is out of range, or `worker_config` is not the dataset's.
        WorkerError: if the dataset cannot be sent to workers, or they cannot be started in this way.
    """
    return open_loader(dataset, LoaderConfig(**options), worker_config)


@takes_options(LoaderConfig, OF_LOADERS)
def get_savable_loader(
    dataset: LaneDataset | Plan,
    *,
    worker_config: WorkerConfig | None = None,
    gathers_states: bool | None = None,
    **options: Unpack[LoaderKeywords],
) -> SavableDataLoader:
    """The loader of `get_loader`: every loader can be saved.

    With `gathers_states`, all data-parallel ranks save together, so that the file of
    rank 0 holds the whole position, and restores on any number of ranks. None: if `replace_energon` was called.

    >>> from bridge_data import InMemoryDataset, TextSample
    >>> texts = InMemoryDataset([TextSample(__key__=text, text=text) for text in ("a", "b", "c")], training=False)
    >>> loader = get_savable_loader(texts.build())
    >>> next(iter(loader)).text
    'a'
    >>> state = loader.save_state_rank()
    >>> resumed = get_savable_loader(texts.build())
    >>> resumed.restore_state_rank(state)
    >>> [sample.text for sample in resumed]
    ['b', 'c']

    Raises:
        ConfigError: if a setting is out of range, or `worker_config` is not the dataset's.
        WorkerError: if the dataset cannot be sent to workers, or they cannot be started in this way.
    """
    gathers_states = replacement().gathers_states if gathers_states is None else gathers_states
    return open_loader(dataset, LoaderConfig(**options), worker_config, gathers_states=gathers_states)


def open_loader(
    dataset: LaneDataset | Plan,
    config: LoaderConfig,
    worker_config: WorkerConfig | None = None,
    *,
    gathers_states: bool = False,
) -> SavableDataLoader:
    """`get_savable_loader` with its options in one."""
    if isinstance(dataset, Plan):
        dataset = samples_of(dataset, worker_config)
    if not hasattr(dataset, "worker_config"):
        made = "get_loader(get_train_dataset(path, ...))"
        raise ConfigError(f"get_loader({dataset!r}): expected a data set; for a path, write {made}")
    _check_same(worker_config, dataset.worker_config)
    if config.cache_pool is not None:
        dataset = dataset.changed(cache_pool=config.cache_pool)
    dataset = with_extras(dataset, config)
    if isinstance(config.memo, Memo):
        dataset = _MEMO.get(needed_by="memo=...")(dataset, config.memo)
    if gathers_states:
        return _GATHERING.get(needed_by="gathers_states=True")(dataset, config)
    return SavableDataLoader(dataset, config)


def with_extras(dataset: LaneDataset, config: LoaderConfig) -> LaneDataset:
    """`dataset` with the extras that the options ask for."""
    asked = {name: f"{option}=..." for name, option in config.options_of_extras.items()}
    if not asked:
        return dataset
    extras = extras_of(asked, dataset.plan.sources, dataset.source_ids, dataset.extras)
    return dataset if len(extras) == len(dataset.extras) else dataset.changed(extras=extras)


def _check_same(given: WorkerConfig | None, expected: WorkerConfig) -> None:
    if given is None:
        return
    if not isinstance(given, WorkerConfig):
        raise ConfigError(f"worker_config={given!r}: expected a WorkerConfig; or leave it out: the dataset's is used")
    names = ["rank", "world_size", "num_workers"]
    if given.num_lanes_given or expected.num_lanes_given:  # by default they are as many as suit the data
        names.append("num_lanes")
    for name in names:
        if getattr(given, name) != getattr(expected, name):
            raise ConfigError(
                f"worker_config: {name}={getattr(given, name)}, but the dataset was made with "
                f"{name}={getattr(expected, name)}. Leave worker_config out: the dataset's is used."
            )
