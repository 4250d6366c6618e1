"""The number of the sample or micro-batch that a hook works on in this thread.

Both numbers are arithmetic: they depend on the sample or on the position in the job, not on the rank or worker, and are
the same after a resume.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from bridge_data.errors import ConfigError


class HookContext(Protocol):
    """A running hook."""

    @property
    def sample_index(self) -> int:
        """The number of its (first) sample."""

    @property
    def batch_index(self) -> int | None:
        """The number of its micro-batch; None if not known yet."""

    @property
    def cache(self) -> Any:
        """The loader's cache pool."""

    @property
    def worker_config(self) -> Any:
        """The `WorkerConfig` of this process."""


active: ContextVar[HookContext | None] = ContextVar("bridge_data_active", default=None)
"""The hook that runs in this thread, if any."""


class Numbering:
    """A unique number for each sample of each epoch of some sources.

    Sample `index` in `epoch` of a source has number `epoch * (samples of all sources) + (samples of the sources before
    it) + index`.
    """

    def __init__(self, source_keys: Sequence[int], num_samples: Sequence[int]) -> None:
        self._total = 0
        self._first: dict[int, int] = {}
        for key, size in zip(source_keys, num_samples, strict=True):
            self._first[key] = self._total
            self._total += size

    def number_of(self, source_key: int, epoch: int, index: int) -> int:
        """The number of a sample."""
        return epoch * self._total + self._first[source_key] + index


def current_sample_index() -> int:
    """The number of the sample that a hook works on; for packs and batches, of their first sample.

    Raises:
        ConfigError: outside hooks.
    """
    return _at_work("current_sample_index").sample_index


def current_batch_index() -> int:
    """The number of the current micro-batch in the whole job.

    Raises:
        ConfigError: where it is not known: in hooks of samples that are packed, grouped or made by generators, and
            outside hooks.
    """
    number = _at_work("current_batch_index").batch_index
    if number is None:
        raise ConfigError(
            "current_batch_index is known in batch and encode_batch. Which batch a sample will be in is known before "
            "only without packing, batch_group_criterion, and hooks that are generators, as encoding a sample again "
            "after a resume must give the same. Use current_sample_index"
        )
    return number


def current_cache() -> Any:
    """The cache pool of the loader that calls a hook.

    Raises:
        ConfigError: outside hooks.
    """
    return _at_work("the cache pool").cache


def _at_work(name: str) -> HookContext:
    work = active.get()
    if work is None:
        raise ConfigError(f"{name} is known only while a hook of the task encoder is called by a loader, in its thread")
    return work
