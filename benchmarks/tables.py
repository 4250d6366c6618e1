"""Rates of tables read in place beside those of the same samples as tars, and of the reader of `datasets`.

Input: generated texts of 200 bytes, and JPEGs of 500×400 pixels with captions; as prepared tars, as a Parquet file as
pyarrow writes it by default (JPEGs: row groups of 100 rows, as `datasets` writes them), and as `save_to_disk` saves
them. Output: samples per second of processor time (so that what else runs does not
matter) of one process without workers, after a first epoch; each figure is the median of rounds
that take turns.

    python -m benchmarks.tables --peer .venv-peers/datasets/bin/python

The peer shuffles in its two ways, by `Dataset.shuffle` ("map") and by a buffer of 100 samples of an iterable data set
("stream"), and makes batches of as many samples; JPEGs are decoded to uint8 by both.
"""

import argparse
import functools
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
NUM_TEXTS, NUM_PICTURES = 100_000, 600
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
import json, sys, time
import numpy, datasets
path, seconds, pictures = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "jpeg"
shuffle = {"map": lambda data: data.shuffle(seed=1), "stream": lambda data: (
    data.to_iterable_dataset(num_shards=16).shuffle(seed=1, buffer_size=100))}[sys.argv[4]]
data = shuffle(datasets.load_from_disk(path))
def batches():
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
stream = batches()
begin = time.process_time()
while time.process_time() - begin < seconds / 4:
    next(stream)
begin, count = time.process_time(), 0
while time.process_time() - begin < seconds:
    count += len(next(stream)["text" if not pictures else "image"])
print(json.dumps(count / (time.process_time() - begin)))
"""


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
    """Batches without end, after a first epoch."""
    data = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=BATCH,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=Pixels(),
        **fields,
    )
    loader = iter(get_savable_loader(data))
    for _ in range((NUM_TEXTS if path.name.startswith("text") else NUM_PICTURES) // BATCH):
        next(loader)
    return loader


def rate(batches: Iterator[Any], seconds: float) -> float:
    """Samples a second."""
    begin, count = time.process_time(), 0
    while time.process_time() - begin < seconds:
        next(batches)
        count += BATCH
    return count / (time.process_time() - begin)


def peer_rate(command: list[str]) -> float:
    """Samples a second of the peer."""
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="A Python with `datasets` and Pillow.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("text", "jpeg"))
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root)
        for name, fields in (("text", TEXT_FIELDS), ("jpeg", PICTURE_FIELDS)):
            if options.only not in (None, name):
                continue
            runs: dict[str, Callable[[], float]] = {}
            for kind, given in (("tars", {}), ("parquet", fields), ("saved", fields)):
                batches = batches_of(root / f"{name}.{kind}", given)
                runs[kind] = functools.partial(rate, batches, options.seconds)
            if options.peer:
                for kind in ("map", "stream"):
                    command = [options.peer, "-c", PEER, str(root / f"{name}.saved"), str(options.seconds), name, kind]
                    runs[f"datasets {kind}"] = functools.partial(peer_rate, command)
            figures: dict[str, list[float]] = {kind: [] for kind in runs}
            for _ in range(options.rounds):
                for kind, run in runs.items():
                    figures[kind].append(run())
            rates = {kind: statistics.median(found) for kind, found in figures.items()}
            for kind, found in rates.items():
                beside = [
                    f"{found / other:.2f} × {other_kind}" for other_kind, other in rates.items() if other_kind != kind
                ]
                print(f"{name:5} {kind:16} {found:10,.0f} samples/s   {', '.join(beside)}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
