"""Rows of Arrow files, as `datasets` saves them: the same values as pyarrow reads; damage is told."""

import dataclasses
import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.errors import DatasetError
from bridge_data.shards.arrow_table import ArrowTable
from bridge_data.shards.table_columns import columns_of
from tests.shards.test_parquet_table import mixed
from tests.tables import save_to_disk, table_of

DATA = "data-00000-of-00001.arrow"


def compare(file: Path, table: pa.Table) -> None:
    found = ArrowTable(str(file))
    assert sum(found.counts) == len(table)
    chosen, first = random.Random(1), 0
    for group, count in enumerate(found.counts):
        for column in columns_of(found.schema, str(file)):
            begin = chosen.randrange(count)
            end = min(count, begin + chosen.randrange(1, 40))
            wanted = table[column.name].slice(first + begin, end - begin).to_pylist()
            assert found.values(column, group, begin, end) == wanted, (column, group, begin, end)
        first += count


def test_rows_are_those_that_pyarrow_reads(tmp_path: Path) -> None:
    table = mixed()
    more = {
        "pairs": pa.array([[n, n + 1] for n in range(len(table))], pa.list_(pa.int16(), 2)),
        "nothing": pa.nulls(len(table)),
        "key": pa.array([bytes([n % 256] * 4) for n in range(len(table))], pa.binary(4)),
        "maybe list": pa.array([None if n % 3 else [None, "a"] for n in range(len(table))], pa.list_(pa.string())),
    }
    for name, column in more.items():
        table = table.append_column(name, column)
    compare(save_to_disk(tmp_path / "saved", table, per_batch=333) / DATA, table)


def test_the_file_format_is_read_as_well(tmp_path: Path) -> None:
    table = mixed().slice(0, 500)
    file = tmp_path / "a.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=77)
    compare(file, table)


def test_what_is_not_supported_is_told(tmp_path: Path) -> None:
    for name, column, options, told in (
        ("codes", pa.array(["a", "b"]).dictionary_encode(), None, "it has dictionaries"),
        ("text", pa.array(["a" * 999, "b" * 999]), pa.ipc.IpcWriteOptions(compression="lz4"), "are compressed"),
    ):
        file = tmp_path / f"{name}.arrow"
        table = pa.table({name: column})
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        with pytest.raises(DatasetError, match=told):
            ArrowTable(str(file))


def test_a_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    file = save_to_disk(tmp_path / "saved", table_of({"text": ["some text"] * 500})) / DATA
    content = file.read_bytes()
    for size in (0, 7, 100, len(content) // 2):
        file.write_bytes(content[:size])
        with pytest.raises(DatasetError, match=r"cannot be read as an Arrow stream: it is damaged, or cut off"):
            ArrowTable(str(file))


def test_a_file_that_is_cut_off_while_it_is_read_is_told(tmp_path: Path) -> None:
    file = save_to_disk(tmp_path / "saved", table_of({"text": ["some text"] * 5000})) / DATA
    table = ArrowTable(str(file))
    column = columns_of(table.schema, str(file))[0]
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(DatasetError, match=str(file)):
        table.values(column, len(table.counts) - 1, 0, 9)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_damage_is_an_error_of_ours_or_changes_nothing_else(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = save_to_disk(tmp_path_factory.mktemp("damaged") / "saved", mixed().slice(0, 150)) / DATA
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    try:
        table = ArrowTable(str(file))
        columns = columns_of(table.schema, str(file))
    except DatasetError as error:
        assert str(file) in str(error)
        return
    for group, count in enumerate(table.counts):
        for column in columns:
            try:
                table.values(column, group, 0, count)
            except DatasetError as error:
                assert str(file) in str(error)


@pytest.mark.parametrize("kind", ["view", "union", "runs"])
def test_a_column_after_one_that_is_not_understood_is_an_error(tmp_path: Path, kind: str) -> None:
    """Of how many buffers such a column has, the schema does not say."""
    numbers = pa.array(range(30), pa.int64())
    columns = {
        "view": pa.array([f"a text of more than 12 bytes: {n}" for n in range(30)], pa.string_view()),
        "union": pa.UnionArray.from_sparse(pa.array([0, 1] * 15, pa.int8()), [numbers, numbers]),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([10, 30], pa.int32()), pa.array([1, 2])),
    }
    file = save_to_disk(tmp_path / "a", table_of({"first": numbers, "odd": columns[kind], "last": numbers})) / DATA
    table = ArrowTable(str(file))
    first, _, last = columns_of(table.schema, str(file))
    assert table.values(first, 0, 3, 6) == [3, 4, 5]
    with pytest.raises(DatasetError, match="there is no column 'last', or it follows one of a type"):
        table.values(last, 0, 3, 6)


def test_a_batch_of_fewer_buffers_than_the_schema_has_is_damaged(tmp_path: Path) -> None:
    file = save_to_disk(tmp_path / "a", table_of({"number": list(range(30)), "text": ["a"] * 30})) / DATA
    table = ArrowTable(str(file))
    table._batches = [dataclasses.replace(batch, buffers=batch.buffers[:4]) for batch in table._batches]
    for column in columns_of(table.schema, str(file)):
        with pytest.raises(DatasetError, match="fewer buffers than its schema"):
            table.column_bytes(0, column)
