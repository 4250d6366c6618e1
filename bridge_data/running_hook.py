"""The hook of the task encoder that runs in this thread, and what it may ask for.

It may ask for the number of its sample and of its micro-batch. Both are arithmetic: they depend on the sample or on the
position in the job, not on the rank or worker, and are the same after a resume. Asked outside a hook, it is a
`ConfigError`.
"""

from contextvars import ContextVar
from typing import Any, Protocol

from bridge_data.errors import ConfigError


class HookContext(Protocol):
    """A running hook."""

    is_cut: bool
    """Whether it has cut its sample, which is counted unless the sample is skipped."""
    is_positional: bool
    """Whether it has asked for the number of its sample or micro-batch, or the `WorkerConfig`: what it makes is for
    this position in this job alone."""

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


active_hook: ContextVar[HookContext | None] = ContextVar("bridge_data_active", default=None)
"""The hook that runs in this thread, if any."""


def current_sample_index() -> int:
    """The number of the sample that a hook works on; for packs and batches, of their first sample."""
    hook = _running_hook("current_sample_index")
    hook.is_positional = True
    return hook.sample_index


def current_batch_index() -> int:
    """The number of the current micro-batch in the whole job. A `ConfigError` outside `batch` and `encode_batch`."""
    hook = _running_hook("current_batch_index")
    hook.is_positional = True
    number = hook.batch_index
    if number is None:
        raise ConfigError(
            "current_batch_index is known in batch and encode_batch. In hooks of samples it is known "
            "only without packing, batch_group_criterion, and hooks that are generators, as encoding a sample again "
            "after a resume must give the same. Use current_sample_index"
        )
    return number


def current_cache() -> Any:
    """The cache pool of the loader that calls a hook."""
    return _running_hook("the cache pool").cache


def note_truncation() -> None:
    """Have the sample that a hook works on counted as truncated, if a loader calls the hook and it keeps the sample."""
    if (hook := active_hook.get()) is not None:
        hook.is_cut = True


def _running_hook(name: str) -> HookContext:
    hook = active_hook.get()
    if hook is None:
        raise ConfigError(f"{name} is known only while a hook of the task encoder is called by a loader, in its thread")
    return hook
