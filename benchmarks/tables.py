"""Rates of tables read in place beside those of the same samples as tars, and of the readers of `datasets`.

Input: generated texts of 200 bytes, and JPEGs of 500×400 pixels with captions; as prepared tars, as a Parquet file as
pyarrow writes it by default (JPEGs: row groups of 100 rows, as `datasets` writes them), and as `save_to_disk` saves
them. Output: microseconds of processor time for a sample, of one process without workers, after a first epoch. All are
asked for a slice of an epoch in turn, so that what else runs on the machine changes all of them; a ratio is one of
whole epochs, and its interval is that of the middle half of the epochs.

    python -m benchmarks.tables --peer .venv-peers/datasets/bin/python

The peer makes batches of as many samples, in five ways: `file` (the Parquet file itself, streamed with a buffer of 100
samples), and of what `save_to_disk` saves `map` (`Dataset.shuffle`, one sample after the other), `stream` (an iterable
data set with a buffer of 100 samples), `batches` (`Dataset.shuffle`, batch by batch) and `columns` (batch by batch, not
shuffled); the last two of texts alone, as they are not decoded. JPEGs are decoded to uint8 by both: the
same pixels, here by simplejpeg, there by Pillow. `decoding` is bare: of JPEGs that are in memory, into the same buffer.
"""

import argparse
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg
from PIL import Image

from bridge_data import (
    CaptioningSample,
    DefaultTaskEncoder,
    SampleDecoder,
    TextSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from tests.prepared import write_dataset

BATCH = 32
NUM_TEXTS, NUM_PICTURES = 100_000, 640
CAPTIONED = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "CaptioningSample"},
    "field_map": {"image": "jpg", "caption": "txt"},
}
TEXT_FIELDS: dict[str, Any] = {"sample_type": TextSample, "field_map": {"text": "text"}}
PICTURE_FIELDS: dict[str, Any] = {
    "sample_type": CaptioningSample,
    "field_map": {"image": "image", "caption": "caption"},
}

PEER = """
import sys, time
import numpy, datasets
path, pictures, way = sys.argv[1], sys.argv[2] == "jpeg", sys.argv[3]
if way == "file":
    data = datasets.load_dataset("parquet", data_files=path, split="train", streaming=True)
else:
    data = datasets.load_from_disk(path)
def by_sample(data):
    while True:
        samples = []
        for sample in data:
            if pictures:
                sample["image"] = numpy.asarray(sample["image"].convert("RGB"))
            samples.append(sample)
            if len(samples) == 32:
                batch = {name: [one[name] for one in samples] for name in samples[0]}
                if pictures:
                    batch["image"] = numpy.stack(batch["image"])
                yield batch
                samples = []
def by_batch(data):
    while True:
        yield from data.iter(32)
batches = {
    "file": lambda: by_sample(data.shuffle(seed=1, buffer_size=100)),
    "map": lambda: by_sample(data.shuffle(seed=1)),
    "stream": lambda: by_sample(data.to_iterable_dataset(num_shards=16).shuffle(seed=1, buffer_size=100)),
    "batches": lambda: by_batch(data.shuffle(seed=1)),
    "columns": lambda: by_batch(data),
}[way]()
for line in sys.stdin:
    begin = time.process_time()
    for _ in range(int(line)):
        next(batches)
    print(time.process_time() - begin, flush=True)
"""
WAYS = {"text": ("file", "map", "stream", "batches", "columns"), "jpeg": ("file", "map", "stream")}
SLICES = {"text": 25, "jpeg": 5}
"""Slices of an epoch."""


