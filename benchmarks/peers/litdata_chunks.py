"""litdata on its own format, optimized chunks: a StreamingDataset and a StreamingDataLoader, chunks local."""

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import epochs
import litdata
import measure
import work

FOLDER = "chunks"


def convert(workload: str, data: Path) -> None:
    """The tars of a workload as chunks."""
    for folder in work.sets_of(data):
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        part = work.part_of(workload)
        samples = [
            {"key": key, "value": parts[part].decode() if part == "txt" else parts[part]}
            for key, parts in work.read_tars(folder / "tars")
        ]
        writer = litdata.streaming.writer.BinaryWriter(cache_dir=str(_made(folder / FOLDER)), chunk_bytes="64MB")
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


class Loader(epochs.EpochLoader):
    """A StreamingDataLoader."""

    def __init__(self, workload: str, data: Path, workers: int) -> None:
        if workload == "blend":
            folders = work.sets_of(data)
            weights = [number + 1.0 for number in range(len(folders))]
            sets = [Samples(workload, folder) for folder in folders]
            dataset: Any = litdata.CombinedStreamingDataset(sets, weights=weights, iterate_over_all=False)
        else:
            dataset = Samples(workload, data)
        settings = {
            "version": version("litdata"),
            "format": "chunks of 64 MB",
            "shuffle": "shuffle=True: chunks, and samples in a chunk",
        }
        super().__init__(litdata.StreamingDataLoader, dataset, workload, workers, settings)


if __name__ == "__main__":
    measure.main(Loader, convert)
