"""All options of a run, each with its default, its meaning and its check.

Reads keyword arguments of users. Returns one frozen `RunOptions`, which every front (functions, DataModule, Bridge's
config, recipes, commands) passes on whole. Raises `ConfigError` for an unknown name, with the nearest known one, and
for a flag, a number or a choice that has another type or is out of range. Texts, files, classes and functions are
checked where they are used.

A new option is one field here, and its use. `takes_options` shows it in the signatures of public functions, and
`python -m tests.write_keywords` writes it into `bridge_data.keywords`, where type checkers, editors and LightningCLI
find it. (Options of workers are fields of `WorkerConfig`, whose first ones are Energon's.)
"""

import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeAlias, runtime_checkable

from bridge_data.data.plain_data import nearest
from bridge_data.errors import ConfigError
from bridge_data.extensions import Seam
from bridge_data.ignored import without_ignored
from bridge_data.limits import Limits
from bridge_data.options import check_integer, check_number, check_plain_fields
from bridge_data.order.plan_order import ShuffleSettings
from bridge_data.plan.source import EpochsPerShuffle
from bridge_data.storage.locations import OF_THE_MACHINE, output_on_disk
from bridge_data.task.stores import CachePool
from bridge_data.topology import WorkerConfig

StartMethod: TypeAlias = Literal["server", "spawn"]
Ends: TypeAlias = Literal["uneven", "even"]
Share: TypeAlias = Literal["replicate", "broadcast"]
PACKINGS = Seam[Callable[[Any], Any]]("packings")
"""By the values of the option `packing` besides "online": from a `LaneDataset` to the one that is packed so."""
BALANCED_BY = ("tokens", "pixels", "frames")
"""The costs that `balance` has names for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Options of `get_train_dataset`, `get_val_dataset` and `get_val_datasets`.

    Raises:
        ConfigError: if a number is out of range.
    """

    batch_size: int | None = 1
    """Samples (with packing: packs) per micro-batch; None for single samples. The DataModule's `micro_batch_size`."""
    batch_drop_last: bool = False
    """Whether to drop a last batch that is not full, if the data end."""
    packing_buffer_size: int | None = None
    """Samples among which `select_samples_to_pack` chooses; None for no packing."""
    packing: str = "online"
    """"planned", or the name of a plug-in (see `PACKINGS`). "planned": packs are made from the cost index (`bridge-data
    prepare --costs`) before samples are read, whatever `packing_buffer_size`."""
    planning_window: int = 4096
    """Samples of the job that are packed together, if packs are planned."""
    dataset_config: str | None = None
    """The file in the `.nv-meta` of `path` to read instead of `dataset.yaml`."""
    split_config: str | None = None
    """The file in the `.nv-meta` of `path` to read instead of `split.yaml`."""
    trusted_modules: Collection[str] = ()
    """Your modules (and their submodules) from which YAML files may name classes and functions. None by default."""
    trust_dataset_code: bool = False
    """Whether to run Python files next to the data (`sample_loader.py`) that a dataset.yaml names. False by default."""
    fingerprint: str | None = None
    """A name for samples in memory, checked when a state is restored; None: made of their number, first and last."""
    verify_digests: bool = False
    """Whether to check all parts read, except auxiliary data, by digests (`bridge-data prepare --digest`)."""
    limits: Limits | None = None
    """Size limits of samples and of files that describe data (None: `Limits()`); decoders have their own limits."""
    auto_decode: bool | None = None
    """False: the parts of a sample stay bytes. This and the next three are for encoders without their own `decoder`."""
    image_decode: str | None = None
    """`SampleDecoder(image_decode=...)`; better set in the encoder's `decoder`."""
    av_decode: str | None = None
    """`SampleDecoder(av_decode=...)`; better set in the encoder's `decoder`."""
    video_decode_audio: bool | None = None
    """`SampleDecoder(video_decode_audio=...)`; better set in the encoder's `decoder`."""
    sample_type: type[Any] | None = None
    """The class that the samples of all data sets must have."""
    field_map: Mapping[str, str] | None = None
    """Which column gives each field of `sample_type`, for Parquet files and data sets of Hugging Face."""
    where: str | None = None
    """A predicate that chooses samples, such as `"txt.bytes < 4000"`: see docs/where.md."""
    columns: str | os.PathLike[str] | None = None
    """A Parquet file with columns of your own for `where`."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "packing_buffer_size"):
            check_integer(name, getattr(self, name), 1, or_none=True)
        check_integer("planning_window", self.planning_window, 1)
        if self.packing == "planned":
            object.__setattr__(self, "packing_buffer_size", self.planning_window)
        elif self.packing == "online" and self.planning_window != DatasetOptions.planning_window:
            raise ConfigError(
                f"planning_window={self.planning_window}: only planned packs have a window, and packing='online' is "
                "set: add packing='planned', or leave planning_window out (packing_buffer_size is that of online packs)"
            )
        check_plain_fields(self)
        if self.packing != "online" and self.packing not in (*PACKINGS.names, *PACKINGS.names_of_others):
            known = ", ".join(map(repr, sorted(("online", *PACKINGS.names))))
            raise ConfigError(
                f"packing={self.packing!r}: expected one of {known}, or the name of a plug-in: {PACKINGS.lacks}"
            )

    def without_packing(self) -> Self:
        """These options, but for those of packing."""
        window = DatasetOptions.planning_window
        return dataclasses.replace(self, packing="online", packing_buffer_size=None, planning_window=window)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOptions(DatasetOptions):
    """Options of `get_train_dataset`."""

    split_part: str = "train"
    """The part of the split."""
    shuffle_buffer_size: int | None = 100
    """The minimum number of samples that are fully mixed: 1,024 if less is given (fewer if a lane has fewer per epoch).
    There is no buffer: the order itself is shuffled. The default is that of Megatron-Bridge."""
    max_samples_per_sequence: int | None = None
    """Samples per chunk. A chunk is consecutive samples of a shard, read by one lane; None for whole shards. If
    `shuffle_buffer_size` is None, too, samples within a chunk stay in order, and chunks are shuffled."""
    virtual_epoch_length: int = 0
    """Batches of this rank after which one iteration ends, 0 for never."""
    shuffle_over_epochs_multiplier: EpochsPerShuffle = 1
    """The number of epochs that are shuffled together, times the value that a metadataset sets for each data set; -1 to
    draw with replacement. None: nothing is shuffled, whatever the other settings; one lane (`num_lanes=1`) has the
    order of the data, several take chunks in turn (see docs/order.md)."""
    repeat: bool = True
    """Whether to repeat forever; else one epoch."""
    weight_unit: str | None = None
    """What weights of a blend are shares of: "samples", or a cost of samples that `bridge-data prepare --costs` has
    written for the task encoder, such as "tokens". None: what the metadataset says, or samples."""

    def __post_init__(self) -> None:
        check_integer("virtual_epoch_length", self.virtual_epoch_length, 0)
        _ = self.shuffle  # checks its own
        super().__post_init__()

    @functools.cached_property
    def shuffle(self) -> ShuffleSettings:
        """How the order is shuffled."""
        return ShuffleSettings(
            shuffle_buffer_size=self.shuffle_buffer_size,
            max_samples_per_sequence=self.max_samples_per_sequence,
            epochs_per_shuffle=self.shuffle_over_epochs_multiplier,
            repeat=self.repeat,
        )


@dataclasses.dataclass(frozen=True)
class Memo:
    """Where encoded samples are kept for all jobs, ranks and epochs on this machine that ask for them again.

    >>> Memo("/dev/shm/run", version="1", max_bytes=4 << 30).version
    '1'

    Raises:
        ConfigError: if there is no version, or a number is out of range.
    """

    folder: str | Path
    """A folder in memory, such as "/dev/shm/run". The last process that uses it empties it."""
    _: dataclasses.KW_ONLY
    version: str | int | None = None
    """A name of your own for what the hooks make of samples, such as "1". It must be given, as code is not compared:
    change it with the code of your hooks, and with whatever else they read."""
    max_bytes: int = 8 << 30
    """The most that all processes together keep there."""
    disk: str | Path | None = None
    """A folder on a local disk, for what does not fit into memory. What is there stays, for later runs, too."""
    max_disk_bytes: int = 64 << 30
    """The most that is kept in `disk`."""

    def __post_init__(self) -> None:
        for name in ("folder", "disk"):
            if name == "folder" or self.disk is not None:
                folder = output_on_disk(f"memo: {name}", getattr(self, name), OF_THE_MACHINE)
                object.__setattr__(self, name, str(folder.absolute()))
        if isinstance(self.version, bool) or not isinstance(self.version, str | int) or self.version == "":
            raise ConfigError(
                f"memo: version={self.version!r}: expected a name for what your hooks make of samples, such as "
                'Memo("/dev/shm/run", version="1"): code is not compared, so change the name with the code'
            )
        for name in ("max_bytes", "max_disk_bytes"):
            check_integer(f"memo: {name}", getattr(self, name), 1)
        if self.disk is None and self.max_disk_bytes != Memo.max_disk_bytes:
            raise ConfigError(
                f"memo: max_disk_bytes={self.max_disk_bytes}: is the limit of disk, which is None: give that folder, "
                "or leave max_disk_bytes out"
            )


@runtime_checkable
class PoolOptions(Protocol):
    """The options of a pool of workers, found by its name among the plug-ins of the kind `pools`: a dataclass."""

    def open_pool(self, dataset: Any, config: "LoaderConfig") -> Any:
        """The `LanePool` of a loader with this data set and these options; None if its workers are to run on this
        machine."""


POOLS = Seam[type[Any]]("pools")
"""By the name of a pool: a dataclass, the class of its options."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Options of `get_loader` and `get_savable_loader`: how batches are produced. Only `ends` changes which batches
    come, and none of them their order.

    Raises:
        ConfigError: if a number is out of range or a name unknown.
    """

    prefetch_factor: int = 2
    """Batches that a worker prepares ahead."""
    workers: str | Mapping[str, Any] | PoolOptions = "local"
    """Where `num_workers` run: "local", on this machine; or the name of another pool, such as "ray"; or its options,
    such as `RayWorkers(...)`, or a mapping of these and of its name, as `pool`."""
    cache_pool: CachePool | None = None
    """The cache of the cookers; without one nothing is prefetched for them."""
    memo: Memo | Mapping[str, Any] | None = None
    """Where encoded samples are shared with other jobs, ranks and epochs: a `Memo`, or its settings (see docs/memo.md).
    None: each job makes its own."""
    watchdog_timeout_seconds: float | None = 60
    """A worker that starts no new sample and finishes no batch while the trainer waits so long for it is replaced.
    None: no limit."""
    watchdog_initial_timeout_seconds: float | None = None
    """`watchdog_timeout_seconds` before a worker's first batch, if given."""
    worker_start_timeout_s: float | None = 300
    """Seconds that the trainer waits for a worker that is still importing the same module, or loading the dataset,
    before it is an error that names the module. None: no limit."""
    fail_on_timeout: bool = False
    """Stop the run instead of replacing a worker that has exceeded a limit."""
    workers_help: bool = True
    """Let idle workers make samples of a worker for which the trainer waits, if samples take long. False: for encoders
    whose hooks share state in their process, such as what `preencode_sample` keeps for `postencode_sample`."""
    pin_memory: bool = False
    """Put batches into page-locked memory, if there is a GPU."""
    start_method: StartMethod = "server"
    """How workers start. "server": forked from a clean process of their own. "spawn": each a new Python process, for
    modules that start threads when they are imported."""
    sample_timeout_s: float | None = None
    """Seconds that the trainer waits for a worker that is busy with one sample before the worker is replaced; None for
    no limit besides `watchdog_timeout_seconds`."""
    max_worker_restarts: int = 3
    """How often workers may be replaced within `restart_window_batches`, all workers together."""
    restart_window_batches: int = 1_000
    """How many batches must come from workers until a replacement no longer counts. A worker that dies now and then
    over weeks is replaced each time; one that dies repeatedly stops the run."""
    max_shared_bytes: int = 1 << 30
    """Maximum shared memory of batches kept by the trainer. Beyond it they are private copies."""
    ends: Ends = "uneven"
    """How finite data ends. "uneven": each rank after its own batches. "even": all ranks after the same number, in the
    job's order; a rank that has none left gets batches without loss (`TaskEncoder.empty_batch`). In validation that
    number is arithmetic. For packs, groups, generators and shuffled data the ranks agree on it by one small all-reduce
    per step."""
    ledger_path: str | Path | None = dataclasses.field(default=None, metadata={"extra": "ledger"})
    """A folder for the ledger of a training run: which samples each micro-batch had, in one file per data-parallel rank
    (see `RunLedger`), and sums over them in the states. None: no ledger. If other processes share that rank, set it on
    one of them; the DataModule does."""

    @property
    def options_of_extras(self) -> dict[str, str]:
        """By the names of extras that options ask for (see `order.extras`): the option that asks for each."""
        fields = (field for field in dataclasses.fields(self) if "extra" in field.metadata)
        return {field.metadata["extra"]: field.name for field in fields if getattr(self, field.name)}

    def __post_init__(self) -> None:
        at_least = {"prefetch_factor": 1, "max_worker_restarts": 0, "restart_window_batches": 1, "max_shared_bytes": 0}
        for name, least in at_least.items():
            check_integer(f"loader: {name}", getattr(self, name), least)
        for name in (
            "watchdog_timeout_seconds",
            "watchdog_initial_timeout_seconds",
            "worker_start_timeout_s",
            "sample_timeout_s",
        ):
            check_number(f"loader: {name}", getattr(self, name), "a positive number of seconds", or_none=True)
        check_plain_fields(self, "loader: ")
        if self.workers != "local" and not isinstance(self.workers, PoolOptions):
            object.__setattr__(self, "workers", _pool_options(self.workers))
        if self.cache_pool is not None and not isinstance(self.cache_pool, CachePool):
            raise ConfigError(f"cache_pool={self.cache_pool!r}: expected a CachePool, such as FileStoreCachePool()")
        if isinstance(self.memo, Mapping):
            unknown = [name for name in self.memo if name not in Memo.__dataclass_fields__]
            if unknown or "folder" not in self.memo:
                known = ", ".join(Memo.__dataclass_fields__)
                raise ConfigError(f"memo={dict(self.memo)}: expected a mapping with folder, of {known}")
            object.__setattr__(self, "memo", Memo(**self.memo))
        elif self.memo is not None and not isinstance(self.memo, Memo):
            raise ConfigError(f'memo={self.memo!r}: expected a Memo, such as Memo("/dev/shm/run")')

    def set_for_workers(self) -> list[str]:
        """The options that only a loader with workers has a use for, of those that are not as by default."""
        return [name for name in _OF_WORKERS if getattr(self, name) != getattr(LoaderConfig, name)]

    def stall_timeout_s(self, *, first_batch: bool, on_sample: bool) -> float | None:
        """Seconds that the trainer waits for a worker that makes no progress; None: forever."""
        limits = [self.watchdog_timeout_seconds, self.sample_timeout_s if on_sample else None]
        if first_batch and self.watchdog_initial_timeout_seconds is not None:
            limits[0] = self.watchdog_initial_timeout_seconds
        return min((limit for limit in limits if limit is not None), default=None)


