"""Rows of Parquet and Arrow files: the same values as pyarrow reads, of every codec, encoding and type; blocks,
identity and sizes; damage is told."""

import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.data.blocks import OVERHEAD_BYTES, BlockBudget, BlockCache, ChunkBlocks
from bridge_data.data.records import READ_BYTES, verified
from bridge_data.errors import ConfigError, DatasetError, SampleError
from bridge_data.plugins.tables import arrow_table, parquet_table, table_columns
from bridge_data.plugins.tables.arrow_table import ArrowTable
from bridge_data.plugins.tables.parquet_table import ParquetTable
from bridge_data.plugins.tables.table_columns import MAX_HELD_BYTES, MAX_READ_BYTES, Column, block_bytes, columns_of
from bridge_data.plugins.tables.table_records import TableRecords, open_records, open_table
from bridge_data.storage import location
from tests.data.reads import record_reads
from tests.data.rows import WORDS, compare, mixed
from tests.object_store import Bucket
from tests.tables import IMAGE, save_to_disk, table_of, write_parquet, write_text_table


def opened(file: Path) -> tuple[ParquetTable, Column]:
    """A table, and its first column."""
    table = ParquetTable(str(file))
    return table, columns_of(table.schema.remove_metadata(), str(file))[0]


def reads_of(table: ParquetTable, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of bytes that are read from now on."""
    read: list[int] = []
    plain: Callable[[int, int], bytes] = table.read_bytes
    monkeypatch.setattr(table, "read_bytes", lambda start, size: read.append(size) or plain(start, size))
    return read


@pytest.mark.parametrize(
    "options",
    [
        *({"compression": codec, "data_page_size": 4096} for codec in ("none", "snappy", "zstd", "gzip", "lz4")),
        {"compression": "brotli", "data_page_version": "2.0", "data_page_size": 4096},
        {"compression": "snappy", "data_page_version": "2.0", "data_page_size": 4096},
        {"use_dictionary": False},
        {"write_page_index": True, "store_schema": False},
    ],
    ids=str,
)
def test_rows_are_those_that_pyarrow_reads(tmp_path: Path, options: dict[str, Any]) -> None:
    compare(write_parquet(tmp_path / "a.parquet", mixed(), per_group=1700, **options), mixed(), rounds=4)


def pictures(size: int, num_bytes: int, *, missing: bool = False) -> pa.Table:
    contents = [os.urandom(num_bytes + number) for number in range(size)]
    column = [None if missing and n % 4 == 0 else {"bytes": one, "path": f"{n}.png"} for n, one in enumerate(contents)]
    return table_of({"image": column, "text": WORDS[:size]}, {"image": IMAGE})


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("missing", [False, True])
def test_large_and_small_values_are_read_from_pages_of_every_encoding(
    tmp_path: Path, codec: str, version: str, missing: bool
) -> None:
    contents = [None if missing and n % 4 == 0 else os.urandom(5000 + n) for n in range(90)]
    columns = {
        "DELTA_LENGTH_BYTE_ARRAY": pa.array(contents),
        "DELTA_BYTE_ARRAY": pa.array(contents, pa.large_binary()),
        "DELTA_BINARY_PACKED": pa.array([None if missing and n % 3 == 0 else n * n for n in range(90)]),
        "BYTE_STREAM_SPLIT": pa.array([None if missing and n % 3 == 0 else n / 3 for n in range(90)]),
        "PLAIN": pa.array([os.urandom(40) for _ in range(90)]),
    }
    pages = {"data_page_version": version, "compression": codec}
    encodings = {"use_dictionary": False, "column_encoding": {name: name for name in columns}, "data_page_size": 20_000}
    table, media = table_of(columns), pictures(70, 30_000, missing=missing)
    compare(write_parquet(tmp_path / "a.parquet", table, per_group=60, **encodings, **pages), table, rounds=6)
    for dictionary in (False, True):
        file = write_parquet(tmp_path / "b.parquet", media, per_group=40, use_dictionary=dictionary, **pages)
        compare(file, media, rounds=5)


def test_large_values_are_read_alone_where_some_pieces_are_packed_and_others_stored_as_they_are(tmp_path: Path) -> None:
    halves = [[os.urandom(70_000), bytes(60_000)], [bytes(200_000), os.urandom(150_000)], [os.urandom(65_536)], [b""]]
    table = table_of({"jpg": [b"".join(halves[n % 4][:: 1 - n % 3 % 2 * 2]) for n in range(60)]})
    compare(write_parquet(tmp_path / "a.parquet", table, per_group=30, use_dictionary=False), table, rounds=20)


@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_only_the_bytes_of_a_large_value_are_read(tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table, column = opened(
        write_parquet(tmp_path / "a.parquet", pictures(64, 100_000), per_group=64, compression=codec)
    )
    table.values(column, 0, 0, 1)
    read = reads_of(table, monkeypatch)
    table.values(column, 0, 33, 34)
    assert sum(read) < 100_100
    assert table.unit_bytes(0, column) < 200_000


def test_a_few_rows_of_a_large_row_group_decode_a_few_pages_and_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{number:0100d}" for number in range(200_000)]
    file = write_parquet(tmp_path / "a.parquet", table_of({"text": texts}), per_group=200_000, use_dictionary=False)
    table, column = opened(file)
    end = table._known_pages(0, 0).data[1].first_row
    table.values(column, 0, 0, 10)
    read = reads_of(table, monkeypatch)
    for first, num_reads in ((150_000, 1), (150_002, 1), (5, 2), (end - 5, 3), (end - 3, 3)):
        assert table.values(column, 0, first, first + 10) == texts[first : first + 10]
        assert len(read) <= num_reads and sum(read) < num_reads * file.stat().st_size / 10


def test_what_is_no_parquet_file_or_was_replaced_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    for content in (b"", b"PAR1", b"<html>not found</html>", b"PAR1" + b"\xff" * 8 + b"PAR1"):
        file.write_bytes(content)
        with pytest.raises(DatasetError, match=r"a\.parquet: is no Parquet file, or is cut off"):
            ParquetTable(str(file))
    file.write_bytes(b"PAR1" + bytes(20) + b"PARE")
    with pytest.raises(ConfigError, match="is encrypted"):
        ParquetTable(str(file))
    version = ParquetTable(str(write_parquet(file, table_of({"text": WORDS})))).version
    write_parquet(file, table_of({"text": WORDS[::-1] + WORDS}))
    with pytest.raises(DatasetError, match="was replaced while it was in use"):
        ParquetTable(str(file), version)


def test_damaged_pages_name_file_row_group_and_column(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", table_of({"text": WORDS}), per_group=1000)
    content, start = file.read_bytes(), pq.ParquetFile(file).metadata.row_group(1).column(0).data_page_offset
    file.write_bytes(content[:start] + b"\xff" * 64 + content[start + 64 :])
    table, column = opened(file)
    assert table.values(column, 0, 0, 5) == WORDS[:5]
    with pytest.raises(DatasetError, match=r"a\.parquet: row group 1, column 'text': cannot be decoded, rows 5 to 9"):
        table.values(column, 1, 5, 10)


@pytest.mark.parametrize("num_bytes", [50, 20_000])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_page_with_another_checksum_than_its_writer_stored_is_damaged(
    tmp_path: Path, num_bytes: int, version: str
) -> None:
    """One flipped byte of a picture, which no decoder of Parquet would notice."""
    contents = [os.urandom(num_bytes) for _ in range(40)]
    options = {"use_dictionary": False, "compression": "none", "data_page_version": version, "write_statistics": False}
    file = write_parquet(tmp_path / "a.parquet", table_of({"jpg": contents}), write_page_checksum=True, **options)
    compare(file, table_of({"jpg": contents}), rounds=12)
    content = bytearray(file.read_bytes())
    content[content.index(contents[7]) + 30] ^= 1
    file.write_bytes(content)
    table, column = opened(file)
    with pytest.raises(DatasetError, match=r"a\.parquet: row group 0, column 'jpg': .*(checksum|CRC)"):
        table.values(column, 0, 7, 9)


def test_a_long_text_that_many_rows_have_is_decoded_once(tmp_path: Path) -> None:
    """As system prompts are: 100 bytes of a page would otherwise become 200 MB."""
    texts = [one * 10_000 for one in "abc"]
    rows = pa.DictionaryArray.from_arrays(pa.array([n % 3 if n % 7 else None for n in range(20_000)]), texts)
    table, column = opened(
        write_parquet(tmp_path / "a.parquet", table_of({"text": rows.cast(pa.string())}), per_group=20_000)
    )
    assert table.values(column, 0, 14, 18) == [None, texts[0], texts[1], texts[2]]
    assert table._rows(0, [0], 0, 20_000, "text").nbytes < 200_000


def test_rows_are_the_same_where_a_dictionary_ends_within_a_row_group(tmp_path: Path) -> None:
    """With pyarrow's defaults, unique texts fill a dictionary of 1 MiB, and later ones are stored plainly."""
    words = [None if n % 11 == 0 else f"word {n % 5}" if n < 3000 else f"{n:0200d}" for n in range(12_000)]
    table = table_of({"text": words, "bytes": [None if one is None else one.encode() for one in words]})
    options: dict[str, Any] = {"dictionary_pagesize_limit": 100_000, "data_page_size": 50_000}
    compare(write_parquet(tmp_path / "a.parquet", table, per_group=12_000, **options), table, rounds=20)
    texts = [f"{number:012d}" for number in range(100_000)]
    file, column = opened(write_parquet(tmp_path / "b.parquet", pa.table({"text": texts}), per_group=100_000))
    for first in range(0, len(texts), 10_000):
        assert file.values(column, 0, first, first + 10_000) == texts[first : first + 10_000]


def test_what_would_fill_memory_when_it_is_decoded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([n % 3 for n in range(60_000)]), [one * 10_000 for one in "abc"])
    lists = pa.ListArray.from_arrays(pa.array(range(60_001), pa.int32()), texts)
    table, column = opened(write_parquet(tmp_path / "a.parquet", table_of({"turns": lists}), per_group=60_000))
    with pytest.raises(DatasetError, match="572 MiB unpacked, more than the 256 MiB"):
        table.values(column, 0, 0, 2)
    options: dict[str, Any] = {"use_dictionary": False, "compression": "none"}
    tokens = table_of({"tokens": [list(range(100))] * 1000})
    table, column = opened(write_parquet(tmp_path / "b.parquet", tokens, per_group=1000, **options))
    monkeypatch.setattr(parquet_table, "MAX_DECODED_BYTES", 1 << 16)
    with pytest.raises(DatasetError, match="smaller row groups, or convert it"):
        table.values(column, 0, 0, 1)


