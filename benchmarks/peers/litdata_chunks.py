"""litdata on its own format, optimized chunks: a StreamingDataset and a StreamingDataLoader, chunks local."""

import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import litdata
import measure
import work

FOLDER = "chunks"


def convert(workload: str, data: Path) -> None:
    """The tars of a workload as chunks; chunks of 5 samples for the cold start, so that there are as many."""
    for folder in [data] if (data / "tars").exists() else sorted(data.glob("[0-9][0-9]")):
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        part = work.part_of(workload)
        samples = [
            {"key": key, "value": parts[part].decode() if part == "txt" else parts[part]}
            for key, parts in work.read_tars(folder / "tars")
        ]
        size = {"chunk_size": 5} if workload == "cold" else {"chunk_bytes": "64MB"}
        writer = litdata.streaming.writer.BinaryWriter(cache_dir=str(_made(folder / FOLDER)), **size)
        for number, sample in enumerate(samples):
            writer[number] = sample
        writer.done()
        writer.merge()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


class Samples(litdata.StreamingDataset):
    """Key and decoded value."""

    def __init__(self, workload: str, folder: Path) -> None:
        super().__init__(str(folder / FOLDER), shuffle=True)
        self._decode = work.DECODERS.get(workload, ("", None))[1]

    def __getitem__(self, at: Any) -> Any:
        sample = super().__getitem__(at)
        value = sample["value"]
        return sample["key"], value if self._decode is None else self._decode(value)


class Loader:
    """A StreamingDataLoader, epoch after epoch; packs are made of its samples."""

    def __init__(self, workload: str, data: Path, workers: int) -> None:
        if workload == "blend":
            folders = sorted(data.glob("[0-9][0-9]"))
            weights = [number + 1.0 for number in range(len(folders))]
            sets = [Samples(workload, folder) for folder in folders]
            dataset: Any = litdata.CombinedStreamingDataset(sets, weights=weights, iterate_over_all=False)
        else:
            dataset = Samples(workload, data)
        self._packs = workload == "chat"
        self._size = work.BATCH_SIZES[workload]
        self._loader = litdata.StreamingDataLoader(
            dataset,
            batch_size=work.PACKING_BUFFER if self._packs else self._size,
            num_workers=workers,
            collate_fn=work.packed_buffer if self._packs else work.stacked,
            persistent_workers=workers > 0,
            drop_last=True,
        )
        self.settings = {
            "version": version("litdata"),
            "format": "chunks of 64 MB",
            "decoder": "Pillow",
            "batch_size": self._size,
            "shuffle": "shuffle=True: chunks, and samples in a chunk",
            "prefetch": "2 batches a worker (default)",
        }

    def __iter__(self) -> Iterator[Any]:
        batches = self._epochs()
        return work.batches_of((pack for packs in batches for pack in packs), self._size) if self._packs else batches

    def _epochs(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def describe(self, batch: Any) -> list[tuple[str, Any]]:
        return work.described(batch)

    def save(self) -> Any:
        return self._loader.state_dict()

    def restore(self, state: Any) -> None:
        self._loader.load_state_dict(state)

    def wait_ready(self) -> None:
        """It does not tell."""

    def close(self) -> None:
        """The process ends with its workers."""


if __name__ == "__main__":
    measure.main(Loader, convert)
