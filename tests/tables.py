"""Tables for tests: Parquet files, and folders as `datasets` saves them, both written by pyarrow."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bridge_data.plan import Source, load_plan
from tests.prepared import TEXT

IMAGE = {"_type": "Image"}
"""The feature of a column of pictures."""


def table_of(columns: Mapping[str, Any], features: Mapping[str, Any] | None = None) -> pa.Table:
    """A table of columns, of which some are a feature of `datasets`."""
    table = pa.table(dict(columns))
    if features is None:
        return table
    described = {"info": {"features": features}}
    return table.replace_schema_metadata({b"huggingface": json.dumps(described).encode()})


def write_parquet(file: Path, table: pa.Table, *, per_group: int = 50, **options: Any) -> Path:
    """A Parquet file with row groups of `per_group` rows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file, row_group_size=per_group, **options)
    return file


def save_to_disk(folder: Path, table: pa.Table, *, per_batch: int = 50, num_files: int = 1) -> Path:
    """A folder as `Dataset.save_to_disk` of `datasets` 5.2 makes it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{number:05d}-of-{num_files:05d}.arrow" for number in range(num_files)]
    for number, name in enumerate(names):
        first, end = (len(table) * at // num_files for at in (number, number + 1))
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(first, end - first), max_chunksize=per_batch)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def write_text_table(path: Path, size: int, text: Callable[[int], str] = str, *, per_group: int = 50) -> Path:
    """Text samples, as a file `.parquet`, or else as a saved data set of two files."""
    table = table_of({"text": [text(number) for number in range(size)]})
    if path.suffix == ".parquet":
        return write_parquet(path, table, per_group=per_group)
    return save_to_disk(path, table, per_batch=per_group, num_files=2 if size > 1 else 1)


def write_table_blend(
    file: Path, weights: Mapping[str, float], *, epochized: bool = False, where: Mapping[str, str] | None = None
) -> Path:
    """A metadataset that blends tables of text samples beside it, with the condition `where` of each."""
    kind, key = ("blend_epochized", "repetitions") if epochized else ("blend", "weight")
    fields: Mapping[str, Any] = {**TEXT, "field_map": {"text": "text"}}
    conditions = {path: {"where": text} for path, text in (where or {}).items()}
    items: Sequence[Any] = [
        {"path": path, key: weight, **fields, **conditions.get(path, {})} for path, weight in weights.items()
    ]
    head = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    file.write_text(json.dumps({**head, "splits": {"train": {kind: items}}}))
    return file


def opened(path: Path | str, **options: Any) -> Source:
    """The source at `path`, which must be one."""
    (source,) = load_plan(path, **options).sources
    return source


def read(source: Source) -> list[str]:
    """The texts of its samples."""
    reader = source.records.reader()
    return [reader.read(index).parts["text"] for index in range(source.num_samples)]
