"""Settings of a loader."""

import dataclasses
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from bridge_data.errors import ConfigError
from bridge_data.options import check_flag, check_integer, check_number

StartMethod: TypeAlias = Literal["server", "spawn"]
Ends: TypeAlias = Literal["uneven", "even"]


_FORMER_CHOICES = {
    "fork": 'leave it out; workers are forked from a clean process ("server"), which is safe with threads and CUDA',
    "inprocess": "take num_workers=0, which runs the lanes in this process, in the same order",
    "agreed": 'take ends="even": the ranks end together, and agree where the number of batches is not known',
}


class LoaderOptions(TypedDict, total=False):
    """Options of `get_loader` and `get_savable_loader`, besides the parameters of Energon and `pin_memory`."""

    start_method: StartMethod
    """How workers start. "server": forked from a clean process of their own. "spawn": each a new Python process, for
    modules that start threads when they are imported."""
    sample_timeout_s: float | None
    """Seconds that the trainer waits for a worker that is busy with one sample before the worker is replaced; None for
    no limit besides `watchdog_timeout_seconds`."""
    max_worker_restarts: int
    """How often workers may be replaced within `restart_window_batches`, all workers together."""
    restart_window_batches: int
    """How many batches must come from workers until a replacement no longer counts. A worker that dies now and then
    over weeks is replaced each time; one that dies repeatedly stops the run."""
    max_shared_bytes: int
    """Maximum shared memory of batches kept by the trainer. Beyond it they are private copies."""
    ends: Ends
    """How finite data ends. "uneven": each rank after its own batches. "even": all ranks after the same number, in the
    job's order; a rank that has none left gets batches without loss (`TaskEncoder.empty_batch`). In validation that
    number is arithmetic. For packs, groups, generators and shuffled data the ranks agree on it by one small all-reduce
    per step."""
    ledger_path: str | Path | None
    """A folder for the ledger of a training run: which samples each micro-batch had, in one file per data-parallel rank
    (see `RunLedger`). If other processes share that rank, set it on one of them; the DataModule does."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LoaderConfig:
    """How batches are produced; nothing here changes which batches come, or their order.

    `prefetch_factor` is the number of batches that a worker prepares ahead. A worker that starts no new sample and
    finishes no batch while the trainer waits `watchdog_timeout_seconds` for it is replaced; before its first batch,
    `watchdog_initial_timeout_seconds` applies, if given. None: no limit. With `fail_on_timeout` the run stops instead.
    `LoaderOptions` explains the others.

    Raises:
        ConfigError: if a number is out of range or a name unknown.
    """

    prefetch_factor: int = 2
    start_method: StartMethod = "server"
    pin_memory: bool = False
    watchdog_timeout_seconds: float | None = 60
    watchdog_initial_timeout_seconds: float | None = None
    sample_timeout_s: float | None = None
    fail_on_timeout: bool = False
    max_worker_restarts: int = 3
    restart_window_batches: int = 1_000
    max_shared_bytes: int = 1 << 30
    ends: Ends = "uneven"
    ledger_path: str | Path | None = None

    def __post_init__(self) -> None:
        for name, value in (("start_method", self.start_method), ("ends", self.ends)):
            if (way_out := _FORMER_CHOICES.get(value)) is not None:
                raise ConfigError(f"loader: {name}={value!r} is no longer supported: {way_out}")
        for name, known in (("start_method", get_args(StartMethod)), ("ends", get_args(Ends))):
            if getattr(self, name) not in known:
                expected = ", ".join(map(repr, known))
                raise ConfigError(f"loader: {name}={getattr(self, name)!r}: expected one of {expected}")
        at_least = {"prefetch_factor": 1, "max_worker_restarts": 0, "restart_window_batches": 1, "max_shared_bytes": 0}
        for name, least in at_least.items():
            check_integer(f"loader: {name}", getattr(self, name), least)
        for name in ("pin_memory", "fail_on_timeout"):
            check_flag(f"loader: {name}", getattr(self, name))
        for name in ("watchdog_timeout_seconds", "watchdog_initial_timeout_seconds", "sample_timeout_s"):
            check_number(f"loader: {name}", getattr(self, name), "a positive number of seconds", or_none=True)

    def patience_s(self, *, first_batch: bool, on_sample: bool) -> float | None:
        """Seconds that the trainer waits for a worker that makes no progress; None: forever."""
        limits = [self.watchdog_timeout_seconds, self.sample_timeout_s if on_sample else None]
        if first_batch and self.watchdog_initial_timeout_seconds is not None:
            limits[0] = self.watchdog_initial_timeout_seconds
        return min((limit for limit in limits if limit is not None), default=None)


LOADER_DEFAULTS: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(LoaderConfig)}
"""The default of each setting."""
