"""Rows of MDS shards: the values that MosaicML's own package reads; damage is told, and nothing is unpickled."""

import bz2
import gzip
import io
import json
import pickle
import shutil
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from bridge_data import TextSample, WorkerConfig, get_savable_loader, get_train_dataset, prepare_metadataset
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.plan.opening import split_parts
from bridge_data.prepare.tombstone_writing import forget_samples
from bridge_data.shards import table_columns
from bridge_data.shards.binary_shard import BinaryShard
from bridge_data.shards.mds_table import MdsTable
from tests.object_store import Bucket
from tests.plan.joins import joined, own
from tests.prepare.converters.originals import captioned_mds, picture, write_mds
from tests.tables import opened, read

THEIRS = Path(__file__).parents[1] / "prepare" / "converters" / "mds_written_by_mosaicml"


def texts(*numbers: int) -> list[dict[str, bytes]]:
    return [{"text": b"text %d" % n, "__key__": b"k%d" % n, "n": struct.pack("<q", n)} for n in numbers]


def write(folder: Path, *numbers: int, **settings: Any) -> Path:
    """Shards of ten samples."""
    return write_mds(folder, texts(*numbers), {"text": "str", "__key__": "str", "n": "int"}, **settings)


def as_read(value: Any) -> Any:
    """A value of theirs, or of ours, to compare: the pixels of images, and arrays as lists with their type."""
    if isinstance(value, bytes) and value.startswith((b"\xff\xd8", b"\x89PNG")):
        value = Image.open(io.BytesIO(value))
    if isinstance(value, list):
        return [as_read(one) for one in value]
    if isinstance(value, Image.Image):
        return value.mode, np.asarray(value).tolist()
    return (str(value.dtype), value.tolist()) if isinstance(value, np.ndarray) else value


def test_values_of_every_encoding_of_their_own_writer() -> None:
    source = opened(THEIRS)
    reader = source.records.reader()
    assert [source.records.describe(1), reader.read(1).full_key] == ["shard.00000.mds/1"] * 2
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


@pytest.mark.parametrize("compression", [None, "zstd:3", "gz", "br", "bz2"])
def test_values_are_those_that_their_own_reader_returns(tmp_path: Path, compression: str | None) -> None:
    streaming = pytest.importorskip("streaming", exc_type=ImportError)
    from streaming.base.compression import decompress  # type: ignore[import-not-found]
    from streaming.base.format.mds.reader import MDSReader  # type: ignore[import-not-found]

    numbers = {f"number {kind}": kind for kind in ("int", "uint8", "uint64", "int16", "int32", "float16", "float64")}
    arrays = {f"array {kind}": kind for kind in ("ndarray", "ndarray:float32", "ndarray:uint8:4,5")}
    images = {f"image {kind}": kind for kind in ("pil", "jpeg", "png", "list[pil]", "list[jpeg]", "list[png]")}
    others = {"b": "bytes", "t": "str", "j": "json", "si": "str_int", "sf": "str_float", "sd": "str_decimal"}
    drawn = np.random.default_rng(5)

    def picture_of(mode: str) -> Any:
        shape = (5, 7) if mode == "L" else (5, 7, 3)
        return Image.fromarray(drawn.integers(0, 256, shape, dtype=np.uint8))

    def sample(at: int) -> dict[str, Any]:
        values: dict[str, Any] = {
            name: np.dtype(kind).type(at % 100) for name, kind in numbers.items() if kind != "int"
        }
        values["number int"] = -at
        values["array ndarray"] = drawn.integers(-9, 9, (1 + at % 3, 2, 1 + at % 300), dtype=np.int16)
        values["array ndarray:float32"] = drawn.standard_normal(1 + at % 5, dtype=np.float32)
        values["array ndarray:uint8:4,5"] = drawn.integers(0, 256, (4, 5), dtype=np.uint8)
        for name, kind in images.items():
            one = picture_of("L" if at % 4 == 0 else "RGB")
            values[name] = [one] * (at % 3) if kind.startswith("list") else one
        texts = {"b": bytes([at % 256]) * (at % 7), "t": "é" * (at % 5), "j": {"a": [at, None]}}
        return values | texts | {"si": 10**30 + at, "sf": at / 7, "sd": Decimal(at) / 8}

    columns = numbers | arrays | images | others
    settings = {"columns": columns, "size_limit": 1 << 15, "compression": compression, "hashes": ["sha1"]}
    with streaming.MDSWriter(out=str(tmp_path / "theirs"), **settings) as writer:
        for at in range(40):
            writer.write(sample(at))
    records = opened(tmp_path / "theirs").records
    entries = json.loads((tmp_path / "theirs" / "index.json").read_text())["shards"]
    assert len(entries) > 2 and records.num_samples == 40
    if compression is not None:  # their reader unpacks into files
        (tmp_path / "plain").mkdir()
        for entry in entries:
            packed = Path(tmp_path, "theirs", entry["zip_data"]["basename"]).read_bytes()
            (tmp_path / "plain" / entry["raw_data"]["basename"]).write_bytes(decompress(compression, packed))
    folder = tmp_path / ("theirs" if compression is None else "plain")
    theirs = [MDSReader.from_json(str(folder), "", entry) for entry in entries]
    expected = [shard[at] for shard in theirs for at in range(shard.samples)]
    reader = records.reader()
    for at in np.random.default_rng(1).permutation(40).tolist():
        found = reader.read(at).parts
        for name, value in expected[at].items():
            mine = found[name if name in found else f"{name}.jpg"]
            assert as_read(Decimal(mine) if name == "sd" else mine) == as_read(value), (at, name)


