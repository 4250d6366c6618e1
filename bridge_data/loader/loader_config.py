"""Settings of a loader."""

import dataclasses
from typing import Literal, TypeAlias, get_args

from bridge_data.errors import ConfigError

StartMethod: TypeAlias = Literal["server", "spawn", "fork", "inprocess"]
Ends: TypeAlias = Literal["uneven", "even"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LoaderConfig:
    """How batches are produced; nothing here changes which batches come, or their order.

    `prefetch_factor` batches at most lie ready per worker. `start_method`: "server" forks workers from a clean process
    of their own, "spawn" executes each anew, "fork" forks from this process (refused with threads, CUDA or process
    groups), "inprocess" runs the lanes here. A worker that begins no new sample and finishes no batch while the trainer
    waits `watchdog_timeout_seconds` for it is replaced (`watchdog_initial_timeout_seconds`: before its first batch;
    `sample_timeout_s`: while it is on a sample; None: no limit of its own); with `fail_on_timeout` the run stops
    instead. `max_worker_restarts` counts over the life of the loader. Batches that the trainer keeps may occupy
    `max_shared_bytes` of shared memory; beyond it they are private copies. `ends` is how finite data ends: "uneven",
    each rank after its own batches; "even", all after equally many, in the job's order, with empty ones
    (`TaskEncoder.empty_batch`) where the lane of a rank has ended, for which the ranks agree in one small all-reduce a
    step.

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
    max_shared_bytes: int = 1 << 30
    ends: Ends = "uneven"

    def __post_init__(self) -> None:
        for name, known in (("start_method", get_args(StartMethod)), ("ends", get_args(Ends))):
            if getattr(self, name) not in known:
                expected = ", ".join(map(repr, known))
                raise ConfigError(f"loader: {name}={getattr(self, name)!r}: expected one of {expected}")
        for name, least in (("prefetch_factor", 1), ("max_worker_restarts", 0), ("max_shared_bytes", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"loader: {name}={getattr(self, name)}: expected {least} or more")
        for name in ("watchdog_timeout_seconds", "watchdog_initial_timeout_seconds", "sample_timeout_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"loader: {name}={value}: expected a positive number of seconds, or None")

    def patience_s(self, *, first_batch: bool, on_sample: bool) -> float | None:
        """Seconds that the trainer waits for a worker that makes no progress; None: for ever."""
        limits = [self.watchdog_timeout_seconds, self.sample_timeout_s if on_sample else None]
        if first_batch and self.watchdog_initial_timeout_seconds is not None:
            limits[0] = self.watchdog_initial_timeout_seconds
        return min((limit for limit in limits if limit is not None), default=None)
