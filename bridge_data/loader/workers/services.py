"""What a feature adds to the workers of a loader: `WorkerServices` in the trainer, a `WorkerService` in each worker.

Pool, links and workers carry them and do not know what they do. A worker opens its service before its first lane; once
it is ready, it gets descriptors of what it shares with others. One that replaces another gets the same. Services change
who makes samples, and when; never which ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from bridge_data.extensions import Feature
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.maker import Maker
from bridge_data.lanes.maker_wrappers import LaneView
from bridge_data.loader.lane_pool import LaneResult, LaneRunner, LaneSchedule
from bridge_data.loader.workers.messages import Channel
from bridge_data.loader.workers.watch_page import WatchPage

if TYPE_CHECKING:
    from bridge_data.run_options import LoaderConfig


class ServedWorker(Protocol):
    """A worker, as its service sees it."""

    channel: Channel
    """To the trainer."""
    page: WatchPage
    dataset: LaneDataset
    runner: LaneRunner
    schedule: LaneSchedule | None
    """Whose turn it is; None before lanes begin, and after one has failed."""
    num_batches: int
    """Made since the lanes began."""
    batch_bytes: int
    """Size of the largest."""

    @property
    def num_allowed(self) -> int:
        """Batches that it may make: those that the trainer asks for, and what the service adds."""


class WorkerService(Protocol):
    """In a worker, which calls it between its own steps."""

    @property
    def num_beyond(self) -> int:
        """Batches that the worker may make beyond those that the trainer asks for."""

    def connect(self, descriptors: Sequence[int]) -> None:
        """Take over what the worker shares with others, once; a worker that is short of descriptors never gets it."""

    def begin(self) -> None:
        """The lanes begin anew: they are opened again, with `wrap`."""

    def wrap(self, inner: Maker, lane: LaneView) -> Maker:
        """What makes the samples of a lane: a `MakerWrapper`."""

    def take(self, lane: int) -> LaneResult:
        """The next result of `lane`, by the worker's `runner`."""

    def wait(self) -> bool:
        """Work for others, while the worker has nothing to do. Returns once there is a message for the worker; or, with
        True, when it may make one more batch, which `num_beyond` then counts."""


OpenService: TypeAlias = Callable[[ServedWorker], WorkerService]
"""Opens the service of a worker. It is pickled."""


class WorkerServices(Protocol):
    """In the trainer, for all workers of a loader."""

    def of_worker(self, index: int) -> OpenService:
        """What worker number `index` opens its service with."""

    def descriptors(self, index: int) -> Sequence[int]:
        """The descriptors of which worker number `index` is sent duplicates when it is ready."""

    def note_taken(self, index: int, num_batches: int) -> None:
        """Note how many batches the trainer has taken of a worker since its lanes began."""

    def close(self) -> None:
        """Close what the workers share."""


_WORKERS_HELP = Feature["Callable[[LoaderConfig, int], WorkerServices | None]"]("workers_help")
"""The services of so many workers; None if they need none."""


def open_services(config: LoaderConfig, num_workers: int) -> WorkerServices | None:
    """The services that a loader with these options has; None if it has none, or their plug-in is not installed."""
    opener = _WORKERS_HELP.find() if config.workers_help else None
    return None if opener is None else opener(config, num_workers)
