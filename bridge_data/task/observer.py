"""An observer is called around each stage of making batches; a profiler is one.

Reads an `Observer`, and calls it around batches, hooks, reads and decoding, nested like the work. Batches are the same
with and without it. Without an observer nothing is wrapped, so it costs nothing.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, ParamSpec, Protocol, TypeVar

from bridge_data.later import torch

P = ParamSpec("P")
T = TypeVar("T")


class Observer(Protocol):
    """Called in the process and the thread that makes the batches."""

    def begin_batch(self) -> None:
        """A lane starts to make a batch."""

    def end_batch(self) -> None:
        """The batch is done, or has failed."""

    def begin(self, stage: str, source_key: int | None = None) -> None:
        """A stage starts, maybe inside another: `read`, a hook, `seed` (or `seed` and the name of a hook); with the
        source, if it is for one sample."""

    def end(self) -> None:
        """The innermost stage is done, or has failed."""

    def finished(self, batch: Any) -> Any:
        """What the lane hands out in place of its new `batch`."""


class StageTracer:
    """Names the stages in the profile that torch's profiler records: `bridge_data.read`, `.decode`, `.encode`, `.pack`,
    `.collate`. It observes the lanes that the profiled process runs itself; with workers, a profile has only the
    trainer's `bridge_data.wait`."""

    def __init__(self) -> None:
        self._open: list[contextlib.AbstractContextManager[Any]] = []

    def begin_batch(self) -> None:
        """Does nothing: the wait is recorded where the trainer waits."""

    def end_batch(self) -> None:
        """Does nothing."""

    def begin(self, stage: str, source_key: int | None = None) -> None:
        """Open a range of the profile."""
        record: Any = torch.profiler.record_function(f"bridge_data.{_TRACED.get(stage, 'encode')}")
        record.__enter__()
        self._open.append(record)

    def end(self) -> None:
        """Close the innermost one."""
        self._open.pop().__exit__(None, None, None)

    def finished(self, batch: Any) -> Any:
        """The batch, unchanged."""
        return batch


_TRACED = {
    "read": "read",
    "decode": "decode",
    "batch": "collate",
    "encode_batch": "collate",
    **dict.fromkeys(("select_samples_to_pack", "pack_selected_samples", "batch_group_criterion"), "pack"),
}
"""Names of stages in a profile; all others encode samples."""

_NOT_OBSERVED = contextlib.nullcontext()


def observed(observer: Observer | None, stage: str) -> contextlib.AbstractContextManager[None]:
    """A `with` block that is inside `stage`; without an observer, it does nothing."""
    return _NOT_OBSERVED if observer is None else _inside(observer, stage)


@contextlib.contextmanager
def _inside(observer: Observer, stage: str) -> Iterator[None]:
    observer.begin(stage)
    try:
        yield
    finally:
        observer.end()
