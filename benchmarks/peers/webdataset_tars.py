"""webdataset on its own format, tars: a pipeline and a WebLoader. It has no state to save."""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import measure
import webdataset as wds
import work

SHARDS_MIXED = 100


def texts(folder: Path) -> Any:
    """The samples of a folder of shards, without end, shuffled and decoded."""
    shards = sorted(str(file) for file in folder.glob("*.tar"))
    dataset = wds.WebDataset(shards, shardshuffle=SHARDS_MIXED, workersplitter=_split, empty_check=False)
    return dataset.repeat().shuffle(work.SHUFFLE_BUFFER)


def _split(shards: Iterator[Any]) -> Iterator[Any]:
    """Each worker its share of the shards; all of them where there are fewer shards than workers."""
    shards = list(shards)
    return iter(list(wds.split_by_worker(iter(shards))) or shards)


def photo(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample with its picture resized."""
    return sample | {"jpg": work.image_resized(sample["jpg"])}


def pipeline(workload: str, data: Path) -> Any:
    """Batches of a workload."""
    size = work.BATCH_SIZES[workload]
    if workload == "blend":
        sources = [texts(folder / "tars") for folder in work.sets_of(data)]
        mix = wds.RandomMix(sources, probs=[number + 1.0 for number in range(len(sources))])
        return wds.DataPipeline(mix, wds.decode(), wds.to_tuple("__key__", "txt"), wds.batched(size))
    dataset = texts(data / "tars")
    if workload == "chat":
        return dataset.compose(chats).batched(size, collation_fn=work.stacked_packs)
    dataset = dataset.decode("pilrgb").map(photo) if workload == "photos" else dataset.decode("torchrgb8")
    return dataset.to_tuple("__key__", work.part_of(workload)).batched(size)


def chats(samples: Iterator[dict[str, Any]]) -> Iterator[Any]:
    """Packs of a stream of samples."""
    return work.packed_stream((sample["__key__"], work.chat_tokens(sample["json"])) for sample in samples)


class Loader(measure.Loader):
    """A WebLoader."""

    def __init__(self, workload: str, data: Path, workers: int) -> None:
        self._loader = wds.WebLoader(pipeline(workload, data), batch_size=None, num_workers=workers)
        self.settings = {
            "version": version("webdataset"),
            "format": "tars",
            "decoder": "Pillow",
            "batch_size": work.BATCH_SIZES[workload],
            "shuffle": f"{SHARDS_MIXED} shards, buffer of {work.SHUFFLE_BUFFER}",
            "prefetch": "2 batches a worker (default)",
        }

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def describe(self, batch: Any) -> list[tuple[str, Any]]:
        return super().describe(batch) if isinstance(batch, dict) else list(zip(*batch, strict=True))


if __name__ == "__main__":
    measure.main(Loader)