DATA = "data-00000-of-00001.arrow"
FORMS = {"stream": (pa.ipc.new_stream, pa.ipc.open_stream), "file": (pa.ipc.new_file, pa.ipc.open_file)}
SIZE = 90


def write(file: Path, form: str, table: pa.Table, per_batch: int | None = None, **options: Any) -> pa.Table:
    """An Arrow file. Returns the table as pyarrow reads it."""
    new, reads = FORMS[form]
    with new(str(file), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=per_batch)
    return reads(pa.memory_map(str(file))).read_all()


class Square(pa.ExtensionType):  # type: ignore[misc]
    """As `Array2D` of `datasets`, which registers its type when it is imported."""

    def __init__(self) -> None:
        super().__init__(pa.list_(pa.list_(pa.int32())), "tests.square")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> "Square":
        return cls()


@pytest.fixture(params=[False, True])
def square(request: pytest.FixtureRequest) -> Iterator[Square]:
    """A type that this process may know, or not."""
    if request.param:
        pa.register_extension_type(Square())
    yield Square()
    if request.param:
        pa.unregister_extension_type("tests.square")


def odd_columns(square: pa.DataType) -> dict[str, pa.Array]:
    """Columns of extension types, and of others whose buffers are not those of a plain list or text."""
    texts = [None if n % 7 == 3 else f"a text of more than 12 bytes: {n}" for n in range(SIZE)]
    numbers = pa.array(range(SIZE), pa.int64())
    tensor = pa.fixed_shape_tensor(pa.float32(), (2, 2))
    opaque = pa.opaque(pa.string(), "thing", "vendor")
    squares = pa.array([None if n % 5 == 4 else [[n, 1], [2]] for n in range(SIZE)], square.storage_type)
    return {
        "square": pa.ExtensionArray.from_storage(square, squares),
        "json": pa.array([f'{{"n": {n}}}' for n in range(SIZE)]).cast(pa.json_()),
        "opaque": pa.ExtensionArray.from_storage(opaque, pa.array(texts)),
        "tensor": pa.ExtensionArray.from_storage(
            tensor, pa.array([[n, 0, 1, 2] for n in range(SIZE)], tensor.storage_type)
        ),
        "uuid": pa.array([bytes([n] * 16) for n in range(SIZE)], pa.uuid()),
        "view": pa.array(texts, pa.string_view()),
        "lists of views": pa.array([[one] for one in texts], pa.list_view(pa.string_view())),
        "union": pa.UnionArray.from_sparse(pa.array([n % 2 for n in range(SIZE)], pa.int8()), [numbers, numbers]),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([10, SIZE], pa.int32()), pa.array([1, 2])),
        "codes": pa.array(texts).dictionary_encode(),
        "lists of codes": pa.array([[one, "b"] for one in texts], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        "map": pa.array([[("a", n), ("b", None)] for n in range(SIZE)], pa.map_(pa.string(), pa.int8())),
        "pairs": pa.array([[n, n + 1] for n in range(SIZE)], pa.list_(pa.int16(), 2)),
        "nothing": pa.nulls(SIZE),
        "key": pa.array([bytes([n % 256] * 4) for n in range(SIZE)], pa.binary(4)),
        "maybe list": pa.array([None if n % 3 else [None, "a"] for n in range(SIZE)], pa.list_(pa.string())),
        "last": numbers,
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_columns_of_every_type_are_those_that_pyarrow_reads(
    tmp_path: Path, form: str, compression: str | None, square: Square
) -> None:
    options = {"compression": compression, "emit_dictionary_deltas": form == "stream"}
    for number, table in enumerate((mixed(500), pa.table(odd_columns(square)))):
        file = tmp_path / f"{number}.arrow"
        compare(file, write(file, form, table, 40, **options))


@pytest.mark.parametrize("deltas", [False, True])
def test_a_dictionary_that_grows_or_is_replaced_is_that_of_its_batch(tmp_path: Path, deltas: bool) -> None:
    words = [pa.array(list(text)).dictionary_encode() for text in ("abab", "abca", "abca")]
    table = pa.Table.from_batches([pa.record_batch({"word": one, "n": pa.array(range(4))}) for one in words])
    compare(tmp_path / "a.arrow", write(tmp_path / "a.arrow", "stream", table, emit_dictionary_deltas=deltas))


def test_a_compressed_batch_that_would_fill_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_table, "MAX_UNIT_BYTES", 2 << 20)
    write(tmp_path / "a.arrow", "stream", pa.table({"zeros": [bytes(1 << 20)] * 3}), compression="zstd")
    with pytest.raises(DatasetError, match=r"a\.arrow.* 3 MiB, more than the 2 MiB"):
        ArrowTable(str(tmp_path / "a.arrow"))


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("form", FORMS)
def test_sizes_in_a_store_are_those_of_the_local_copy_and_take_no_request_for_each_column(
    bucket: Bucket, compression: str | None, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = pa.array([None if n % 3 else f"{n:050d}" for n in range(400)])
    media = pa.StructArray.from_arrays([text.cast(pa.binary()), text], ["bytes", "path"])
    large = pa.array([random.Random(n).randbytes(2000) for n in range(400)])  # several windows of buffers
    table = pa.table({"media": media, "large": large, **{f"text{number}": text for number in range(20)}})
    write(bucket.folder / "a.arrow", form, table, 200, compression=compression)
    reads = record_reads(monkeypatch)
    found = []
    for path in (str(bucket.folder / "a.arrow"), f"{bucket.url}/a.arrow"):
        reads.clear()
        opened = ArrowTable(path)
        columns = columns_of(opened.schema, path)
        sizes = (opened.column_bytes, opened.unit_bytes)
        found.append([size(group, column) for group in range(2) for column in columns for size in sizes])
    assert found[0] == found[1]
    assert len(reads) < 30, reads  # of 2 batches with 22 columns


def test_a_file_that_is_cut_off_before_or_while_it_is_read_is_told(tmp_path: Path) -> None:
    file = save_to_disk(tmp_path / "saved", table_of({"text": ["some text"] * 5000})) / DATA
    content, table = file.read_bytes(), ArrowTable(str(file))
    for size in (0, 7, 100, len(content) // 2 + 100):
        file.write_bytes(content[:size])
        with pytest.raises(DatasetError, match=r"cannot be read as an Arrow stream: it is damaged, or cut off"):
            ArrowTable(str(file))
    file.write_bytes(content[:1000])
    (column,) = columns_of(table.schema, str(file))
    with pytest.raises(DatasetError, match=str(file)):
        table.values(column, len(table.counts) - 1, 0, 9)


def records_of(folder: Path, *names: str) -> TableRecords:
    return open_records(location(folder), [(name, str(folder / name)) for name in names], "train", list)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_columns_with_dots_are_not_fields_of_structs(tmp_path: Path, name: str) -> None:
    media = [{"bytes": b"picture %d" % number, "path": None} for number in range(9)]
    columns = {"meta.n": list(range(9)), "meta": [{"n": -number} for number in range(9)]}
    columns |= {"image.bytes": [b"other"] * 9, "image": media, "image.path": ["x"] * 9}
    table = table_of({**columns, "text": ["a"] * 9, "image\0": list(range(9))})
    if name == "a.parquet":
        write_parquet(tmp_path / name, table)
    else:
        (save_to_disk(tmp_path, table) / "data-00000-of-00001.arrow").rename(tmp_path / name)
    parts = records_of(tmp_path, name).reader().read(3).parts
    assert [parts[name] for name in ("meta.n", "meta", "image")] == [3, {"n": -3}, media[3]["bytes"]]
    assert parts["image.bytes"] == b"other"


def test_the_identity_differs_where_the_files_are_in_another_order(tmp_path: Path) -> None:
    write_text_table(tmp_path / "saved", 100)
    names = [f"saved/data-0000{number}-of-00002.arrow" for number in range(2)]
    assert records_of(tmp_path, *names).identity() != records_of(tmp_path, *names[::-1]).identity()
    with pytest.raises(ConfigError, match="has no digests"):
        verified(records_of(tmp_path, *names))


@pytest.mark.parametrize("name", ["a.parquet", "data-00000-of-00001.arrow"])
def test_values_and_media_that_are_missing(tmp_path: Path, name: str) -> None:
    """Are no parts of their sample; of media that are elsewhere it says so."""
    image = [{"bytes": b"content", "path": "a.png"}, {"bytes": None, "path": "b.png"}, None]
    table = table_of({"image": image, "n": [None, 1, None]}, {"image": IMAGE})
    write_parquet(tmp_path / "a.parquet", table)
    save_to_disk(tmp_path, table)
    records = records_of(tmp_path, name)
    reader = BlockCache(records.shards, records.reader(), ChunkBlocks(3, 3), None, BlockBudget(1 << 20))
    assert [reader.read(index).parts for index in (0, 2)] == [{"image.jpg": b"content"}, {}]
    with pytest.raises(SampleError, match=r"column 'image' has only the path of a file"):
        reader.read(1)


def test_files_with_other_columns_are_refused_and_without_rows_are_not(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", table_of({"text": ["a"], "n": [1]}))
    write_parquet(tmp_path / "b.parquet", table_of({"text": ["a"], "n": ["1"]}))
    write_parquet(tmp_path / "c.parquet", table_of({"text": ["a"]}))
    for name, told in (("b.parquet", "string, but in .*a.parquet"), ("c.parquet", r"\(it is missing\)")):
        with pytest.raises(DatasetError, match=rf"{name}: its column 'n' has the type {told}"):
            records_of(tmp_path, "a.parquet", name)
    write_parquet(tmp_path / "more.parquet", table_of({"loss": [0.0], "text": ["a"], "n": [1]}))
    with pytest.raises(DatasetError, match=r"more.parquet: has the columns 'loss', which .*a.parquet lacks"):
        records_of(tmp_path, "a.parquet", "more.parquet")
    files = [(name, str(tmp_path / name)) for name in ("a.parquet", "more.parquet")]
    chosen = open_records(location(tmp_path), files, "train", lambda columns: columns[:1])
    assert [column.name for column in chosen.columns] == ["text"]
    write_text_table(tmp_path / "d.parquet", 0)
    write_text_table(tmp_path / "saved", 0)
    for name in ("d.parquet", "saved/data-00000-of-00001.arrow"):
        assert records_of(tmp_path, name).num_samples == 0


def test_blocks_of_parquet_are_as_large_as_can_be_held_and_no_larger_than_pages(tmp_path: Path) -> None:
    texts = table_of({"text": [f"{number:0500d}" for number in range(20_000)]})
    write_parquet(tmp_path / "a.parquet", texts, per_group=20_000)
    write_parquet(tmp_path / "b.parquet", table_of({"jpg": [bytes(20_000)] * 200}), per_group=200)
    assert 170_000 < records_of(tmp_path, "a.parquet").read_bytes < READ_BYTES
    assert records_of(tmp_path, "b.parquet").read_bytes == READ_BYTES
    for sample_bytes in (10, 204, 1000, 16_000):
        num_samples = block_bytes(1 << 24, sample_bytes) / sample_bytes
        assert 0.99 < num_samples * (sample_bytes + OVERHEAD_BYTES) / MAX_HELD_BYTES < 1.01
    assert block_bytes(1 << 24, 50_000) == MAX_READ_BYTES


def test_what_must_be_decoded_at_once_is_told_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = table_of({"tokens": [list(range(100))] * 2000})
    write_parquet(tmp_path / "a.parquet", table, per_group=2000, use_dictionary=False)
    monkeypatch.setattr(table_columns, "SLOW_UNIT_BYTES", 1 << 18)
    with caplog.at_level(logging.WARNING, "bridge_data"):
        records_of(tmp_path, "a.parquet")
        records_of(tmp_path, "a.parquet")
    (record,) = caplog.records
    assert "row group 0, column 'tokens': 1 MiB are decoded at once for each block" in record.getMessage()
    monkeypatch.setattr(table_columns, "MAX_UNIT_BYTES", 1 << 18)
    with pytest.raises(ConfigError, match=r"column 'tokens': 1 MiB are decoded at once.*`bridge-data convert` it"):
        records_of(tmp_path, "a.parquet")


WRITERS: dict[str, Callable[[Path], Path]] = {
    "Parquet": lambda folder: write_parquet(folder / "a.parquet", mixed(150), per_group=120),
    "Arrow": lambda folder: save_to_disk(folder, mixed(150)) / "data-00000-of-00001.arrow",
}


@pytest.mark.parametrize("kind", WRITERS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_damage_is_an_error_of_ours_or_changes_nothing_else(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = WRITERS[kind](tmp_path_factory.mktemp("damaged"))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) - 3, len(content) // 2]))])
    try:
        table = open_table(str(file))
        pairs = [
            (group, column) for group in range(len(table.counts)) for column in columns_of(table.schema, str(file))
        ]
    except (DatasetError, ConfigError) as error:
        assert str(file) in str(error)
        return
    for group, column in pairs:
        try:
            table.values(column, group, 0, min(table.counts[group], 50))
        except DatasetError as error:
            assert str(file) in str(error)


def test_decoded_values_are_kept_up_to_a_bound() -> None:
    kept, values = table_columns.DecodedValues(1000), pa.array([1] * 50, pa.int64())  # 400 bytes
    for key in (0, 1, 1, 1):  # what is kept again is counted once
        kept.keep((0, key), (0, values))
    assert kept.get((0, 0)) is not None  # it is used last now
    kept.keep((0, 2), (0, values))
    assert [kept.get((0, number)) is not None for number in range(3)] == [True, False, True]
    kept.keep((0, 3), (0, pa.array(range(table_columns.MAX_KEPT_UNIT_BYTES // 8 + 1), pa.int64())))
    assert kept.get((0, 3)) is None
