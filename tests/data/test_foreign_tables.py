"""Files of other writers: every value that is read from a Parquet or Arrow file is the one that pyarrow reads.

Random columns and rows, written by pyarrow, polars, DuckDB, fastparquet, pandas and `datasets` with random settings;
writers that are not installed are left out. `BRIDGE_DATA_EXAMPLES` is the number of files.
"""

import datetime
import decimal
import importlib.util
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge_data.plugins.tables.table_columns import columns_of
from bridge_data.plugins.tables.table_records import open_records, open_table
from bridge_data.storage import location

EXAMPLES = int(os.environ.get("BRIDGE_DATA_EXAMPLES", "60"))
SEED = int(os.environ.get("BRIDGE_DATA_SEED", "0"))
NUM_TESTS = 6

Writer = Callable[[random.Random, pa.Table, Path], Path]


def values_of(chosen: random.Random, count: int, one: Callable[[], Any]) -> list[Any]:
    rate = chosen.choice([0, 0, 0.2, 0.9])
    pool = [one() for _ in range(chosen.choice([1, 5, count]))] if count else []
    return [
        None if chosen.random() < rate else chosen.choice(pool) if chosen.random() < 0.7 else one()
        for _ in range(count)
    ]


def simple_columns(chosen: random.Random, count: int) -> dict[str, pa.Array]:
    """Columns of types that every writer knows."""
    size = chosen.choice([3, 30, 300, 6000])
    kinds: dict[str, tuple[pa.DataType, Callable[[], Any]]] = {
        "int64": (pa.int64(), lambda: chosen.randrange(-(2**62), 2**62) >> chosen.randrange(62)),
        "int8": (pa.int8(), lambda: chosen.randrange(-128, 128)),
        "float64": (pa.float64(), lambda: chosen.uniform(-1e9, 1e9)),
        "float32": (pa.float32(), lambda: float(chosen.randrange(1000))),
        "bool": (pa.bool_(), lambda: chosen.random() < 0.5),
        "text": (pa.string(), lambda: "é"[: chosen.randrange(2)] + "ab c" * chosen.randrange(max(1, size // 4))),
        "bytes": (pa.binary(), lambda: chosen.randbytes(chosen.randrange(size))),
        "date": (pa.date32(), lambda: datetime.date(1970, 1, 1) + datetime.timedelta(chosen.randrange(40000))),
        "time": (
            pa.timestamp("us"),
            lambda: datetime.datetime(2000, 1, 1) + datetime.timedelta(0, chosen.random() * 1e9),
        ),
    }
    names = chosen.sample(list(kinds), chosen.randrange(1, 6))
    return {name: pa.array(values_of(chosen, count, kinds[name][1]), kinds[name][0]) for name in names}


def rich_columns(chosen: random.Random, count: int, *, arrow: bool) -> dict[str, pa.Array]:
    """Columns of nested and rare types; with `arrow`, also those that Parquet does not have."""

    def texts() -> list[Any]:
        return values_of(chosen, count, lambda: "word" * chosen.randrange(9))

    def numbers(bound: int) -> list[Any]:
        return values_of(chosen, count, lambda: chosen.randrange(bound))

    def lists(one: Callable[[], Any], length: int | None = None) -> list[Any]:
        return values_of(
            chosen, count, lambda: [one() for _ in range(chosen.randrange(4) if length is None else length)]
        )

    def text() -> Any:
        return chosen.choice([None, "a", "bc" * 20])

    tensor = pa.fixed_shape_tensor(pa.int32(), (2, 2))
    made: dict[str, Callable[[], pa.Array]] = {
        "list": lambda: pa.array(lists(text), pa.list_(pa.string())),
        "deep": lambda: pa.array(
            lists(lambda: [{"a": 1, "b": [text()]}]),
            pa.list_(pa.list_(pa.struct({"a": pa.int32(), "b": pa.list_(pa.string())}))),
        ),
        "fixed": lambda: pa.array(lists(lambda: chosen.randrange(9), 3), pa.list_(pa.int16(), 3)),
        "large": lambda: pa.array(lists(lambda: b"x"), pa.large_list(pa.large_binary())),
        "struct": lambda: pa.array(
            values_of(chosen, count, lambda: {"x": 1, "y": text()}), pa.struct({"x": pa.int8(), "y": pa.string()})
        ),
        "map": lambda: pa.array(lists(lambda: ("k", text())), pa.map_(pa.string(), pa.string())),
        "codes": lambda: pa.array(texts(), pa.string()).dictionary_encode(),
        "decimal": lambda: pa.array([n and decimal.Decimal(n) / 4 for n in numbers(999)], pa.decimal128(20, 2)),
        "wide": lambda: pa.array([n and decimal.Decimal(n) for n in numbers(999)], pa.decimal256(50, 2)),
        "half": lambda: pa.array(numbers(99), pa.float32()).cast(pa.float16()),
        "view": lambda: pa.array(texts(), pa.string_view()),
        "large text": lambda: pa.array(texts(), pa.large_string()),
        "id": lambda: pa.array(values_of(chosen, count, lambda: chosen.randbytes(16)), pa.uuid()),
        "json": lambda: pa.array(values_of(chosen, count, lambda: '{"a": 1}'), pa.json_()),
        "tensor": lambda: pa.ExtensionArray.from_storage(
            tensor, pa.array(lists(lambda: chosen.randrange(9), 4), tensor.storage_type)
        ),
        "nothing": lambda: pa.nulls(count),
        "key": lambda: pa.array(values_of(chosen, count, lambda: chosen.randbytes(5)), pa.binary(5)),
    }
    if arrow:
        made |= {
            "listed codes": lambda: pa.array(lists(text), pa.list_(pa.dictionary(pa.int8(), pa.string()))),
            "opaque": lambda: pa.ExtensionArray.from_storage(
                pa.opaque(pa.string(), "thing", "vendor"), pa.array(texts(), pa.string())
            ),
            "union": lambda: pa.UnionArray.from_sparse(
                pa.array([n % 2 for n in range(count)], pa.int8()),
                [pa.array(numbers(9), pa.int64()), pa.array(texts(), pa.string())],
            ),
            "runs": lambda: pa.RunEndEncodedArray.from_arrays(pa.array([count], pa.int32()), pa.array(["all"])),
            "list view": lambda: pa.array(lists(text), pa.list_view(pa.string_view())),
            "duration": lambda: pa.array(numbers(999), pa.duration("s")),
            "interval": lambda: pa.array(
                values_of(chosen, count, lambda: (chosen.randrange(9), 1, 2)), pa.month_day_nano_interval()
            ),
        }
        if not count:
            del made["runs"]
    return {name: made[name]() for name in chosen.sample(list(made), chosen.randrange(1, 6))}


def by_pyarrow(chosen: random.Random, table: pa.Table, folder: Path) -> Path:
    table = pa.table(
        dict(zip(table.column_names, table.columns, strict=True)) | rich_columns(chosen, len(table), arrow=False)
    )
    encodings = {"int64": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY", "bytes": "DELTA_LENGTH_BYTE_ARRAY"}
    encodings |= {"float64": "BYTE_STREAM_SPLIT", "key": "DELTA_BYTE_ARRAY", "half": "BYTE_STREAM_SPLIT"}
    options: dict[str, Any] = {"use_dictionary": chosen.random() < 0.5}
    if not options["use_dictionary"] and chosen.random() < 0.7:
        options["column_encoding"] = {name: one for name, one in encodings.items() if name in table.column_names}
    pq.write_table(
        table,
        folder / "a.parquet",
        row_group_size=chosen.choice([7, 100, 10_000]),
        compression=chosen.choice(["none", "snappy", "zstd", "gzip", "lz4", "brotli"]),
        data_page_version=chosen.choice(["1.0", "2.0"]),
        data_page_size=chosen.choice([200, 5000, 1 << 20]),
        write_batch_size=chosen.choice([3, 1024]),
        dictionary_pagesize_limit=chosen.choice([100, 1 << 20]),
        write_page_checksum=chosen.random() < 0.5,
        store_schema=chosen.random() < 0.8,
        write_page_index=chosen.random() < 0.3,
        **options,
    )
    return folder / "a.parquet"


def by_arrow(chosen: random.Random, table: pa.Table, folder: Path) -> Path:
    table = pa.table(
        dict(zip(table.column_names, table.columns, strict=True)) | rich_columns(chosen, len(table), arrow=True)
    )
    new = chosen.choice([pa.ipc.new_file, pa.ipc.new_stream])
    options = pa.ipc.IpcWriteOptions(
        compression=chosen.choice([None, None, "lz4", "zstd"]),
        emit_dictionary_deltas=new is pa.ipc.new_stream and chosen.random() < 0.5,
        unify_dictionaries=new is pa.ipc.new_file,
    )
    with new(str(folder / "a.arrow"), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=chosen.choice([5, 64, 5000]))
    return folder / "a.arrow"


def by_polars(chosen: random.Random, table: pa.Table, folder: Path) -> Path:
    import polars

    columns = {"list": pa.array([[str(n)] * (n % 3) for n in range(len(table))], pa.list_(pa.string()))}
    frame = polars.from_arrow(pa.table(dict(zip(table.column_names, table.columns, strict=True)) | columns))
    if "text" in table.column_names and chosen.random() < 0.5:
        frame = frame.with_columns(polars.col("text").cast(polars.Categorical))
    if chosen.random() < 0.5:
        codec = chosen.choice(["uncompressed", "snappy", "zstd", "lz4"])
        frame.write_parquet(folder / "a.parquet", compression=codec, row_group_size=chosen.choice([50, 5000]))
        return folder / "a.parquet"
    write = chosen.choice([frame.write_ipc, frame.write_ipc_stream])
    write(folder / "a.arrow", compression=chosen.choice(["uncompressed", "zstd", "lz4"]))
    return folder / "a.arrow"


def by_duckdb(chosen: random.Random, table: pa.Table, folder: Path) -> Path:
    import duckdb

    version, codec = chosen.choice(["v1", "v2"]), chosen.choice(["snappy", "zstd", "uncompressed", "gzip"])
    engine = duckdb.connect()
    engine.register("rows", table)
    columns = "*, {'a': 1, 'b': ['x']} AS nested" if chosen.random() < 0.5 else "*"
    options = f"FORMAT parquet, PARQUET_VERSION {version}, COMPRESSION {codec}, ROW_GROUP_SIZE 2048"
    engine.execute(f"COPY (SELECT {columns} FROM rows) TO '{folder}/a.parquet' ({options})")
    return folder / "a.parquet"


def by_pandas(chosen: random.Random, table: pa.Table, folder: Path) -> Path:
    frame = table.drop_columns([name for name in ("date",) if name in table.column_names]).to_pandas()
    frame["row"] = range(len(table))
    engines = ["pyarrow", *(["fastparquet"] if importlib.util.find_spec("fastparquet") else [])]
    engine = chosen.choice(engines)
    codec = chosen.choice([None, "snappy", "gzip", "zstd"])
    frame.to_parquet(folder / "a.parquet", engine=engine, compression=codec, index=chosen.random() < 0.3)
    return folder / "a.parquet"


def by_datasets(chosen: random.Random, table: pa.Table, folder: Path) -> Path:
    import datasets

    columns = dict(zip(table.column_names, table.columns, strict=True))
    columns["square"] = pa.array([[[n, 1], [2, 3]] for n in range(len(table))], pa.list_(pa.list_(pa.int32())))
    columns["after"] = pa.array([str(n) for n in range(len(table))])
    found = datasets.Dataset(pa.table(columns))
    if len(table):
        features = found.features.copy()
        features["square"] = datasets.Array2D((2, 2), "int32")
        found = found.cast(features)
    if chosen.random() < 0.3:
        found.to_parquet(str(folder / "a.parquet"), batch_size=chosen.choice([20, 1000]))
        return folder / "a.parquet"
    found.save_to_disk(str(folder / "saved"))
    return next((folder / "saved").glob("*.arrow"))


WRITERS: dict[str, tuple[Writer, tuple[str, ...]]] = {
    "pyarrow, Parquet": (by_pyarrow, ()),
    "pyarrow, Arrow": (by_arrow, ()),
    "polars": (by_polars, ("polars",)),
    "duckdb": (by_duckdb, ("duckdb",)),
    "pandas and fastparquet": (by_pandas, ("pandas",)),
    "datasets": (by_datasets, ("datasets",)),
}


def stored(array: pa.Array) -> pa.Array:
    """Values of an extension type of another package, as they are stored."""
    own = pa.UuidType, pa.Bool8Type
    return array.storage if isinstance(array, pa.ExtensionArray) and not isinstance(array.type, own) else array


def read_by_pyarrow(file: Path) -> dict[str, list[Any]]:
    if file.suffix == ".parquet":
        table = pq.ParquetFile(file).read()
    else:
        with pa.memory_map(str(file)) as source:
            is_file = source.read(6) == b"ARROW1"
            source.seek(0)
            table = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source).read_all()
    return {
        name: [value for chunk in column.chunks for value in stored(chunk).to_pylist()]
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


@pytest.mark.parametrize("name", WRITERS)
def test_values_are_those_that_pyarrow_reads(name: str, tmp_path: Path) -> None:
    write, needed = WRITERS[name]
    if missing := [package for package in needed if importlib.util.find_spec(package) is None]:
        pytest.skip(f"needs {missing[0]}")
    for number in range(-(-EXAMPLES // NUM_TESTS)):
        chosen = random.Random(f"{SEED} {name} {number}")
        folder = tmp_path / str(number)
        folder.mkdir()
        count = chosen.choice([0, 1, 40, 700, 3000]) if name != "datasets" else chosen.choice([1, 40, 700, 3000])
        file = write(chosen, pa.table(simple_columns(chosen, count)), folder)
        wanted = read_by_pyarrow(file)
        records = open_records(location(folder), [(file.name, str(file))], "train", list)
        assert records.num_samples == len(next(iter(wanted.values()))) and {c.name for c in records.columns} == {
            *wanted
        }
        reader = records.reader()
        for index in sorted(chosen.sample(range(records.num_samples), min(25, records.num_samples))):
            expected = {
                one.part: wanted[one.name][index] for one in records.columns if wanted[one.name][index] is not None
            }
            assert reader.read(index).parts == expected, (name, number, index)
        table, first = open_table(str(file)), 0
        for group, group_count in enumerate(table.counts):
            begin = chosen.randrange(group_count + 1)
            end = chosen.randrange(begin, group_count + 1)
            for column in columns_of(table.schema, str(file)):
                found = table.values(column, group, begin, end)
                assert found == wanted[column.name][first + begin : first + end], (
                    name,
                    number,
                    column,
                    group,
                    begin,
                    end,
                )
            first += group_count
