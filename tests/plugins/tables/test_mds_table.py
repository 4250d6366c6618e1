"""Rows of MDS shards: the values that MosaicML's own package wrote; damage is told, and nothing is unpickled."""

import bz2
import functools
import gzip
import io
import json
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from bridge_data.data.records import place_of
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan.opening import split_parts
from bridge_data.plugins.tables.binary_shard import BinaryShard
from bridge_data.plugins.tables.mds_table import MdsTable
from bridge_data.plugins.tables.table_columns import Column, TableFile
from tests.data.test_folders_of_tables import FORMATS, WRITERS, samples
from tests.plugins.convert.originals import captioned_mds, picture, write_mds
from tests.tables import opened, read

THEIRS = Path(__file__).parent / "mds_written_by_mosaicml"


def write(folder: Path, count: int, **settings: Any) -> Path:
    """Shards of ten samples."""
    return write_mds(folder, samples(range(count)), FORMATS, **settings)


def column(name: str) -> Column:
    return Column(name, name, name)


def as_read(value: Any) -> Any:
    """A value to compare: the pixels of images, and arrays as lists with their type."""
    if isinstance(value, bytes) and value.startswith((b"\xff\xd8", b"\x89PNG")):
        value = Image.open(io.BytesIO(value))
    if isinstance(value, list):
        return [as_read(one) for one in value]
    if isinstance(value, Image.Image):
        return value.mode, np.asarray(value).tolist()
    return (str(value.dtype), value.tolist()) if isinstance(value, np.ndarray) else value


def test_values_of_every_encoding_of_their_own_writer() -> None:
    source = opened(THEIRS)
    assert source.records.identity() == {"tables": [["shard.00000.mds", 9207, "b2ebea2be055c48f"]]}
    reader = source.records.reader()
    assert [place_of(source.records, 1), reader.read(1).full_key] == ["shard.00000.mds/1"] * 2
    block = reader.read_block(range(3), None)
    assert block is not None
    for number in range(3):
        values = {name.partition(".")[0]: as_read(value) for name, value in reader.read(number).parts.items()}
        assert {name.partition(".")[0]: as_read(one) for name, one in block.contents[number].items()} == values
        pixels = np.random.default_rng(number).integers(0, 255, (2, 3, 3), dtype=np.uint8).tolist()
        assert [values.pop(name) for name in ("img", "p")] == [("RGB", pixels)] * 2
        assert [np.shape(image[1]) for name in ("l", "da") for image in values.pop(name)] == [(2, 3, 3)] * 4
        assert values == {
            "a": ("int32", (np.arange(6).reshape(2, 3) + number).tolist()),
            "d": ("int16", (np.arange(4).reshape(2, 2) + number).tolist()),
            "f": number / 4,
            "h": float(number),
            "j": {"x": [number]},
            "n": number - 3,
            "sd": "1.50",
            "sf": 1.5,
            "si": 10**20,
            "t": f"text {number} ö",
            "u": number,
        }


def packed(codec: str) -> Any:
    return functools.partial(pa.compress, codec=codec, asbytes=True)


@pytest.mark.parametrize(
    ("form", "pack"),
    [
        ("gz", lambda data: gzip.compress(data) + bytes(3)),
        ("bz2", bz2.compress),
        ("zstd:1", packed("zstd")),
        ("br", packed("brotli")),
    ],
)
def test_compressed_shards_are_read_and_files_that_someone_unpacked_too(tmp_path: Path, form: str, pack: Any) -> None:
    path = write(tmp_path / "a", 25, compression=form, pack=pack)
    source, file = opened(path), next(path.glob("shard.00001.*"))
    assert read(source) == [f"text {n}" for n in range(25)]
    assert source.records.shards[1][0] == "shard.00001.mds"
    whole = file.read_bytes()
    for damaged in (whole[:-9], whole[: len(whole) // 2], whole[:40] + bytes([whole[40] ^ 255]) + whole[41:]):
        file.write_bytes(damaged)
        with pytest.raises(DatasetError, match=rf"{file}: "):
            read(opened(path))
    shutil.copy(write(tmp_path / "b", 25) / "shard.00001.mds", path)
    assert read(opened(path)) == [f"text {n}" for n in range(25)]


def test_a_shard_that_would_take_too_much_memory_and_an_unknown_compression_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", 25, compression="gz", pack=gzip.compress)
    with pytest.raises(ConfigError, match=r"00000\.mds\.gz: has \d+ bytes when unpacked, more than the 450 allowed"):
        MdsTable(str(path / "shard.00000.mds"), max_unpacked_bytes=450)
    (path / "shard.00000.mds.gz").rename(path / "shard.00000.mds.snappy")
    with pytest.raises(ConfigError, match=r"snappy is none of gz, bz2, zstd, br: unpack the file beside it"):
        opened(path)


def test_indexes_of_split_parts_may_be_merged(tmp_path: Path) -> None:
    for name, numbers in (("val", range(5)), ("train", range(5, 30))):
        WRITERS["MDS"](tmp_path / name, numbers)
    entries = [
        entry | {"raw_data": entry["raw_data"] | {"basename": f"{name}/{entry['raw_data']['basename']}"}}
        for name in ("train", "val")
        for entry in json.loads((tmp_path / name / "index.json").read_text())["shards"]
    ]
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    assert split_parts(tmp_path) == ["train"]
    assert read(opened(tmp_path)) == [f"text {n}" for n in (*range(5, 30), *range(5))]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_shard_with_another_number_of_samples_than_the_index_says_is_an_error(
    tmp_path: Path, compression: str | None
) -> None:
    path = write(tmp_path / "a", 25, compression=compression)
    index = json.loads((path / "index.json").read_text())
    index["shards"][1]["samples"] += 1
    (path / "index.json").write_text(json.dumps(index))
    for place in (path, path / "*.mds") if compression is None else (path,):
        with pytest.raises(DatasetError, match=r"shard\.00001\.mds.* has 10 samples, but index\.json says 11"):
            opened(place)


def test_shards_by_a_pattern_need_no_index(tmp_path: Path) -> None:
    path = write(tmp_path / "a", 25)
    (path / "index.json").unlink()
    assert read(opened(f"{path}/shard.0000[12].mds")) == [f"text {n}" for n in range(10, 25)]
    with pytest.raises(ConfigError, match=rf"{path}: there are shards, but no index\.json"):
        opened(path)


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ({"column_encodings": ["str", "pkl", "int"]}, "'image' holds pickles, which are never read"),
        ({"column_encodings": ["str", "opus", "int"]}, "has the encoding 'opus', which is not known"),
        *(
            ({"raw_data": {"basename": f"{name}.mds", "bytes": 900}}, "which is not in its folder")
            for name in ("../../x", "x" * 5000, "\ud800")
        ),
        ({"format": "json"}, "has the format 'json' in version 2; expected mds"),
        ({"version": 3}, "in version 3"),
        ({"samples": 10**9}, "its sizes are impossible"),
        ({"column_sizes": [None, -1, 8]}, "its sizes are impossible"),
        ({"samples": None}, "its sizes are impossible"),
        ({"raw_data": None}, "is not valid MDS"),
        ({"raw_data": {"basename": "b.mds", "bytes": 900}}, r"b\.mds"),
    ],
)
def test_an_index_that_cannot_be_is_refused(tmp_path: Path, entries: dict[str, Any], told: str) -> None:
    path = captioned_mds(tmp_path / "a")
    index = json.loads((path / "index.json").read_text())
    index["shards"][1] |= entries
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises((ConfigError, DatasetError), match=told) as refused:
        opened(path)
    assert str(path) in str(refused.value)


