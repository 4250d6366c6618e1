"""SPDL: a pipeline of threads over files, as its example of image loading builds it. It has no state to save.

Its own functions decode media by FFmpeg, without Python's lock; large photos are resized by Pillow, as everywhere.
"""

import random
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import files
import measure
import spdl.io
import torch
import work
from spdl.pipeline import PipelineBuilder


def texts(paths: list[Path]) -> list[str]:
    """Texts as they are."""
    return [path.read_text() for path in paths]


def images(paths: list[Path]) -> torch.Tensor:
    """JPEGs to uint8."""
    buffer = spdl.io.load_image_batch([str(path) for path in paths], width=None, height=None, pix_fmt="rgb24")
    return spdl.io.to_torch(buffer).permute(0, 3, 1, 2)


def photos(paths: list[Path]) -> torch.Tensor:
    """Large JPEGs to small float images."""
    return torch.stack([work.photo_resized(path.read_bytes()) for path in paths])


def videos(paths: list[Path]) -> torch.Tensor:
    """Evenly spaced frames of videos."""
    frames = []
    for path in paths:
        packets = spdl.io.demux_video(str(path))
        frames += spdl.io.sample_decode_video(packets, work.frames_of(len(packets)))
    pixels = spdl.io.to_torch(spdl.io.convert_frames(frames))
    return pixels.unflatten(0, (len(paths), work.NUM_FRAMES)).permute(0, 1, 4, 2, 3)


def audio(paths: list[Path]) -> torch.Tensor:
    """Waveforms."""
    return torch.stack([spdl.io.to_torch(spdl.io.load_audio(str(path))) for path in paths])


MADE = {"text": texts, "jpeg": images, "photos": photos, "video": videos, "audio": audio}


class Loader(measure.Loader):
    """A pipeline with as many threads as the others have workers."""

    def __init__(self, workload: str, data: Path, workers: int) -> None:
        self._files, self._make = files.files_of(workload, data), MADE[workload]
        size = work.BATCH_SIZES[workload]
        builder = PipelineBuilder().add_source(self._shuffled(size)).pipe(self._batch, concurrency=workers)
        self._pipeline = builder.add_sink(2 * workers).build(num_threads=workers)
        self.settings = {
            "version": version("spdl"),
            "format": "a file a sample",
            "decoder": "FFmpeg; of large photos Pillow",
            "batch_size": size,
            "shuffle": "all of it (by hand)",
            "prefetch": "2 batches a thread",
        }

    def _shuffled(self, size: int) -> Iterator[list[Path]]:
        while True:
            paths = random.sample(self._files, len(self._files))
            yield from (paths[at : at + size] for at in range(0, len(paths) - size + 1, size))

    def _batch(self, paths: list[Path]) -> dict[str, Any]:
        return {"key": [path.stem for path in paths], "value": self._make(paths)}

    def __iter__(self) -> Iterator[Any]:
        self._pipeline.start()
        return self._pipeline.get_iterator()


if __name__ == "__main__":
    measure.main(Loader, files.convert)