_OF_WORKERS = (
    "prefetch_factor",
    "workers",
    "watchdog_timeout_seconds",
    "watchdog_initial_timeout_seconds",
    "worker_start_timeout_s",
    "fail_on_timeout",
    "workers_help",
    "start_method",
    "sample_timeout_s",
    "max_worker_restarts",
    "restart_window_batches",
    "max_shared_bytes",
)
"""Options of a `LoaderConfig` that say how its workers run."""


def _pool_options(workers: Any) -> PoolOptions:
    """The options of the pool that `workers` names."""
    given = {"pool": workers} if isinstance(workers, str) else workers
    if not isinstance(given, Mapping) or not isinstance(name := given.get("pool"), str):
        raise ConfigError(
            f"loader: workers={workers!r}: expected 'local', the name of a pool such as 'ray', its options, or a "
            "mapping of them with its name as 'pool'"
        )
    kind = POOLS.get(name, needed_by=f"workers={workers!r}")
    options = {option: value for option, value in given.items() if option != "pool"}
    known = [field.name for field in dataclasses.fields(kind)]
    for option in options:
        if option not in known:
            raise unknown_option(f"workers of the pool {name!r}", str(option), known)
    made: PoolOptions = kind(**options)
    return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """Options of the DataModule: steps, validation, restoring, and how the ranks of a job share the data.

    Raises:
        ConfigError: if a number is out of range or a name unknown.
    """

    global_batch_size: int | None = None
    """Samples (with packing: packs) per step of all ranks; None for one micro-batch of each rank."""
    num_val_workers: int | None = None
    """Workers for validation; as many as `num_workers` if None."""
    eval_batches: int | None = None
    """Under Megatron, draws after which validation starts over; None: after the last batch. (It also starts over when
    there was training in between.)"""
    multiple_validation_sets: bool = False
    """Validate on each source separately: `val_dataloader` and `build` return a list of loaders, one per source, which
    `val_names` names."""
    val_batch_drop_last: bool = False
    """Drop the last micro-batch of validation if it is not full."""
    rampup_batch_size: Sequence[int] | None = None
    """Megatron's [first global batch size, increment, samples] of a ramp to `global_batch_size`."""
    skip_steps: Sequence[str | int] = ()
    """Steps whose data are skipped, such as ["1200-1260", "1300"]: both ends included, counted from 0 in the run
    without skips. The trainer's own steps stay consecutive. Needs `global_batch_size`."""
    balance: bool | str | Callable[[Any], float] = False
    """The cost by which the micro-batches of a training step are distributed over the data-parallel ranks: "tokens",
    "pixels", "frames", a function of the batch, or True for the encoder's `batch_cost`; they are sent between ranks
    after they are read, so all ranks must ask for their loaders in the same order. With `packing="planned"` they are
    assigned before, and none are sent: "attention" (tokens squared, of each sample), "tokens", or a column of the cost
    index."""
    strict_restore: bool = True
    """Refuse to restore a state of another blend (default True). If False, weights and added data sets may differ;
    differences are logged."""
    share: Share = "replicate"
    """Which ranks of a replica read. "replicate": every rank. "broadcast": one, for the ranks of the first and the last
    pipeline stage; all ranks must ask for their loaders in the same order, and close them before the process groups are
    destroyed."""

    def __post_init__(self) -> None:
        for name, least in (("global_batch_size", 1), ("num_val_workers", 0), ("eval_batches", 1)):
            check_integer(name, getattr(self, name), least, or_none=True)
        check_plain_fields(self)
        ramp = self.rampup_batch_size
        is_list = isinstance(ramp, Sequence) and not isinstance(ramp, str)
        if ramp is not None and not (is_list and all(type(size) is int for size in ramp)):
            raise ConfigError(
                f"rampup_batch_size={ramp!r}: expected [first global batch size, increment, samples of the ramp], or "
                "None"
            )


