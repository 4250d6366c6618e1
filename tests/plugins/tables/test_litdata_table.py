"""Rows of litData's chunks: the values that litData itself reads; damage is told, and nothing is unpickled."""

import io
import json
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bridge_data.data.records import place_of
from bridge_data.errors import ConfigError, DatasetError
from tests.data.chunks import LEAF, write_chunks, write_index
from tests.data.test_folders_of_tables import WRITERS
from tests.tables import opened, read

THEIRS = Path(__file__).parent / "chunks_written_by_litdata"
"""Written by `BinaryWriter` of litdata 0.2.76: samples 0 to 4 of `KINDS`, compressed by zstd if they are packed."""


def picture(number: int, form: str | None = None) -> Any:
    """Noise, or of one colour, out of a file."""
    noise = np.random.default_rng(number).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    if form is None:
        return Image.fromarray(noise)
    stream = io.BytesIO()
    Image.new("RGB", (4, 3), tuple(noise[0, 0].tolist())).save(stream, form)
    return Image.open(stream)


def fields(number: int) -> dict[str, Any]:
    """A sample whose fields are stored one after the other."""
    return {
        "i": number - 3,
        "f": number / 4,
        "t": "é" * number,
        "b": bytes([number % 256]) * number,
        "flag": number % 2 == 0,
        "jpeg": picture(number, "JPEG"),
        "pil": picture(number),
        "array": np.arange(2 * number + 2, dtype=np.int16).reshape(2, -1),
        "line": np.arange(number, dtype=np.float32),
        "tensor": torch.arange(6).reshape(2, 3) - number,
        "tokens": torch.arange(number, dtype=torch.int32),
        "of": {"x": number, "y": (float(number), "z")},
    }


def rows(number: int) -> dict[str, Any]:
    """A sample that newer versions store as a row of Arrow."""
    return {"text": f"text {number} ö", "n": number, "list": [number] * (number % 3), "of": {"x": [number], "y": "é"}}


def tokens(number: int) -> torch.Tensor:
    return torch.arange(number + 1, dtype=torch.int64) * 7


KINDS = {"fields": fields, "packed": fields, "rows": rows, "packed_rows": rows, "tokens": tokens}


def as_read(value: Any) -> Any:
    """A value to compare: the pixels of images, and arrays and tensors as lists with their type."""
    if isinstance(value, bytes) and value.startswith((b"\xff\xd8", b"\x89PNG")):
        value = Image.open(io.BytesIO(value))
    if isinstance(value, (Image.Image, memoryview)):
        return np.asarray(value).tolist() if isinstance(value, Image.Image) else bytes(value)
    return (str(value.dtype), value.tolist()) if isinstance(value, (np.ndarray, torch.Tensor)) else value


def flat(sample: Any, kind: str) -> dict[str, Any]:
    """A sample by the names that its parts get here."""
    if kind == "tokens":
        return {"tokens": as_read(sample)}
    if kind.endswith("rows"):
        return dict(sample)
    of = sample["of"]
    named = {**sample, "of.x": of["x"], "of.y.0": of["y"][0], "of.y.1": of["y"][1]}
    return {name: as_read(value) for name, value in named.items() if name != "of"}


