"""Chunks of litData, written without it."""

import itertools
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

LEAF = {"type": None, "context": None, "children_spec": []}


def tree(names: Sequence[str]) -> str:
    """The tree of a sample that is a dict of fields."""
    root = {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [LEAF] * len(names)}
    return json.dumps([1, root])


def write_index(folder: Path, formats: Mapping[str, str], counts: Mapping[str, int], **config: Any) -> Path:
    whole = {
        "compression": None,
        "data_format": [*formats.values()],
        "data_spec": tree([*formats]),
        "encryption": None,
        "item_loader": "PyTreeLoader",
    }
    chunks = [{"chunk_bytes": 0, "chunk_size": count, "dim": None, "filename": name} for name, count in counts.items()]
    (folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": whole | config}))
    return folder


def write_chunks(folder: Path, samples: Sequence[dict[str, bytes]], formats: Mapping[str, str], **config: Any) -> Path:
    """Chunks of ten samples, whose values are bytes already."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for number, start in enumerate(range(0, len(samples), 10)):
        items = [
            struct.pack(f"<{len(formats)}I", *(len(sample[name]) for name in formats))
            + b"".join(sample[name] for name in formats)
            for sample in samples[start : start + 10]
        ]
        offsets = [*itertools.accumulate(map(len, items), initial=4 + 4 * (len(items) + 1))]
        name = f"chunk-0-{number}.bin"
        (folder / name).write_bytes(struct.pack(f"<{1 + len(offsets)}I", len(items), *offsets) + b"".join(items))
        counts[name] = len(items)
    return write_index(folder, formats, counts, **config)


def write_rows(folder: Path, table: pa.Table, **config: Any) -> Path:
    """A chunk of samples without media, as newer versions of litData write them."""
    folder.mkdir(parents=True, exist_ok=True)
    sink, count = pa.BufferOutputStream(), len(table)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=256)
    rows = sink.getvalue().to_pybytes()
    head = struct.pack(f"<{count + 2}I", count, *[4 + 4 * (count + 1)] * (count + 1))
    (folder / "chunk-0-0.bin").write_bytes(head + rows + struct.pack("<I", len(rows)) + b"LDARW01\0")
    return write_index(folder, dict.fromkeys(table.schema.names, "str"), {"chunk-0-0.bin": count}, **config)