DECIDED_BY_THE_JOB = ("rank", "world_size", "data_parallel_group")
"""Fields of `WorkerConfig` that are no options: a job has them once its ranks are known."""

_OTHER_NAMES = {"micro_batch_size": "batch_size", "seed": "seed_offset"}
"""Options that fronts call by another name than `get_train_dataset` and `WorkerConfig`, which keep Energon's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run. `data` decides which samples come, `loader` how; `trainer` has those that only a DataModule
    knows. `worker` is the `WorkerConfig` of a job of one rank; `worker.changed(rank=...)` makes that of another."""

    data: TrainingOptions = dataclasses.field(default_factory=TrainingOptions)
    worker: WorkerConfig = dataclasses.field(default_factory=lambda: WorkerConfig(0, 1, 0))
    loader: LoaderConfig = dataclasses.field(default_factory=LoaderConfig)
    trainer: TrainerOptions = dataclasses.field(default_factory=TrainerOptions)

    def __post_init__(self) -> None:
        balance, is_planned = self.trainer.balance, self.data.packing == "planned"
        is_known = isinstance(balance, bool) or callable(balance) or balance in BALANCED_BY
        if not is_known and not (is_planned and isinstance(balance, str)):
            hint = nearest(balance, BALANCED_BY) if isinstance(balance, str) else ""
            raise ConfigError(
                f"balance={balance!r}{hint}: expected True (the encoder's batch_cost), "
                f"{', '.join(map(repr, BALANCED_BY))}, or a function of the batch"
            )

    @property
    def assigns_packs(self) -> bool:
        """Whether `balance` assigns packs to the ranks before they are read, as they are planned."""
        return self.data.packing == "planned" and isinstance(self.trainer.balance, str)

    def get(self, name: str) -> Any:
        """The value of an option, by its name."""
        return getattr(getattr(self, SECTION_OF[name]), _OTHER_NAMES.get(name, name))

    @classmethod
    def of(cls, owner: str = "a run", **given: Any) -> Self:
        """The options of these names, the others with their defaults; `owner` has them, in errors.

        Raises:
            ConfigError: for an unknown name, or a value out of range.
        """
        return cls().with_options(owner, **given)

    def with_options(self, owner: str = "a run", **given: Any) -> Self:
        """These options, but for the given ones. Errors as of `of`."""
        sections: dict[str, dict[str, Any]] = {}
        for name, value in without_ignored(given).items():
            if name not in SECTION_OF:
                raise unknown_option(owner, name, SECTION_OF)
            sections.setdefault(SECTION_OF[name], {})[_OTHER_NAMES.get(name, name)] = value
        try:
            changed: dict[str, Any] = {
                section: self.worker.changed(**values)
                if section == "worker"
                else dataclasses.replace(getattr(self, section), **values)
                for section, values in sections.items()
            }
        except ConfigError as error:
            text = str(error)
            for ours, theirs in _OTHER_NAMES.items():
                text = re.sub(rf"\b{theirs}=", f"{ours}=", text)
            raise ConfigError(text) from error
        return dataclasses.replace(self, **changed)


