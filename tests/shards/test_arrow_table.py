"""Rows of Arrow files, as `datasets` saves them: the same values as pyarrow reads; damage is told."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data.errors import DatasetError
from bridge_data.shards.arrow_table import ArrowTable
from bridge_data.shards.table_columns import columns_of
from bridge_data.storage import locations
from tests.object_store import Bucket
from tests.shards.test_parquet_table import mixed
from tests.tables import save_to_disk, table_of

DATA = "data-00000-of-00001.arrow"


def stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without a type that only its package knows."""
    return column.cast(column.type.storage_type) if isinstance(column.type, Square) else column


def compare(file: Path, table: pa.Table) -> None:
    found = ArrowTable(str(file))
    assert sum(found.counts) == len(table)
    chosen, first = random.Random(1), 0
    for group, count in enumerate(found.counts):
        for column in columns_of(found.schema, str(file)):
            begin = chosen.randrange(count)
            end = min(count, begin + chosen.randrange(1, 40))
            wanted = stored(table[column.name].slice(first + begin, end - begin)).to_pylist()
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


class Square(pa.ExtensionType):  # type: ignore[misc]
    """As `Array2D` of `datasets`, which registers its type when it is imported."""

    def __init__(self) -> None:
        super().__init__(pa.list_(pa.list_(pa.int32())), "tests.square")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> "Square":
        return cls()


@pytest.fixture
def square() -> Iterator[Square]:
    pa.register_extension_type(Square())
    yield Square()
    pa.unregister_extension_type("tests.square")


SIZE = 90


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
        "last": numbers,
    }


@pytest.mark.parametrize("form", ["stream", "file"])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("is_registered", [False, True])
def test_columns_of_every_type_and_those_after_them_are_those_that_pyarrow_reads(
    tmp_path: Path, form: str, compression: str | None, is_registered: bool, request: pytest.FixtureRequest
) -> None:
    table = pa.table(odd_columns(request.getfixturevalue("square") if is_registered else Square()))
    file = tmp_path / "a.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=form == "stream")
    new = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with pa.OSFile(str(file), "wb") as sink, new(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=40)
    with pa.memory_map(str(file)) as source:
        read = pa.ipc.open_stream(source).read_all() if form == "stream" else pa.ipc.open_file(source).read_all()
        compare(file, read)


def test_a_dictionary_that_grows_or_is_replaced_is_that_of_its_batch(tmp_path: Path) -> None:
    for deltas in (False, True):
        words = [pa.array(list("abab")).dictionary_encode(), pa.array(list("abca")).dictionary_encode()]
        batches = [pa.record_batch({"word": one, "n": pa.array(range(4))}) for one in [*words, words[1]]]
        file = tmp_path / f"{deltas}.arrow"
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
            for batch in batches:
                writer.write_batch(batch)
        compare(file, pa.Table.from_batches(batches))


def test_a_compressed_batch_that_would_fill_memory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.arrow"
    table = pa.table({"zeros": pa.array(bytes(1 << 20) for _ in range(300))})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    with pytest.raises(DatasetError, match=r"a\.arrow.*300 MiB"):
        ArrowTable(str(file))


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("form", ["stream", "file"])
def test_sizes_in_a_store_are_those_of_the_local_copy_and_take_no_request_for_each_column(
    bucket: Bucket, compression: str | None, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = pa.array([None if n % 3 else f"{n:050d}" for n in range(400)])
    media = pa.StructArray.from_arrays([text.cast(pa.binary()), text], ["bytes", "path"])
    large = pa.array([random.Random(n).randbytes(2000) for n in range(400)])  # several windows of buffers
    table = pa.table({"media": media, "large": large, **{f"text{number}": text for number in range(20)}})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if form == "stream" else pa.ipc.new_file
    with pa.OSFile(str(bucket.folder / "a.arrow"), "wb") as sink, new(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=200)
    num_reads = 0

    def counted(*arguments: Any) -> Any:
        nonlocal num_reads
        num_reads += 1
        return read_with_version(*arguments)

    read_with_version = locations.read_with_version
    monkeypatch.setattr(locations, "read_with_version", counted)
    found: list[list[int]] = []
    for path in (str(bucket.folder / "a.arrow"), f"{bucket.url}/a.arrow"):
        num_reads = 0
        opened = ArrowTable(path)
        columns = columns_of(opened.schema, path)
        sizes = (opened.column_bytes, opened.unit_bytes)
        found.append([size(group, column) for group in range(2) for column in columns for size in sizes])
    assert found[0] == found[1]
    assert num_reads < 30, num_reads  # of 2 batches with 22 columns


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
