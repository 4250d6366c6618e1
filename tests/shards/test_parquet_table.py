"""Rows of Parquet files: the same values as pyarrow reads, of every codec, encoding and type; damage is told."""

import datetime
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.shards import parquet_table
from bridge_data.shards.parquet_table import ParquetTable
from bridge_data.shards.table_columns import MAX_KEPT_UNIT_BYTES, DecodedValues, columns_of
from tests.tables import IMAGE, table_of, write_parquet

SIZE = 3000
WORDS = [f"text {number} {'é' if number % 11 == 0 else ''}{'x' * (number % 400)}" for number in range(SIZE)]
DATE = datetime.date(2024, 2, 29)


def mixed() -> pa.Table:
    """A table with columns of every kind that is read, with and without missing values."""
    numbers = range(SIZE)
    return table_of(
        {
            "text": WORDS,
            "label": pa.array([None if n % 5 == 0 else f"class {n % 3}" for n in numbers]),
            "number": list(numbers),
            "maybe": pa.array([None if n % 7 == 0 else n / 3 for n in numbers], pa.float32()),
            "yes": [n % 3 == 0 for n in numbers],
            "day": [DATE + datetime.timedelta(n) for n in numbers],
            "tokens": pa.array([list(range(n % 6)) for n in numbers], pa.list_(pa.int32())),
            "turns": [[{"role": "user", "text": str(n)}] * (n % 3) for n in numbers],
            "meta": [{"a": n, "b": {"c": str(n)}} for n in numbers],
            "raw": pa.array([random.Random(n).randbytes(n % 50) for n in numbers], pa.large_binary()),
        }
    )


def check(file: Path, table: pa.Table, rounds: int = 12) -> ParquetTable:
    """Compare runs of rows of every column with those of `table`."""
    found = ParquetTable(str(file))
    assert sum(found.counts) == len(table)
    chosen = random.Random(1)
    first = 0
    for group, count in enumerate(found.counts):
        for column in columns_of(found.schema, str(file)):
            for _ in range(rounds):
                begin = chosen.randrange(count)
                end = min(count, begin + chosen.randrange(1, 40))
                wanted: list[Any] = table[column.name].slice(first + begin, end - begin).to_pylist()
                if column.is_media:
                    wanted = [None if value is None else value["bytes"] for value in wanted]
                assert found.values(column, group, begin, end) == wanted, (column, group, begin, end)
        first += count
    return found


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "gzip", "lz4", "brotli"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_rows_are_those_that_pyarrow_reads(tmp_path: Path, codec: str, version: str) -> None:
    table = mixed()
    options: dict[str, Any] = {"compression": codec, "data_page_version": version, "data_page_size": 4096}
    check(write_parquet(tmp_path / "a.parquet", table, per_group=1700, **options), table, rounds=4)


@pytest.mark.parametrize("options", [{"use_dictionary": False}, {"write_page_index": True}, {"store_schema": False}])
def test_rows_do_not_depend_on_what_else_a_writer_stores(tmp_path: Path, options: dict[str, Any]) -> None:
    table = mixed()
    check(write_parquet(tmp_path / "a.parquet", table, per_group=900, **options), table, rounds=4)


def pictures(size: int, num_bytes: int, *, missing: bool = False) -> pa.Table:
    contents = [os.urandom(num_bytes + number) for number in range(size)]
    column = [None if missing and n % 4 == 0 else {"bytes": one, "path": f"{n}.png"} for n, one in enumerate(contents)]
    return table_of({"image": column, "text": WORDS[:size]}, {"image": IMAGE})


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("dictionary", [False, True])
def test_large_values_are_read_alone(tmp_path: Path, codec: str, missing: bool, dictionary: bool) -> None:
    table = pictures(70, 30_000, missing=missing)
    file = write_parquet(tmp_path / "a.parquet", table, per_group=40, compression=codec, use_dictionary=dictionary)
    check(file, table, rounds=5)


def test_large_values_are_read_alone_where_some_pieces_are_packed_and_others_stored_as_they_are(tmp_path: Path) -> None:
    halves = [[os.urandom(70_000), bytes(60_000)], [bytes(200_000), os.urandom(150_000)], [os.urandom(65_536)], [b""]]
    table = table_of({"jpg": [b"".join(halves[n % 4][:: 1 - n % 3 % 2 * 2]) for n in range(60)]})
    check(write_parquet(tmp_path / "a.parquet", table, per_group=30, use_dictionary=False), table, rounds=20)


