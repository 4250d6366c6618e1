"""Columns of tables, JSONL files and ranges of data sets: what Python reads is what is chosen by."""

import decimal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bridge_data.errors import ConfigError
from bridge_data.plan import load_plan
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.shards.records import Records
from bridge_data.shards.subset import Subset
from bridge_data.shards.where.choosing import choose
from bridge_data.shards.where.chosen_records import ChosenRecords
from bridge_data.shards.where.sample_columns import INDEX, KEY, ROWS_AT_ONCE
from tests.prepared import write_texts
from tests.shards.where.test_choosing import Clause
from tests.tables import save_to_disk, table_of, write_parquet

SIZE = 90
TABLE = {"text": [str(number) for number in range(SIZE)], "half": [number / 2 for number in range(SIZE)]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    whole = table_of(TABLE)
    write_parquet(tmp_path / "one.parquet", whole, per_group=25)
    for number in range(3):
        write_parquet(tmp_path / "files" / f"part-{number}.parquet", whole.slice(30 * number, 30), per_group=12)
    save_to_disk(tmp_path / "saved", whole, per_batch=20, num_files=2)
    save_to_disk(tmp_path / "one batch", whole, per_batch=SIZE)
    return tmp_path


def records_at(path: Path) -> Records:
    (source,) = load_plan(path).sources
    return source.records


def texts(records: Records, where: str) -> list[int]:
    """The numbers that the chosen samples say."""
    view = ChosenRecords(records, choose(records, [Clause(where)]))
    reader = view.reader()
    return [int(reader.read(index).parts["text"]) for index in range(view.num_samples)]


@pytest.mark.parametrize("name", ["one.parquet", "files", "files/part-*.parquet", "saved", "one batch"])
@pytest.mark.parametrize(
    ("where", "is_chosen"),
    [
        ("index % 3 = 0", lambda n: n % 3 == 0),
        ("half >= 40 or text like '1%'", lambda n: n >= 80 or str(n).startswith("1")),
        ("half = 44.5", lambda n: n == 89),
    ],
)
def test_rows_of_all_files_are_chosen_by_their_columns(
    folder: Path, name: str, where: str, is_chosen: Callable[[int], bool]
) -> None:
    assert texts(records_at(folder / name), where) == [number for number in range(SIZE) if is_chosen(number)]


def test_keys_and_shards_are_those_that_samples_have(folder: Path) -> None:
    for name in ("files", "saved"):
        records = records_at(folder / name)
        reader = records.reader()
        samples = [reader.read(index) for index in range(SIZE)]
        chosen = texts(records, "key = '7'")
        assert chosen == [number for number, sample in enumerate(samples) if sample.key == "7"] and len(chosen) > 1
        last = samples[-1].shard_name
        assert texts(records, f"shard = '{last}'") == [n for n, one in enumerate(samples) if one.shard_name == last]


@pytest.mark.parametrize("name", ["files", "saved", "lines.jsonl", "tars", "keyed.parquet"])
def test_the_key_that_batches_have_chooses_the_sample(folder: Path, name: str) -> None:
    if name == "lines.jsonl":
        (folder / name).write_text("".join(f'{{"text": "{number}"}}\n' for number in range(SIZE)))
        prepare_jsonl(folder / name)
    elif name == "tars":
        write_texts(folder / name, SIZE)
    elif name == "keyed.parquet":
        keys = [f"own{number}" for number in range(SIZE)]
        write_parquet(folder / name, pa.table(TABLE | {"__key__": keys, "key": keys}), per_group=25)
    records = records_at(folder / name)
    reader = records.reader()
    keys = [reader.read(index).full_key for index in (3, 70)]
    assert all(("/" in key) == (name != "lines.jsonl") for key in keys)
    listed = f"__key__ in ('{keys[0]}', '{keys[1]}')"
    assert choose(records, [Clause(listed)]).between(0, SIZE) == [3, 70]
    others = choose(records, [Clause(f"not {listed} and shard is not null and key is not null")])
    assert others.between(0, SIZE) == [number for number in range(SIZE) if number not in (3, 70)]
    assert choose(Subset(records, 60, 80), [Clause(listed)]).between(0, 20) == [10]


def test_the_columns_of_a_range_are_those_below_it_with_numbers_of_its_own(folder: Path) -> None:
    records = Subset(records_at(folder / "files"), 20, 70)
    assert texts(records, "index < 3 or half >= 34") == [20, 21, 22, 68, 69]
    assert texts(Subset(records, 10, 50), "index = 0 or key = '7'") == [30, 37, 67]


def test_lines_are_chosen_by_their_number_and_their_bytes(folder: Path) -> None:
    path = folder / "lines.jsonl"
    path.write_text("".join(f'{{"text": "{"x" * number}"}}\n' for number in range(SIZE)))
    prepare_jsonl(path)
    records = records_at(path)
    found = choose(records, [Clause("bytes = 13 or key = '5' or index = 80 and shard = 'lines.jsonl'")])
    assert found.between(0, SIZE) == [0, 5, 80]


def test_batches_are_bounded_and_in_the_order_of_samples(tmp_path: Path) -> None:
    size = 3 * ROWS_AT_ONCE
    write_parquet(tmp_path / "a.parquet", pa.table({"n": np.arange(size)}), per_group=size)
    found = list(records_at(tmp_path / "a.parquet").sample_columns().batches([("n",), INDEX, KEY]))
    assert [len(indices) for indices, _ in found] == [ROWS_AT_ONCE] * 3
    for indices, values in found:
        assert values[("n",)].to_pylist() == values[INDEX].to_pylist() == indices.tolist()
        assert values[KEY].to_pylist() == list(map(str, indices.tolist()))


def test_without_our_index_the_way_to_one_is_named(folder: Path) -> None:
    root = write_texts(folder / "tars", 60)
    (root / ".nv-meta" / "index.bridge").unlink()
    with pytest.raises(
        ConfigError, match=r"where: needs our index of the data set; run `bridge-data prepare .*index-only"
    ):
        choose(records_at(root), [Clause("index = 1")])


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_numbers_of_types_that_duckdb_does_not_know_are_compared_or_refused(folder: Path, form: str) -> None:
    numbers = [decimal.Decimal(number) for number in range(9)]
    half = pa.array(np.arange(9, dtype=np.float16))
    table = pa.table(
        {
            "half": half,
            "small": pa.array(numbers, pa.decimal256(30, 2)),
            "large": pa.array(numbers, pa.decimal256(60, 2)),
            "halves": pa.array([[one] for one in half], pa.list_(pa.float16())),
        }
    )
    path = write_parquet(folder / "n.parquet", table) if form == "parquet" else save_to_disk(folder / "n", table)
    (source,) = load_plan(path).sources
    for text in ("half > 4", "small > 4.0"):
        assert choose(source.records, [Clause(text)]).num_chosen == 4
    for name in ("large", "halves"):
        with pytest.raises(ConfigError, match=rf"column '{name}' has the type .*(60|halffloat)"):
            choose(source.records, [Clause(f"{name} is not null")])
