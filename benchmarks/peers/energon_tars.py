"""Megatron-Energon on the shards that `bridge-data prepare` or `energon prepare` has prepared."""

from importlib.metadata import version
from pathlib import Path

import energon_tasks
import measure
import work


class Loader(energon_tasks.Prepared):
    """A savable loader."""

    def __init__(self, workload: str, data: Path, workers: int) -> None:
        settings = {
            "version": version("megatron-energon"),
            "decoder": "Pillow, PyAV",
            "shuffle": f"buffer of {work.SHUFFLE_BUFFER}, runs of {work.RUN_LENGTH}",
        }
        super().__init__(energon_tasks.make_loader(workload, data, workers), workload, settings)


if __name__ == "__main__":
    measure.main(Loader)