@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_only_the_bytes_of_a_large_value_are_read(tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_parquet(tmp_path / "a.parquet", pictures(64, 100_000), per_group=64, compression=codec)
    table = ParquetTable(str(file))
    column = columns_of(table.schema, str(file))[0]
    table.values(column, 0, 0, 1)
    read: list[int] = []
    plain = table.read_bytes
    monkeypatch.setattr(table, "read_bytes", lambda start, size: read.append(size) or plain(start, size))
    table.values(column, 0, 33, 34)
    assert sum(read) < 100_100
    assert table.unit_bytes(0, column) < 200_000


def test_a_few_rows_of_a_large_row_group_decode_a_few_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = table_of({"text": [f"{number:0100d}" for number in range(200_000)]})
    file = write_parquet(tmp_path / "a.parquet", texts, per_group=200_000, use_dictionary=False)
    table = ParquetTable(str(file))
    column = columns_of(table.schema, str(file))[0]
    table.values(column, 0, 0, 1)
    decoded: list[int] = []
    plain = table.read_bytes
    monkeypatch.setattr(table, "read_bytes", lambda start, size: decoded.append(size) or plain(start, size))
    assert table.values(column, 0, 150_000, 150_010) == texts["text"].slice(150_000, 10).to_pylist()
    assert len(decoded) == 1 and decoded[0] < file.stat().st_size / 10


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_damage_is_an_error_of_ours_or_changes_nothing_else(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = write_parquet(tmp_path_factory.mktemp("damaged") / "a.parquet", mixed().slice(0, 200), per_group=120)
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) - 3, len(content) // 2]))])
    try:
        table = ParquetTable(str(file))
        columns = columns_of(table.schema, str(file))
    except (DatasetError, ConfigError) as error:
        assert str(file) in str(error)
        return
    for group, count in enumerate(table.counts):
        for column in columns:
            try:
                table.values(column, group, 0, min(count, 50))
            except DatasetError as error:
                assert str(file) in str(error)


def test_what_is_no_parquet_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    for content in (b"", b"PAR1", b"<html>not found</html>", b"PAR1" + b"\xff" * 8 + b"PAR1"):
        file.write_bytes(content)
        with pytest.raises(DatasetError, match=r"a\.parquet: is no Parquet file, or is cut off"):
            ParquetTable(str(file))
    file.write_bytes(b"PAR1" + bytes(20) + b"PARE")
    with pytest.raises(ConfigError, match="is encrypted"):
        ParquetTable(str(file))


def test_damaged_pages_name_file_row_group_and_column(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", table_of({"text": WORDS}), per_group=1000)
    start = pq.ParquetFile(file).metadata.row_group(1).column(0).data_page_offset
    with file.open("r+b") as opened:
        opened.seek(start)
        opened.write(b"\xff" * 64)
    table = ParquetTable(str(file))
    column = columns_of(table.schema, str(file))[0]
    assert table.values(column, 0, 0, 5) == WORDS[:5]
    with pytest.raises(DatasetError, match=r"a\.parquet: row group 1, column 'text': cannot be decoded, rows 5 to 9"):
        table.values(column, 1, 5, 10)


def test_a_file_that_was_replaced_is_told(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", table_of({"text": WORDS}), per_group=1000)
    version = ParquetTable(str(file)).version
    write_parquet(file, table_of({"text": WORDS[::-1] + WORDS}), per_group=1000)
    with pytest.raises(DatasetError, match="was replaced while it was in use"):
        ParquetTable(str(file), version)


def test_more_than_is_decoded_at_once_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of({"tokens": [list(range(100))] * 1000})
    file = write_parquet(tmp_path / "a.parquet", table, per_group=1000, use_dictionary=False, compression="none")
    monkeypatch.setattr(parquet_table, "MAX_DECODED_BYTES", 1 << 16)
    found = ParquetTable(str(file))
    with pytest.raises(DatasetError, match="smaller row groups, or convert it"):
        found.values(columns_of(found.schema, str(file))[0], 0, 0, 1)


def test_what_was_decoded_and_used_last_is_kept_up_to_a_bound() -> None:
    kept = DecodedValues(1000)
    arrays = [pa.array([number] * 50, pa.int64()) for number in range(4)]  # of 400 bytes
    kept.keep((0, 0), (0, arrays[0]))
    kept.keep((0, 1), (0, arrays[1]))
    assert kept.get((0, 0)) == (0, arrays[0])
    kept.keep((0, 2), (0, arrays[2]))
    assert [kept.get((0, number)) is not None for number in range(3)] == [True, False, True]
    for _ in range(5):  # what is kept again is counted once
        kept.keep((0, 2), (7, arrays[3]))
    assert [kept.get((0, number)) is not None for number in range(3)] == [True, False, True]
    assert kept.get((0, 2)) == (7, arrays[3])
    kept.keep((0, 3), (0, pa.array(range(MAX_KEPT_UNIT_BYTES // 8 + 1), pa.int64())))
    assert kept.get((0, 3)) is None


def test_rows_on_two_pages_are_decoded_with_those_that_were_decoded_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = table_of({"text": [f"{number:0100d}" for number in range(60_000)]})
    file = write_parquet(tmp_path / "a.parquet", texts, per_group=60_000, use_dictionary=False)
    table = ParquetTable(str(file))
    column = columns_of(table.schema, str(file))[0]
    end = table._known_pages(0, 0).data[1].first_row
    table.values(column, 0, 0, 10)
    decoded: list[int] = []
    plain = table.read_bytes
    monkeypatch.setattr(table, "read_bytes", lambda start, size: decoded.append(size) or plain(start, size))
    assert table.values(column, 0, end - 5, end + 5) == texts["text"].slice(end - 5, 10).to_pylist()
    assert len(decoded) == 1
    assert table.values(column, 0, end - 3, end + 7) == texts["text"].slice(end - 3, 10).to_pylist()
    assert len(decoded) == 1


def test_a_long_text_that_many_rows_have_is_decoded_once(tmp_path: Path) -> None:
    """As system prompts are: 100 bytes of a page would otherwise become 200 MB."""
    texts = [one * 10_000 for one in "abc"]
    column = pa.DictionaryArray.from_arrays(pa.array([n % 3 if n % 7 else None for n in range(20_000)]), texts)
    file = write_parquet(tmp_path / "a.parquet", table_of({"text": column.cast(pa.string())}), per_group=20_000)
    table = ParquetTable(str(file))
    (found,) = columns_of(table.schema, str(file))
    assert table.values(found, 0, 14, 18) == [None, texts[0], texts[1], texts[2]]
    assert table._rows(0, [0], 0, 20_000, "text").nbytes < 200_000


def test_rows_are_the_same_where_a_dictionary_ends_within_a_row_group(tmp_path: Path) -> None:
    words = [None if n % 11 == 0 else f"word {n % 5}" if n < 3000 else f"{n:0200d}" for n in range(12_000)]
    table = table_of({"text": words, "bytes": [None if one is None else one.encode() for one in words]})
    options: dict[str, Any] = {"dictionary_pagesize_limit": 100_000, "data_page_size": 50_000}
    check(write_parquet(tmp_path / "a.parquet", table, per_group=12_000, **options), table, rounds=20)


def test_rows_on_both_sides_of_the_end_of_a_dictionary_are_read_together(tmp_path: Path) -> None:
    """With pyarrow's defaults, unique texts fill a dictionary of 1 MiB, and later ones are stored plainly."""
    texts = [f"{number:012d}" for number in range(100_000)]
    file = ParquetTable(str(write_parquet(tmp_path / "a.parquet", pa.table({"text": texts}), per_group=100_000)))
    (column,) = columns_of(file.schema, "a.parquet")
    for first in range(0, len(texts), 10_000):
        assert file.values(column, 0, first, first + 10_000) == texts[first : first + 10_000]


def test_lists_of_long_texts_that_many_rows_have_are_refused_where_they_would_fill_memory(tmp_path: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([n % 3 for n in range(60_000)]), [one * 10_000 for one in "abc"])
    lists = pa.ListArray.from_arrays(pa.array(range(60_001), pa.int32()), texts)
    file = write_parquet(tmp_path / "a.parquet", table_of({"turns": lists}), per_group=60_000)
    table = ParquetTable(str(file))
    (column,) = columns_of(table.schema.remove_metadata(), str(file))
    with pytest.raises(DatasetError, match="572 MiB unpacked, more than the 256 MiB"):
        table.values(column, 0, 0, 2)


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
    options = {"use_dictionary": False, "column_encoding": {name: name for name in columns}}
    pages = {"data_page_version": version, "compression": codec, "data_page_size": 20_000}
    table = table_of(columns)
    check(write_parquet(tmp_path / "a.parquet", table, per_group=60, **options, **pages), table, rounds=6)


@pytest.mark.parametrize("num_bytes", [50, 20_000])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_page_with_another_checksum_than_its_writer_stored_is_damaged(
    tmp_path: Path, num_bytes: int, version: str
) -> None:
    """One flipped byte of a picture, which no decoder of Parquet would notice."""
    contents = [os.urandom(num_bytes) for _ in range(40)]
    options = {"use_dictionary": False, "compression": "none", "data_page_version": version, "write_statistics": False}
    file = tmp_path / "a.parquet"
    write_parquet(file, table_of({"jpg": contents}), write_page_checksum=True, **options)
    check(file, table_of({"jpg": contents}))
    content = bytearray(file.read_bytes())
    content[content.index(contents[7]) + 30] ^= 1
    file.write_bytes(content)
    table = ParquetTable(str(file))
    with pytest.raises(DatasetError, match=r"a\.parquet: row group 0, column 'jpg': .*(checksum|CRC)"):
        table.values(columns_of(table.schema, str(file))[0], 0, 7, 9)
