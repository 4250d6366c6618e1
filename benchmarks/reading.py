"""Reads and bytes per sample, by data format and shuffle window.

Input: generated data sets of 1 KB texts and of 55 KB parts, as tars, compressed tars, JSONL and objects of an S3
server. Output: for each `shuffle_buffer_size`, the number of reads (or requests to the store) and the bytes read per
sample, over one epoch of 8 lanes in one process.

    python -m benchmarks.reading
"""

import contextlib
import functools
import gzip
import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridge_data import (
    Cooker,
    DefaultTaskEncoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_loader,
    get_train_dataset,
    stateless,
    storage,
)
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.prepare.splits import parse_ratio, split_by_ratio
from bridge_data.prepare.tars import prepare
from bridge_data.shards import tar_files
from bridge_data.storage import remote
from tests.object_store import Server, environment
from tests.prepared import write_dataset

WINDOWS = (1_024, 10_000, 1_000_000)
CHUNK = 100
SIZES = {"text": (40_000, 1_000), "large": (1_600, 55_000)}


@stateless
def text_of(sample: dict[str, Any]) -> TextSample:
    """A line of the JSONL files."""
    return TextSample(**basic_sample_keys(sample), text=sample["json"]["text"])


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Takes texts as they are."""

    cookers = (Cooker(text_of),)


class Count:
    """Reads of data files and requests for objects, and their bytes."""

    def __init__(self) -> None:
        self.num = self.num_bytes = 0

    def add(self, num_bytes: int) -> None:
        """Count one read."""
        self.num += 1
        self.num_bytes += num_bytes


@contextlib.contextmanager
def counted() -> Iterator[Count]:
    """Count what is read from here on."""
    count = Count()
    read, pread, request = storage.read, tar_files.GzipTar.read_exactly, remote._range

    def local(path: Any, start: int, num_bytes: int) -> bytes:
        if not storage.is_remote(path):
            count.add(num_bytes)
        return read(path, start, num_bytes)

    def inside(tar: tar_files.GzipTar, start: int, num_bytes: int) -> bytes:
        count.add(num_bytes)
        return pread(tar, start, num_bytes)

    def ranged(url: str, start: int, num_bytes: int) -> Any:
        count.add(num_bytes)
        return request(url, start, num_bytes)

    storage.read, tar_files.GzipTar.read_exactly, remote._range = local, inside, ranged  # type: ignore[method-assign]
    remote._known.after_fork()  # its threads call the one that counts
    try:
        yield count
    finally:
        storage.read, tar_files.GzipTar.read_exactly, remote._range = read, pread, request  # type: ignore[method-assign]
        remote._known.after_fork()


def made(folder: Path, size: str) -> dict[str, Path]:
    """Data sets of one size of sample, by their kind."""
    num_samples, num_bytes = SIZES[size]
    rng = random.Random(0)
    contents = [rng.randbytes(num_bytes // 2).hex() for _ in range(50)]
    tars = write_dataset(
        folder / f"{size}-tar",
        ({"__key__": f"{n:06d}", "txt": f"{n} {contents[n % 50]}"} for n in range(num_samples)),
        per_shard=num_samples // 8,
    )
    compressed = folder / f"{size}-gzip"
    compressed.mkdir()
    for tar in sorted(tars.glob("*.tar")):
        (compressed / tar.name).with_suffix(".tgz").write_bytes(gzip.compress(tar.read_bytes(), compresslevel=1))
    prepare(compressed, functools.partial(split_by_ratio, ratio=parse_ratio("1,0,0")))
    (compressed / ".nv-meta/dataset.yaml").write_text((tars / ".nv-meta/dataset.yaml").read_text())
    lines = folder / f"{size}.jsonl"
    with open(lines, "w") as file:
        for number in range(num_samples):
            file.write(json.dumps({"text": f"{number} {contents[number % 50]}"}) + "\n")
    prepare_jsonl(lines)
    return {"tar": tars, "gzip": compressed, "JSONL": lines}


def measure(path: str, window: int, num_samples: int) -> tuple[float, float]:
    """(reads, bytes) a sample, of one epoch."""
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_train_dataset(
        path,
        worker_config=config,
        task_encoder=Encoder(),
        batch_size=None,
        shuffle_buffer_size=window,
        max_samples_per_sequence=CHUNK,
        repeat=False,
    )
    with counted() as count, get_loader(dataset) as loader:
        seen = sum(1 for _ in loader)
    if seen != num_samples:
        raise RuntimeError(f"{path}: {seen} samples in an epoch, of {num_samples}")
    return count.num / seen, count.num_bytes / seen


def main() -> None:
    """Print the table."""
    print(f"{'data':10}{'bytes':>8}" + "".join(f"{f'window {window:,}':>26}" for window in WINDOWS))
    print(f"{'':18}" + f"{'reads':>14}{'bytes':>12}" * len(WINDOWS))
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = Server(root)
        server.start()
        stack.callback(server.kill)
        os.environ.update(environment(server.port), BRIDGE_DATA_CACHE=str(root / "cache"))
        (root / "bench").mkdir()
        for size, (num_samples, num_bytes) in SIZES.items():
            kinds = {kind: str(path) for kind, path in made(root / "bench", size).items()}
            kinds |= {f"S3 {kind}": f"s3://bench/{Path(kinds[kind]).name}" for kind in ("tar", "JSONL")}
            for kind, path in kinds.items():
                row = [measure(path, window, num_samples) for window in WINDOWS]
                cells = "".join(f"{reads:14.4f}{read_bytes:12,.0f}" for reads, read_bytes in row)
                print(f"{kind:10}{num_bytes:8,}{cells}", flush=True)


if __name__ == "__main__":
    main()
