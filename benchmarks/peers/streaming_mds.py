"""mosaicml-streaming on its own format, MDS: a StreamingDataset and a StreamingDataLoader, shards local."""

import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import measure
import torchvision_import  # noqa: F401 (before streaming)
import work

from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset  # isort: skip
from streaming.base.util import clean_stale_shared_memory  # isort: skip

FOLDER, SHARD_BYTES = "mds", 1 << 26


def convert(workload: str, data: Path) -> None:
    """The tars of a workload as MDS; shards of 5 samples for the cold start, so that there are as many."""
    for folder in [data] if (data / "tars").exists() else sorted(data.glob("[0-9][0-9]")):
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        columns = {"key": "str", "value": "str" if work.part_of(workload) == "txt" else "bytes"}
        size = 1_500 if workload == "cold" else SHARD_BYTES
        with MDSWriter(out=str(folder / FOLDER), columns=columns, size_limit=size) as writer:
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


class Loader:
    """A StreamingDataLoader, epoch after epoch; packs are made of its samples."""

    def __init__(self, workload: str, data: Path, workers: int) -> None:
        if workload == "blend":
            folders = sorted(data.glob("[0-9][0-9]"))
            streams = [Stream(local=str(f / FOLDER), proportion=n + 1.0) for n, f in enumerate(folders)]
            dataset = Samples(workload, streams=streams)
        else:
            dataset = Samples(workload, local=str(data / FOLDER))
        self._packs = workload == "chat"
        self._size = work.BATCH_SIZES[workload]
        self._dataset = dataset
        self._loader = StreamingDataLoader(
            dataset,
            batch_size=work.PACKING_BUFFER if self._packs else self._size,
            num_workers=workers,
            collate_fn=work.packed_buffer if self._packs else work.stacked,
            persistent_workers=workers > 0,
            drop_last=True,
        )
        self.settings = {
            "version": version("mosaicml-streaming"),
            "format": "MDS",
            "decoder": "Pillow",
            "batch_size": self._size,
            "shuffle": "py1e (default)",
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
        """The process ends with its workers at once, and what they shared would be left behind."""
        for name in Path("/dev/shm").glob(f"{self._dataset._shm_prefix_int:06}_*"):
            name.unlink(missing_ok=True)


if __name__ == "__main__":
    clean_stale_shared_memory()  # of a run before that was ended
    measure.main(Loader, convert)