def unknown_option(owner: str, name: str, known: Collection[str]) -> ConfigError:
    """The error that says that `owner` has no option `name`."""
    return ConfigError(f"{owner} has no setting {name!r}{nearest(name, known)}")


def option_fields() -> dict[str, dict[str, "dataclasses.Field[Any]"]]:
    """The fields of all options of a run, by the section of `RunOptions` and the name that fronts give them."""
    front_names = {theirs: ours for ours, theirs in _OTHER_NAMES.items()}
    sections = {"data": TrainingOptions, "worker": WorkerConfig, "loader": LoaderConfig, "trainer": TrainerOptions}
    return {
        section: {
            front_names.get(field.name, field.name): field
            for field in dataclasses.fields(options)
            if field.init and field.name not in DECIDED_BY_THE_JOB
        }
        for section, options in sections.items()
    }


def option_parameters() -> list[inspect.Parameter]:
    """All options of a run as keyword arguments."""
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for fields in option_fields().values()
        for name, field in fields.items()
    ]


SECTION_OF = {name: section for section, fields in option_fields().items() for name in fields}
"""The section of `RunOptions` that has each option, by the option's name."""

MODULE_DEFAULTS = RunOptions.of(num_workers=1, pin_memory=True)
"""The options of a run for which nothing is given: those that the DataModule has by default."""