class Pixels(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Decodes to uint8."""

    decoder = SampleDecoder(image_decode="torchrgb8")


def text(number: int) -> str:
    """A text of 200 bytes."""
    return f"{number:08d} " + "the quick brown fox jumps over a lazy dog " * 4 + "and some 23 bytes more."


def picture(number: int) -> bytes:
    """A JPEG of about 55 KB."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 255, (25, 20, 3), dtype=np.uint8)).resize((500, 400))
    noise = rng.integers(-25, 25, (400, 500, 3))
    file = io.BytesIO()
    Image.fromarray((np.asarray(coarse) + noise).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=78)
    return file.getvalue()


def write(folder: Path) -> None:
    """All data sets."""
    texts = [text(number) for number in range(NUM_TEXTS)]
    write_dataset(
        folder / "text.tars", ({"__key__": f"{n:08d}", "txt": one} for n, one in enumerate(texts)), per_shard=10_000
    )
    _write_tables(folder, "text", pa.table({"text": texts}), 1 << 20, 1_000)
    pictures = [picture(number % 200) for number in range(NUM_PICTURES)]
    samples = ({"__key__": f"{n:06d}", "jpg": one, "txt": f"caption {n}"} for n, one in enumerate(pictures))
    write_dataset(folder / "jpeg.tars", samples, per_shard=100, definition=CAPTIONED)
    images = [{"bytes": one, "path": f"{number}.jpg"} for number, one in enumerate(pictures)]
    table = pa.table({"image": images, "caption": [f"caption {n}" for n in range(NUM_PICTURES)]})
    features = {"image": {"_type": "Image"}, "caption": {"dtype": "string", "_type": "Value"}}
    metadata = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    _write_tables(folder, "jpeg", table.replace_schema_metadata(metadata), 100, 100)


def _write_tables(folder: Path, name: str, table: pa.Table, per_group: int, per_batch: int) -> None:
    pq.write_table(table, folder / f"{name}.parquet", row_group_size=per_group)
    saved = folder / f"{name}.saved"
    saved.mkdir()
    with (
        pa.OSFile(str(saved / "data-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as out,
    ):
        out.write_table(table, max_chunksize=per_batch)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "0", "_split": None}
    state |= {"_format_columns": None, "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False}
    (saved / "state.json").write_text(json.dumps(state))
    described = json.loads((table.schema.metadata or {}).get(b"huggingface", b'{"info": {}}'))["info"]
    (saved / "dataset_info.json").write_text(json.dumps(described))


def batches_of(path: Path, fields: dict[str, Any]) -> Iterator[Any]:
    """Batches without end."""
    data = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=BATCH,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=Pixels(),
        **fields,
    )
    return iter(get_savable_loader(data))


def decoded(jpegs: list[bytes]) -> Iterator[Any]:
    """Nothing but the work of decoding a batch, without end."""
    pixels = np.empty((400, 500, 3), np.uint8)
    while True:
        for begin in range(0, len(jpegs), BATCH):
            for jpeg in jpegs[begin : begin + BATCH]:
                simplejpeg.decode_jpeg(jpeg, "RGB", buffer=pixels)
            yield None


def timed(batches: Iterator[Any], count: int) -> float:
    """Seconds of processor time that `count` batches take."""
    begin = time.process_time()
    for _ in range(count):
        next(batches)
    return time.process_time() - begin


def serve(kind: str, path: Path) -> None:
    """Say how long as many batches take as each line that comes in asks for."""
    if kind == "decoding":
        batches = decoded([picture(number) for number in range(200)])
    else:
        fields = TEXT_FIELDS if path.name.startswith("text") else PICTURE_FIELDS
        batches = batches_of(path, {} if kind == "tars" else fields)
    for line in sys.stdin:
        print(timed(batches, int(line)), flush=True)


class Reader:
    """A reader in a process of its own: what the others hold is nothing to its garbage collector."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def timed(self, count: int) -> float:
        """Seconds of processor time that `count` batches take."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def compare(runs: dict[str, Callable[[int], float]], num_batches: int, num_slices: int, epochs: int) -> None:
    """Print the time of a sample in each of `runs`, and how many times as fast it is as each other."""
    for run in runs.values():
        run(num_batches)
    times: dict[str, list[float]] = {kind: [0.0] * epochs for kind in runs}
    for epoch in range(epochs):
        for _ in range(num_slices):
            for kind, run in runs.items():
                times[kind][epoch] += run(num_batches // num_slices)
    for kind, found in times.items():
        beside = []
        for other, theirs in times.items():
            if other != kind:
                ratios = sorted(their / own for own, their in zip(found, theirs, strict=True))
                middle = ratios[epochs // 4], ratios[-1 - epochs // 4]
                beside.append(f"{statistics.median(ratios):.2f} ({middle[0]:.2f}-{middle[1]:.2f}) x {other}")
        sample_us = statistics.median(found) / (num_batches * BATCH) * 1e6
        print(f"{kind:10} {sample_us:8.2f} us a sample   {', '.join(beside)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="A Python with `datasets` and Pillow.")
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--only", choices=("text", "jpeg"))
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], Path(options.serve[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root)
        for name, size in (("text", NUM_TEXTS), ("jpeg", NUM_PICTURES)):
            if options.only not in (None, name):
                continue
            own = [sys.executable, "-m", "benchmarks.tables", "--serve"]
            kinds = ["parquet", "saved", "tars", *(["decoding"] if name == "jpeg" else [])]
            readers = {kind: Reader([*own, kind, str(root / f"{name}.{kind}")]) for kind in kinds}
            if options.peer:
                for way in WAYS[name]:
                    path = root / f"{name}.{'parquet' if way == 'file' else 'saved'}"
                    readers[way] = Reader([options.peer, "-c", PEER, str(path), name, way])
            print(f"{name}:")
            runs = {kind: reader.timed for kind, reader in readers.items()}
            compare(runs, size // BATCH, SLICES[name], options.epochs)
            for reader in readers.values():
                reader.close()


if __name__ == "__main__":
    main()