def found(parts: dict[str, Any]) -> dict[str, Any]:
    return {"pil" if name == "pil.jpg" else name: as_read(value) for name, value in parts.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_that_they_wrote(kind: str) -> None:
    source = opened(THEIRS / kind)
    reader = source.records.reader()
    assert source.num_samples == 5 and len(source.records.shards) >= 2
    singly = [found(reader.read(number).parts) for number in range(5)]
    first = source.records.shards[0][1]
    block = reader.read_block(range(first), None)
    assert block is not None
    contents = [{block.name: content} if block.name else content for content in block.contents]
    assert [found(content) for content in contents] == singly[:first]
    for number, mine in enumerate(singly):
        wanted = flat(KINDS[kind](number), kind)
        if "jpeg" in wanted:  # which litData encoded, once more
            assert np.abs(np.subtract(mine.pop("jpeg"), wanted.pop("jpeg"))).max() <= 4
        assert mine == wanted
    names = {"packed": "chunk-0-0.zstd.bin"}
    assert reader.read(1).full_key == place_of(source.records, 1) == f"{names.get(kind, 'chunk-0-0.bin')}/1"


def test_older_tensors_have_their_shape_in_the_other_order(tmp_path: Path) -> None:
    values = [torch.arange(int(np.prod(shape)), dtype=torch.int16).reshape(shape) for shape in [(2, 3), (), (0, 4)]]
    samples = [
        {"a": struct.pack(f"{order}{2 + len(one.shape)}I", 13, len(one.shape), *one.shape) + one.numpy().tobytes()}
        for one in values
        for order in "<>"
    ]
    reader = opened(write_chunks(tmp_path / "a", samples, {"a": "tensor"})).records.reader()
    for number, value in enumerate(value for value in values for _ in "<>"):
        assert as_read(reader.read(number).parts["a"]) == as_read(value)


def test_a_chunk_that_litdata_unpacked_is_read_in_the_place_of_the_compressed_one(tmp_path: Path) -> None:
    path = shutil.copytree(THEIRS / "packed", tmp_path / "a")
    (path / "chunk-0-0.zstd.bin").unlink()
    with pytest.raises(DatasetError, match=r"chunk-0-0\.bin: no such file"):
        opened(path)
    shutil.copy(THEIRS / "fields" / "chunk-0-0.bin", path)
    sample = opened(path).records.reader().read(1)
    assert sample.full_key == "chunk-0-0.zstd.bin/1" and sample.parts["t"] == "é"


def test_chunks_are_named_by_a_pattern(tmp_path: Path) -> None:
    WRITERS["litData"](tmp_path / "a", range(25))
    assert read(opened(tmp_path / "a" / "chunk-0-[12].bin")) == [f"text {n}" for n in range(10, 25)]
    (tmp_path / "corpus.bin").write_bytes(b"x" * 100)
    with pytest.raises(ConfigError, match=r"corpus\.bin: expected a folder of tars or tables"):
        opened(tmp_path / "corpus.bin")


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "pickle": ({"data_format": ["str", "pickle"]}, "field 'b' holds pickles, which are never read"),
    "graph": ({"data_format": ["str", "graph"]}, "field 'b' holds 'graph'"),
    "encrypted": ({"encryption": {"algorithm": "fernet"}}, "its chunks are encrypted"),
    "batches": ({"compression": "zstd", "compression_level": "batch"}, "its chunks are compressed by the batch"),
    "lz4": ({"compression": "lz4"}, "its chunks are compressed by lz4"),
    "Parquet": ({"item_loader": "ParquetLoader"}, "its chunks are for a ParquetLoader"),
    "no tree": ({"data_spec": None}, "is not the index of litData"),
    "fields": ({"data_format": ["str"]}, "is not the index of litData"),
    "deep": ({"data_spec": '[1, {"type": "dict"}]'}, "is not the index of litData: KeyError"),
}


def test_what_is_not_read_is_refused(tmp_path: Path) -> None:
    for name, (config, told) in REFUSALS.items():
        sample = {"a": b"1", "b": pickle.dumps(1)}
        path = write_chunks(tmp_path / name, [sample], {"a": "str", "b": "bytes"}, **config)
        with pytest.raises(ConfigError, match=rf"{path}.*{told}"):
            opened(path)
    for counts in ({"../chunk-0-0.bin": 1}, {"chunk-0-0.bin": "1"}, {}):
        write_index(path, {"a": "str"}, counts)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=str(path)):
            opened(path)


@pytest.mark.parametrize("kind", ["fields", "packed", "rows", "tokens"])
def test_a_chunk_with_another_number_of_samples_than_the_index_says_is_an_error(tmp_path: Path, kind: str) -> None:
    path = Path(shutil.copytree(THEIRS / kind, tmp_path / kind))
    index = json.loads((path / "index.json").read_text())
    index["chunks"][1]["chunk_size"] += 1
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(DatasetError, match=r"chunk-0-1.*bin: has \d samples, but index\.json says \d"):
        opened(path)


LISTED = {"type": "collections.OrderedDict", "context": '["x", "y"]', "children_spec": [LEAF, LEAF]}


@pytest.mark.parametrize(
    ("node", "names"),
    [
        (LEAF, ["value"]),
        ({"type": "builtins.tuple", "context": "null", "children_spec": [LEAF, LEAF]}, ["0", "1"]),
        ({"type": "builtins.list", "context": "null", "children_spec": [LISTED]}, ["0.x", "0.y"]),
    ],
)
def test_names_are_paths_in_a_sample(tmp_path: Path, node: dict[str, Any], names: list[str]) -> None:
    formats = dict.fromkeys(names, "str")
    write_chunks(tmp_path, [dict.fromkeys(names, b"1")], formats, data_spec=f"[1, {json.dumps(node)}]")
    assert list(opened(tmp_path).records.reader().read(0).parts) == names
