"""Rows of Arrow files, as `datasets` saves them: the same values as pyarrow reads; damage is told."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bridge_data.errors import DatasetError
from bridge_data.shards.arrow_table import ArrowTable
from bridge_data.shards.table_columns import columns_of
from tests.object_store import Bucket
from tests.shards.reads import record_reads
from tests.shards.rows import compare, mixed
from tests.tables import save_to_disk, table_of

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


def test_a_compressed_batch_that_would_fill_memory_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow", "stream", pa.table({"zeros": [bytes(1 << 20)] * 300}), compression="zstd")
    with pytest.raises(DatasetError, match=r"a\.arrow.*300 MiB"):
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