@pytest.mark.parametrize(
    ("form", "pack"),
    [("gz", lambda data: gzip.compress(data) + bytes(3)), ("bz2", bz2.compress), ("zstd:1", pa.compress)],
)
def test_compressed_shards_are_read_and_files_that_someone_unpacked_too(tmp_path: Path, form: str, pack: Any) -> None:
    packed = (lambda data: pa.compress(data, "zstd", asbytes=True)) if pack is pa.compress else pack
    path = write(tmp_path / "a", *range(25), compression=form, pack=packed)
    source = opened(path)
    assert read(source) == [f"text {n}" for n in range(25)]
    assert source.records.names[1] == "shard.00001.mds"
    file = next(path.glob("shard.00001.*"))
    whole = file.read_bytes()
    for damaged in (whole[:-9], whole[: len(whole) // 2], whole[:40] + bytes([whole[40] ^ 255]) + whole[41:]):
        file.write_bytes(damaged)
        with pytest.raises(DatasetError, match=rf"{file}: "):
            read(opened(path))
    shutil.copy(write(tmp_path / "b", *range(25)) / "shard.00001.mds", path)
    assert read(opened(path)) == [f"text {n}" for n in range(25)]


def test_a_shard_that_would_take_too_much_memory_and_an_unknown_compression_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", *range(25), compression="gz", pack=gzip.compress)
    with pytest.raises(ConfigError, match=r"00000\.mds\.gz: has \d+ bytes when unpacked, more than the 450 allowed"):
        MdsTable(str(path / "shard.00000.mds"), max_unpacked_bytes=450)
    (path / "shard.00000.mds.gz").rename(path / "shard.00000.mds.snappy")
    with pytest.raises(ConfigError, match=r"snappy is none of gz, bz2, zstd, br: unpack the file beside it"):
        opened(path)


def test_folders_are_split_parts(tmp_path: Path) -> None:
    for name, numbers in (("val", range(5)), ("train", range(5, 30))):
        write(tmp_path / "a" / name, *numbers)
    assert split_parts(tmp_path / "a") == ["train", "val"]
    assert read(opened(tmp_path / "a", split_part="val")) == [f"text {n}" for n in range(5)]
    source = opened(tmp_path / "a", split_part="train")
    assert source.num_samples == 25 and source.records.reader().read(0).full_key == "train/shard.00000.mds/k5"
    with pytest.raises(ConfigError, match="there is no split part 'test'; there is train, val"):
        opened(tmp_path / "a", split_part="test")
    entries = [
        entry | {"raw_data": entry["raw_data"] | {"basename": f"{name}/{entry['raw_data']['basename']}"}}
        for name in ("train", "val")
        for entry in json.loads((tmp_path / "a" / name / "index.json").read_text())["shards"]
    ]
    (tmp_path / "a" / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))  # as they merge them
    assert split_parts(tmp_path / "a") == ["train"]
    assert read(opened(tmp_path / "a")) == [f"text {n}" for n in (*range(5, 30), *range(5))]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_shard_with_another_number_of_samples_than_the_index_says_is_an_error(
    tmp_path: Path, compression: str | None
) -> None:
    path = write(tmp_path / "a", *range(25), compression=compression)
    index = json.loads((path / "index.json").read_text())
    index["shards"][1]["samples"] += 1
    (path / "index.json").write_text(json.dumps(index))
    for place in (path, path / "*.mds") if compression is None else (path,):
        with pytest.raises(DatasetError, match=r"shard\.00001\.mds.* has 10 samples, but index\.json says 11"):
            opened(place)


def test_shards_by_a_pattern_need_no_index(tmp_path: Path) -> None:
    path = write(tmp_path / "a", *range(25))
    (path / "index.json").unlink()
    assert read(opened(f"{path}/shard.0000[12].mds")) == [f"text {n}" for n in range(10, 25)]
    with pytest.raises(ConfigError, match=rf"{path}: there are shards, but no index\.json"):
        opened(path)


def changed(folder: Path, **entries: Any) -> Path:
    """The index of a data set with other entries for its second shard."""
    index = json.loads((captioned_mds(folder) / "index.json").read_text())
    index["shards"][1] |= entries
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ({"column_encodings": ["str", "pkl", "int"]}, "'image' holds pickles, which are never read"),
        ({"column_encodings": ["str", "opus", "int"]}, "has the encoding 'opus', which is not known"),
        ({"raw_data": {"basename": "../../x.mds", "bytes": 900}}, "which is not in its folder"),
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
    with pytest.raises((ConfigError, DatasetError), match=told) as refused:
        opened(changed(tmp_path / "a", **entries))
    assert str(tmp_path / "a") in str(refused.value)


def test_pickles_in_a_shard_are_never_read(tmp_path: Path) -> None:
    path = write_mds(tmp_path / "a", [{"x": pickle.dumps(1)}], {"x": "pkl"})
    for at in (path, path / "shard.00000.mds"):
        with pytest.raises(ConfigError, match=rf"{at}.*column 'x' holds pickles, which are never read.* json or nd"):
            opened(at)


def test_media_are_known_by_their_content_and_large_samples_are_read_by_the_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = captioned_mds(tmp_path / "a")
    source = opened(path)
    assert source.records.part_names(0) == ["caption", "image.jpg", "number"]
    mean = sum(len(picture(n)) for n in range(24)) / 24
    assert source.records.sample_bytes == pytest.approx(mean + 40, rel=0.3)
    whole = [source.records.reader().read(index).parts for index in range(24)]
    assert [sample["image.jpg"] for sample in whole] == [picture(number) for number in range(24)]
    monkeypatch.setattr(f"{BinaryShard.__module__}.MAX_READ_BYTES", 50)
    assert [source.records.reader().read(index).parts for index in range(24)] == whole
    read_bytes = []
    monkeypatch.setattr(BinaryShard, "read_bytes", lambda self, start, n: read_bytes.append(n) or real(self, start, n))
    real = table_columns.TableFile.read_bytes
    table = MdsTable(str(path / "shard.00001.mds"))
    read_bytes.clear()
    assert table.values(table_columns.Column("number", "number", "number"), 0, 2, 9) == [*range(7, 14)]
    assert sum(read_bytes) == 4 * 8 + 7 * (2 * 4 + 8)


def test_damaged_files_are_told_or_all_else_is_read_right(tmp_path: Path) -> None:
    """Flips in offsets and sizes never give other bytes; flips in values may."""
    path = write(tmp_path / "a", *range(10))
    file = path / "shard.00000.mds"

    def samples() -> list[dict[str, Any]]:
        table = MdsTable(str(file))
        columns = [table_columns.Column(field.name, field.name, field.name) for field in table.fields]
        return [{one.name: table.values(one, 0, at, at + 1)[0] for one in columns} for at in range(10)]

    right, content = samples(), file.read_bytes()
    first = struct.unpack_from("<I", content, 4)[0]
    for number in (*range(48), *range(48, first, 7), *range(first, len(content))):
        flips = [content[:number] + bytes([content[number] ^ mask]) + content[number + 1 :] for mask in (1, 128, 255)]
        for damaged in (content[:number], *flips):
            file.write_bytes(damaged)
            try:
                found = samples()
            except DatasetError as error:
                assert str(file) in str(error)
            except ConfigError:
                assert len(damaged) == len(content) and 48 <= number < first  # in the encodings of columns
            else:
                assert len(damaged) == len(content) and number >= 48
                wrong = [one for one, other in zip(found, right, strict=True) if [*one.values()] != [*other.values()]]
                assert len(wrong) <= 1 or number < first
    file.write_bytes(content)
    offset = struct.unpack_from("<I", content, 4 + 4 * 3)[0]
    file.write_bytes(content[:offset] + b"\x09" + content[offset + 1 :])
    with pytest.raises(DatasetError, match=rf"00000\.mds: sample 3, at byte {offset}: has \d+ bytes, but its columns"):
        opened(path).records.reader().read(3)
    file.write_bytes(content[: 4 + 4 * 3] + b"\xff\xff\0\0" + content[4 + 4 * 4 :])
    with pytest.raises(DatasetError, match=r"00000\.mds: sample 3: the offsets from byte 16 on do not ascend"):
        opened(path).records.reader().read(3)
    assert opened(path).records.reader().read(7).parts["text"] == "text 7"
    write_mds(tmp_path / "b", [{"text": b"a"}, {"text": b"\xff"}], {"text": "str"})
    with pytest.raises(DatasetError, match=r"sample 1, column 'text', at byte \d+: cannot be decoded: Unic"):
        opened(tmp_path / "b").records.reader().read(1)


def test_a_shard_that_is_replaced_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a", *range(25))
    sent, used = pickle.dumps(opened(path).records), opened(path).records.reader()
    used.read(0)
    shutil.rmtree(path)
    write(path, *range(100, 125))
    with pytest.raises(DatasetError, match=r"shard\.00001\.mds: was replaced while it was in use"):
        pickle.loads(sent).reader().read(15)
    with pytest.raises(DatasetError, match=r"shard\.00002\.mds: was replaced while it was in use"):
        used.read(22)


def test_their_order_and_fingerprint_are_those_of_names_and_content(tmp_path: Path) -> None:
    identity = opened(THEIRS).records.identity()
    assert identity == {"tables": [["shard.00000.mds", 9207, "b2ebea2be055c48f"]]}
    first = opened(write(tmp_path / "a", *range(25)))
    assert first.fingerprint != opened(write(tmp_path / "b", *range(25), 30)).fingerprint


def test_shards_in_a_store_are_read(bucket: Bucket) -> None:
    write(bucket.folder / "a" / "train", *range(25))
    write(bucket.folder / "a" / "val", *range(5), compression="gz", pack=gzip.compress)
    assert read(opened(f"{bucket.url}/a", split_part="train")) == [f"text {n}" for n in range(25)]
    assert read(opened(f"{bucket.url}/a", split_part="val")) == [f"text {n}" for n in range(5)]


def test_rows_are_chosen_forgotten_and_joined_by_their_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "a", *range(90))
    assert read(opened(path, where="n % 10 = 3 and key <> 'k13'"))[:2] == ["text 3", "text 23"]
    forget_samples(path, ["shard.00000.mds/k7", "k8"], "asked for")
    assert read_all(path, 0) == sorted(f"text {n}" for n in range(90) if n not in (7, 8))
    (path / "_forgotten.bridge").unlink()
    write(tmp_path / "b", 5, 3, 80)
    fields = {"sample_type": "TextSample", "field_map": {"text": "text"}}
    members = {"left": {"path": "b", **fields}, "right": {"path": "a", **fields}}
    prepare_metadataset(joined(tmp_path / "m.yaml", members, own("Both")))
    (source,) = load_plan(tmp_path / "m.yaml", trusted_modules=["tests"]).sources
    reader = source.records.reader()
    keys = [[member.key for member in reader.read(row).members] for row in range(3)]  # type: ignore[attr-defined]
    assert keys == [["k5", "k5"], ["k3", "k3"], ["k80", "k80"]]


