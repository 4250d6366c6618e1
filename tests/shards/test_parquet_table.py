"""Rows of Parquet files: the same values as pyarrow reads, of every codec, encoding and type; damage is told."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.shards import parquet_table
from bridge_data.shards.parquet_table import ParquetTable
from bridge_data.shards.table_columns import Column, columns_of
from tests.shards.rows import WORDS, compare, mixed
from tests.tables import IMAGE, table_of, write_parquet


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
