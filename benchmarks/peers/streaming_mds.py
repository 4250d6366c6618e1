"""mosaicml-streaming on its own format, MDS: a StreamingDataset and a StreamingDataLoader, shards local."""

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import epochs
import measure
import torchvision_import  # noqa: F401 (before streaming)
import work

from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset  # isort: skip
from streaming.base.util import clean_stale_shared_memory  # isort: skip

FOLDER, SHARD_BYTES = "mds", 1 << 26


def convert(workload: str, data: Path) -> None:
    """The tars of a workload as MDS."""
    for folder in work.sets_of(data):
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        columns = {"key": "str", "value": "str" if work.part_of(workload) == "txt" else "bytes"}
        with MDSWriter(out=str(folder / FOLDER), columns=columns, size_limit=SHARD_BYTES) as writer:
            for key, parts in work.read_tars(folder / "tars"):
                content = parts[work.part_of(workload)]
                writer.write({"key": key, "value": content.decode() if columns["value"] == "str" else content})


class Samples(StreamingDataset):
    """Key and decoded value."""

    def __init__(self, workload: str, **settings: Any) -> None:
        super().__init__(shuffle=True, batch_size=work.BATCH_SIZES[workload], **settings)
        self._decode = work.DECODERS.get(workload, ("", None))[1]

    def __getitem__(self, at: int) -> Any:
        sample = super().__getitem__(at)
        value = sample["value"]
        return sample["key"], value if self._decode is None else self._decode(value)


class Loader(epochs.EpochLoader):
    """A StreamingDataLoader."""

    def __init__(self, workload: str, data: Path, workers: int) -> None:
        if workload == "blend":
            streams = [Stream(local=str(f / FOLDER), proportion=n + 1.0) for n, f in enumerate(work.sets_of(data))]
            self._dataset = Samples(workload, streams=streams)
        else:
            self._dataset = Samples(workload, local=str(data / FOLDER))
        settings = {"version": version("mosaicml-streaming"), "format": "MDS", "shuffle": "py1e (default)"}
        super().__init__(StreamingDataLoader, self._dataset, workload, workers, settings)

    def close(self) -> None:
        """The process ends with its workers at once, and what they shared would be left behind."""
        for name in Path("/dev/shm").glob(f"{self._dataset._shm_prefix_int:06}_*"):
            name.unlink(missing_ok=True)


if __name__ == "__main__":
    clean_stale_shared_memory()  # of a run before that was ended
    measure.main(Loader, convert)