def test_conditions_name_no_columns_of_arrays_or_json(tmp_path: Path) -> None:
    columns = {"tokens": "ndarray:int32", "n": "int", "j": "json"}
    tokens = [np.arange(n + 1, dtype="<i4") for n in range(6)]
    samples = [
        {"tokens": bytes([4, n + 1]) + one.tobytes(), "n": struct.pack("<q", n), "j": b"{}"}
        for n, one in enumerate(tokens)
    ]
    path = write_mds(tmp_path / "a", samples, columns)
    source = opened(path, where="n >= 4")
    (found, _) = (source.records.reader().read(index).parts["tokens"] for index in range(2))
    assert found.dtype == np.int32 and found.tolist() == [0, 1, 2, 3, 4] and found.flags.writeable
    for column in ("tokens", "j"):
        with pytest.raises(ConfigError, match=column):
            opened(path, where=f"{column} is not null")


def read_all(path: Path, num_workers: int) -> list[str]:
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_lanes=4)
    settings: dict[str, Any] = {"batch_size": 10, "shuffle_buffer_size": 20, "max_samples_per_sequence": 10}
    fields: dict[str, Any] = {"sample_type": TextSample, "field_map": {"text": "text"}}
    dataset = get_train_dataset(path, worker_config=config, repeat=False, **settings, **fields)
    with get_savable_loader(dataset) as loader:
        return sorted(text for batch in loader for text in batch.text)