def test_pickles_in_a_shard_are_never_read(tmp_path: Path) -> None:
    path = write_mds(tmp_path / "a", [{"x": pickle.dumps(1)}], {"x": "pkl"})
    for at in (path, path / "shard.00000.mds"):
        with pytest.raises(ConfigError, match=rf"{at}.*column 'x' holds pickles, which are never read.* json or nd"):
            opened(at)


def test_media_are_known_by_their_content_and_large_samples_are_read_by_the_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = captioned_mds(tmp_path / "a")
    records = opened(path).records
    assert records.reader().part_names(0) == ["caption", "image.jpg", "number"]
    assert records.sample_bytes == pytest.approx(sum(len(picture(n)) for n in range(24)) / 24 + 40, rel=0.3)
    whole = [records.reader().read(index).parts for index in range(24)]
    assert [sample["image.jpg"] for sample in whole] == [picture(number) for number in range(24)]
    monkeypatch.setattr(f"{BinaryShard.__module__}.MAX_READ_BYTES", 50)
    assert [records.reader().read(index).parts for index in range(24)] == whole
    table, read_bytes, real = MdsTable(str(path / "shard.00001.mds")), [], TableFile.read_bytes
    monkeypatch.setattr(BinaryShard, "read_bytes", lambda self, start, n: read_bytes.append(n) or real(self, start, n))
    assert table.values(column("number"), 0, 2, 9) == [*range(7, 14)]
    assert sum(read_bytes) == 4 * 8 + 7 * (2 * 4 + 8)


def test_damaged_samples_are_named_and_others_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a", 10)
    file = path / "shard.00000.mds"
    content = file.read_bytes()
    offset = struct.unpack_from("<I", content, 4 + 4 * 3)[0]
    for damaged, told in (
        (content[:offset] + b"\x09" + content[offset + 1 :], rf", at byte {offset}: has \d+ bytes, but its columns"),
        (content[:16] + b"\xff\xff\0\0" + content[20:], ": the offsets from byte 16 on do not ascend"),
    ):
        file.write_bytes(damaged)
        with pytest.raises(DatasetError, match=rf"00000\.mds: sample 3{told}"):
            opened(path).records.reader().read(3)
        assert opened(path).records.reader().read(7).parts["text"] == "text 7"
    write_mds(tmp_path / "b", [{"text": b"a"}, {"text": b"\xff"}], {"text": "str"})
    with pytest.raises(DatasetError, match=r"sample 1, column 'text', at byte \d+: cannot be decoded: Unic"):
        opened(tmp_path / "b").records.reader().read(1)


def test_conditions_name_no_columns_of_arrays_or_json(tmp_path: Path) -> None:
    tokens = [np.arange(n + 1, dtype="<i4") for n in range(6)]
    rows = [
        {"tokens": bytes([4, n + 1]) + one.tobytes(), "n": struct.pack("<q", n), "j": b"{}"}
        for n, one in enumerate(tokens)
    ]
    path = write_mds(tmp_path / "a", rows, {"tokens": "ndarray:int32", "n": "int", "j": "json"})
    found = opened(path, where="n >= 4").records.reader().read(0).parts["tokens"]
    assert found.dtype == np.int32 and found.tolist() == [0, 1, 2, 3, 4] and found.flags.writeable
    for name in ("tokens", "j"):
        with pytest.raises(ConfigError, match=name):
            opened(path, where=f"{name} is not null")
