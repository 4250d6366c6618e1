"""The upper bound: a bare Python loop that does only the work of a workload, in one process.

Shards are memory-mapped, the offset of every part is known, and samples are read in file order. A text is sliced,
decoded and put into a sample object. A JPEG is decoded by simplejpeg, with Pillow's pixels, and not batched. A large
photo is decoded into the memory of a Pillow image, and resized by Pillow. Chats are packed and batched. The allocator
keeps freed memory, as in our workers: otherwise large images cause page faults.
"""

import functools
import mmap
import tarfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import measure
import simplejpeg
import torch
import work

from bridge_data import TextSample
from bridge_data.child_process import keep_freed_memory
from bridge_data.decode.image import pillow_image

SCANNED = 20_000


class Loader(measure.Loader):
    """Batches of the first samples, repeated."""

    def __init__(self, workload: str, data: Path, workers: int) -> None:
        if workers:
            raise ValueError("the bare loop is one process")
        self._workload, self._size = workload, work.BATCH_SIZES[workload]
        self._places: list[tuple[str, mmap.mmap, int, int]] = []
        for shard in sorted((data / "tars").glob("*.tar")):
            with open(shard, "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with tarfile.open(shard) as tar:
                members = [(m.name.partition(".")[0], mapped, m.offset_data, m.offset_data + m.size) for m in tar]
            self._places += members
            if len(self._places) > SCANNED:
                break
        self.settings = {
            "version": version("simplejpeg"),
            "format": "tars, mapped, offsets known",
            "decoder": "simplejpeg, Pillow",
            "batch_size": self._size,
            "shuffle": "none",
            "prefetch": "none",
        }

    def __iter__(self) -> Iterator[Any]:
        if self._workload == "chat":
            return work.batches_of(work.packed_stream(self._samples()), self._size)
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        samples = self._texts() if self._workload == "text" else self._samples()
        while True:
            yield [next(samples) for _ in range(self._size)]

    def _texts(self) -> Iterator[TextSample]:
        while True:
            for key, mapped, start, end in self._places:
                yield TextSample(
                    __key__=key, __restore_key__=(), __subflavors__=None, text=str(mapped[start:end], "utf-8")
                )

    def _samples(self) -> Iterator[tuple[str, Any]]:
        decode = {"jpeg": simplejpeg.decode_jpeg, "photos": _photo, "chat": work.chat_tokens}[self._workload]
        while True:
            for key, mapped, start, end in self._places:
                yield key, decode(mapped[start:end])

    def describe(self, batch: Any) -> list[tuple[str, Any]]:
        return []


@functools.wraps(work.photo_resized)
def _photo(content: bytes) -> torch.Tensor:
    return work.image_resized(pillow_image(content, "RGB"))


if __name__ == "__main__":
    keep_freed_memory()
    measure.main(Loader)
