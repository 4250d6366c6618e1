"""Data in the forms that `convert` reads: pictures with captions in three languages, recordings, a video."""

import csv
import io
import json
import struct
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from click.testing import Result
from PIL import Image

from bridge_data import WorkerConfig, get_loader, get_val_dataset
from bridge_data.data import PreparedDataset, ShardReader, open_shards
from tests import tables
from tests.cli.runner import run_command

CAPTIONS = ('A cat, "sat"\non a mat', "Eine Katze auf der Größe", "マットの上の猫")
NUM = 24


def picture(number: int) -> bytes:
    """Every other one a PNG."""
    pixels = np.random.default_rng(number).integers(0, 256, (6 + number % 3, 8, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG" if number % 2 else "JPEG")
    return stream.getvalue()


def picture_name(number: int) -> str:
    return f"{number:03d}.{'png' if number % 2 else 'jpg'}"


def caption(number: int) -> str:
    return f"{CAPTIONS[number % 3]} {number}"


def recording(number: int) -> bytes:
    frames = (np.sin(np.arange(400) * number / 50) * 9_000).astype("<i2").tobytes()
    with wave.open(stream := io.BytesIO(), "wb") as file:
        file.setparams((1, 2, 8_000, 0, "NONE", ""))
        file.writeframes(frames)
    return stream.getvalue()


def write_media(folder: Path, count: int = NUM) -> Path:
    """Pictures alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / picture_name(number)).write_bytes(picture(number))
    return folder


def write_folder(folder: Path, count: int = NUM) -> Path:
    """Pictures, and captions as texts."""
    write_media(folder, count)
    for number in range(count):
        (folder / f"{number:03d}.txt").write_text(caption(number))
    return folder


def rows(count: int = NUM) -> list[dict[str, Any]]:
    return [{"image": picture_name(number), "caption": caption(number), "source": "test"} for number in range(count)]


def write_jsonl(path: Path, records: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_csv(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, records[0].keys(), delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(records)
    return path


def write_coco(path: Path, count: int = NUM) -> Path:
    """Two captions for each picture but the last, which has none."""
    images = [{"id": number + 100, "file_name": picture_name(number), "width": 8} for number in range(count)]
    texts = [(number + 100, text) for text in ("", " again") for number in range(count - 1)]
    annotations = [
        {"id": at, "image_id": image, "caption": caption(image - 100) + text} for at, (image, text) in enumerate(texts)
    ]
    path.write_text(json.dumps({"info": {"year": 2014}, "annotations": annotations, "images": images}, indent=1))
    return path


def llava(count: int = NUM) -> list[dict[str, Any]]:
    """Conversations about pictures; every fourth is of text alone."""
    return [
        {
            "id": f"chat {number}",
            **({} if number % 4 == 3 else {"image": picture_name(number)}),
            "conversations": [
                {"from": "human", "value": "Hello" if number % 4 == 3 else "<image>\nWhat is this?"},
                {"from": "gpt", "value": caption(number)},
            ],
        }
        for number in range(count)
    ]


def write_mds(folder: Path, records: Sequence[dict[str, Any]], encodings: dict[str, str], **settings: Any) -> Path:
    """MDS shards of ten samples; values are bytes already. `settings`: `compression` and `pack`, which compresses."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(encodings)
    widths = {"int": 8, "float32": 4, "uint8": 1}
    sizes = [widths.get(encodings[name]) for name in names]
    about = {"column_names": names, "column_encodings": [encodings[name] for name in names], "column_sizes": sizes}
    about |= {"compression": settings.get("compression"), "format": "mds", "hashes": [], "size_limit": 1 << 26}
    shards = []
    for number, start in enumerate(range(0, len(records), 10)):
        bodies = []
        for record in records[start : start + 10]:
            lengths = [len(record[name]) for name, size in zip(names, sizes, strict=True) if size is None]
            bodies.append(struct.pack(f"<{len(lengths)}I", *lengths) + b"".join(record[name] for name in names))
        config = json.dumps(about, sort_keys=True).encode()
        begin = 4 + 4 * (len(bodies) + 1) + len(config)
        offsets = np.cumsum([begin, *map(len, bodies)]).astype("<u4").tobytes()
        data = struct.pack("<I", len(bodies)) + offsets + config + b"".join(bodies)
        name = f"shard.{number:05d}.mds"
        entry = about | {"version": 2, "samples": len(bodies), "zip_data": None}
        entry["raw_data"] = {"basename": name, "bytes": len(data), "hashes": {}}
        if "pack" in settings:
            data, name = settings["pack"](data), f"{name}.{settings['compression'].partition(':')[0]}"
            entry["zip_data"] = {"basename": name, "bytes": len(data), "hashes": {}}
        (folder / name).write_bytes(data)
        shards.append(entry)
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))
    return folder


def captioned_mds(folder: Path, count: int = NUM, **settings: Any) -> Path:
    records = [
        {"image": picture(number), "caption": caption(number).encode(), "number": struct.pack("<q", number - 5)}
        for number in range(count)
    ]
    return write_mds(folder, records, {"image": "jpeg", "caption": "str", "number": "int"}, **settings)


def table_of(count: int = NUM) -> pa.Table:
    """Pictures as data sets of Hugging Face have them, with captions."""
    images = [{"bytes": picture(number), "path": picture_name(number)} for number in range(count)]
    texts = [caption(number) for number in range(count)]
    return pa.table({"picture": images, "text": texts, "label": [number % 2 for number in range(count)]})


def write_parquet(path: Path, count: int = NUM, **settings: Any) -> Path:
    return tables.write_parquet(path, table_of(count), **{"per_group": 7} | settings)


def write_arrow(path: Path, table: pa.Table, *, is_file: bool = False) -> Path:
    new = pa.ipc.new_file if is_file else pa.ipc.new_stream
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    return path


def save_to_disk(folder: Path, table: pa.Table) -> Path:
    """The folder that `datasets` saves: its data in two files, with the names of classes in the schema."""
    features = {
        "picture": {"_type": "Image"},
        "text": {"dtype": "string", "_type": "Value"},
        "label": {"names": ["odd", "even"], "_type": "ClassLabel"},
    }
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    tables.save_to_disk(folder, table, per_batch=5, num_files=2)
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def convert(source: Path, target: Path | str, *flags: object, **answers: Any) -> Result:
    """Run `bridge-data convert` with one process."""
    return run_command(
        "convert", source, target, "--no-progress", "--non-interactive", "--num-workers", 1, *flags, **answers
    )


def converted(source: Path, target: Path | str, *flags: object) -> Path:
    """The same, which must succeed."""
    result = convert(source, target, *flags)
    assert result.exit_code == 0, (result.output, result.exception)
    return Path(target)


def captions_and_pictures(folder: Path) -> list[tuple[str, bytes]]:
    """What a loader finds in a data set of captioned pictures: text, and the file of the picture."""
    found = []
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    for part in PreparedDataset.open(folder).split_parts():
        data = get_val_dataset(folder, split_part=part, batch_size=None, worker_config=config, image_decode="rgb8")
        reader = ShardReader(open_shards(folder, part))
        for number, sample in enumerate(get_loader(data)):
            parts = reader.read(number).parts
            (image,) = (parts[name] for name in parts if name in ("jpg", "png"))
            pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB")).astype(int)
            assert np.abs(np.asarray(sample.image, dtype=int) - pixels).max() <= 2
            found.append((sample.caption, image))
    return found


EXPECTED = [(caption(number), picture(number)) for number in range(NUM)]
