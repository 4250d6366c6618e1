"""bridge_data, with the same task encoders as Megatron-Energon.

`--workload photos_torch` and `s3` are our own rows: the same images resized by torch, and shards in the object store at
BENCH_S3_URL.
"""

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import energon_tasks
import measure
import work

from bridge_data import DefaultTaskEncoder, SampleDecoder

RESIZED = {
    "photos": {"image_size": work.IMAGE_SIZE},
    "photos_torch": {"image_size": work.IMAGE_SIZE, "resize": "torch"},
}


class Resized(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Images that the decoder resizes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.decoder = SampleDecoder(image_decode="torchrgb", **settings)


class Loader(energon_tasks.Prepared):
    """A savable loader."""

    def __init__(self, workload: str, data: Path, workers: int) -> None:
        encoder = Resized(**RESIZED[workload]) if workload in RESIZED else None
        workload = workload.removesuffix("_torch")
        location = os.environ["BENCH_S3_URL"] if workload == "s3" else data
        settings = {
            "version": version("bridge-data"),
            "decoder": "simplejpeg, Pillow, PyAV",
            "shuffle": f"{work.SHUFFLE_BUFFER} samples mixed, chunks of {work.RUN_LENGTH}",
        }
        super().__init__(energon_tasks.make_loader(workload, location, workers, encoder), workload, settings)

    def wait_ready(self) -> None:
        self.loader.wait_for_workers()

    def close(self) -> None:
        self.loader.close()


if __name__ == "__main__":
    measure.main(Loader)
