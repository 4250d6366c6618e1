"""Megatron-Energon on the shards that `bridge-data prepare` or `energon prepare` has prepared."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import energon_tasks
import measure
import work


class Loader:
    """A savable loader."""

    def __init__(self, workload: str, data: Path, workers: int) -> None:
        self._loader = energon_tasks.make_loader(workload, data, workers)
        self.settings = {
            "version": version("megatron-energon"),
            "format": "prepared tars",
            "decoder": "Pillow",
            "batch_size": work.BATCH_SIZES[workload],
            "shuffle": f"buffer of {work.SHUFFLE_BUFFER}, runs of {work.RUN_LENGTH}",
            "prefetch": "2 batches a worker (default)",
        }

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def describe(self, batch: Any) -> list[tuple[str, Any]]:
        return energon_tasks.described(batch)

    def save(self) -> Any:
        return self._loader.save_state_rank()

    def restore(self, state: Any) -> None:
        self._loader.restore_state_rank(state)

    def wait_ready(self) -> None:
        """It does not tell."""

    def close(self) -> None:
        """The process ends with its workers."""


if __name__ == "__main__":
    measure.main(Loader)
