"""A job with a cache pool that ends as `how` says: `python -m tests.task.stores.cached_job data.yaml cache how`."""

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

from bridge_data import (
    CachePool,
    Cooker,
    CrudeSample,
    DefaultTaskEncoder,
    FileStore,
    FileStoreCachePool,
    Lazy,
    Sample,
    basic_sample_keys,
    cooker,
    edataclass,
    get_loader,
    stateless,
)
from tests.task.stores.media import dataset


@edataclass
class Pending(Sample):
    """A sample whose file is on its way."""

    file: Lazy
    text: str


@edataclass
class Whole(Sample):
    """A sample with its file."""

    data: bytes
    text: str


@stateless
@cooker(need_cache=True)
def cook(sample: CrudeSample, *, media: FileStore, files: FileStore, cache: CachePool) -> Pending:
    lazy = cache.get_lazy(media, sample["json"]["file"])
    text = cache.to_cache(sample["txt"], "text")
    return Pending(**basic_sample_keys(sample), file=lazy, text=text.get())


class Packer(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Files are asked for when samples are cooked, and used when they have found their pack."""

    cookers = (Cooker(cook),)

    @stateless
    def postencode_sample(self, sample: Pending) -> Whole:
        data = sample.file.get(sample)
        return Whole.derive_from(sample, data=data, text=sample.text)

    @stateless
    def select_samples_to_pack(self, samples: list[Pending]) -> list[list[Pending]]:
        odd = [sample for sample in samples if int(sample.text.split()[1]) % 2]
        return [odd[:2], *([sample] for sample in samples if sample not in odd)]

    @stateless
    def pack_selected_samples(self, samples: list[Whole]) -> dict[str, Any]:
        sources = [source for sample in samples for source in sample.__sources__ or ()]
        return {
            "__key__": [sample.__key__ for sample in samples],
            "files": [source.file_names[0] for source in sources],
            "data": b"".join(sample.data for sample in samples).decode(),
        }

    @stateless
    def batch(self, samples: list[Any]) -> list[Any]:
        return samples


def data(path: Path, workers: int) -> Any:
    """Packs for ever."""
    return dataset(path, Packer(), workers=workers, packing_buffer_size=5, batch_size=1, repeat=True)


if __name__ == "__main__":
    pool = FileStoreCachePool(parent_cache_dir=sys.argv[2])
    loader = get_loader(data(Path(sys.argv[1]), 2), cache_pool=pool)
    assert loader.wait_for_workers()
    print(len(list(itertools.islice(loader, 20))), flush=True)
    if sys.argv[3] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
