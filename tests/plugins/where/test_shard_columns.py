"""Columns of all kinds of data: what Python reads is what is chosen by."""

import decimal
import json
import random
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge_data.data import open_shards
from bridge_data.data.prepared import PreparedDataset
from bridge_data.data.records import Records
from bridge_data.data.subset import Subset
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.plugins.where.choices import ChosenRecords
from bridge_data.plugins.where.choosing import choose
from bridge_data.plugins.where.column_writing import prepare_columns
from bridge_data.plugins.where.own_columns import OwnColumns
from bridge_data.plugins.where.shard_columns import ShardColumns
from bridge_data.plugins.where.stored_columns import COLUMNS_PARQUET, StoredColumns
from bridge_data.prepare.jsonl_lines import prepare_jsonl
from bridge_data.prepare.sample_columns import (
    BYTES,
    INDEX,
    KEY,
    ROWS_AT_ONCE,
    SHARD,
    columns_of,
)
from tests.cli.runner import run_command
from tests.data.tars import write_shards
from tests.object_store import Bucket
from tests.plugins.where.test_choosing import Clause
from tests.prepared import CRUDE, write_dataset, write_texts
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
    found = list(columns_of(records_at(tmp_path / "a.parquet")).batches([("n",), INDEX, KEY]))
    assert [len(indices) for indices, _ in found] == [ROWS_AT_ONCE] * 3
    for indices, values in found:
        assert values[("n",)].to_pylist() == values[INDEX].to_pylist() == indices.tolist()
        assert values[KEY].to_pylist() == list(map(str, indices.tolist()))


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


NUM_SAMPLES = 230
LAST = NUM_SAMPLES - 1


def parts(number: int) -> dict[str, bytes]:
    """The parts of a sample: some are missing here and there, one is in the last sample alone."""
    found = {"txt": b"x" * (number % 7), "info.json": b"{}" + b" " * number}
    if number % 3 == 0:
        found["jpg"] = b"y" * (number * 5)
    if number == LAST:
        found["late"] = b"z"
    return found


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    samples = ({"__key__": f"{number:04d}", **parts(number)} for number in range(NUM_SAMPLES))
    return write_dataset(tmp_path / "data", samples, definition=CRUDE, per_shard=10)


def chosen(root: Path, text: str) -> list[int]:
    """The numbers that the keys of chosen samples are."""
    records = open_shards(root, "train")
    choice, reader = choose(records, [Clause(text)]), records.reader()
    return [int(reader.read(index).key) for index in choice.between(0, records.num_samples)]


def test_columns_are_what_reading_the_samples_finds(root: Path) -> None:
    records = open_shards(root, "train")
    reader, columns = records.reader(), ShardColumns(records)
    paths = [KEY, SHARD, INDEX, BYTES, ("txt", "bytes"), ("info.json", "bytes"), ("jpg", "bytes"), ("late", "bytes")]
    assert set(paths) == columns.types().keys()
    seen = 0
    for indices, values in columns.batches(paths):
        rows = zip(*(values[path].to_pylist() for path in paths), strict=True)
        for index, (key, shard, number, size, *sizes) in zip(indices.tolist(), rows, strict=True):
            sample = reader.read(index)
            assert (key, shard, number) == (sample.key, sample.shard_name, index)
            content = {name: len(data) for name, data in sample.parts.items()}
            assert sizes == [content.get(path[0]) for path in paths[4:]] and size == sum(content.values())
            seen += 1
    assert seen == NUM_SAMPLES


def test_a_part_that_a_later_shard_has_is_found_and_names_with_dots_are_written_in_quotes(root: Path) -> None:
    assert chosen(root, "late.bytes = 1") == [LAST]
    assert chosen(root, "late.bytes is null and jpg.bytes > 1100") == [n for n in range(221, LAST) if n % 3 == 0]
    assert chosen(root, '"info.json".bytes < 5') == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"unknown column 'info.json.bytes'; did you mean '\"info.json\".bytes'"):
        chosen(root, "info.json.bytes < 5")


def test_of_tars_that_nobody_has_prepared_the_command_that_is_named_makes_the_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    write_shards(tmp_path / "tars")

    def num_chosen(name: str) -> int:
        records = load_plan(tmp_path / name).sources[0].records
        return choose(records, [Clause("json.caption = 'c7'")]).num_chosen

    with pytest.raises(
        ConfigError, match=r"There is: __key__, key, .*More: `bridge-data prepare .*json\.FIELD` pr"
    ) as refused:
        num_chosen("tars")
    command = str(refused.value).split("`")[1].replace("json.FIELD", "json.caption")
    result = run_command(*shlex.split(command)[1:], "--no-progress")
    assert result.exit_code == 0, result.output
    assert (num_chosen("tars"), num_chosen("tars/data-{000000..000003}.tar")) == (1, 1)


COLUMNS = ["json.score", "json.meta.lang", "json.ok", "json.tags"]


def content(number: int) -> dict[str, Any]:
    """The JSON part of a sample: fields are missing here and there, and `score` is an integer in some shards."""
    score = number if number < 100 else number / 2
    found: dict[str, Any] = {"score": score, "ok": number % 2 == 0, "tags": ["a", "b"][: number % 3]}
    if number % 5:
        found["meta"] = {"lang": "de" if number % 4 else "en"}
    return found if number % 7 else {}


def score(number: int) -> float | None:
    found: float | None = content(number).get("score")
    return found


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    samples = ({"__key__": f"{number:06d}", "json": json.dumps(content(number)).encode()} for number in range(300))
    root = write_dataset(tmp_path / "data", samples, definition={"sample_type": {}, "field_map": {}})
    prepare_columns(root, COLUMNS)
    return root


@pytest.mark.parametrize(
    ("text", "is_chosen"),
    [
        ("json.score >= 60", lambda number: (score(number) or 0) >= 60),
        ("json.score is null", lambda number: score(number) is None),
        ("list_sum([json.score, 1]) > 100", lambda number: (score(number) or 0) + 1 > 100),
        (
            "json.meta.lang in ('en', 'fr') and json.ok",
            lambda number: content(number).get("meta") == {"lang": "en"} and content(number)["ok"],
        ),
        ("json.meta.lang <> 'de'", lambda number: content(number).get("meta") == {"lang": "en"}),
        ("list_contains(json.tags, 'b')", lambda number: "b" in content(number).get("tags", ())),
        ("json.bytes < 10 and key > '000100'", lambda number: number % 7 == 0 and number > 100),
    ],
)
def test_stored_fields_choose_what_python_chooses(data: Path, text: str, is_chosen: Callable[[int], bool]) -> None:
    assert chosen(data, text) == [number for number in range(300) if is_chosen(number)]


def test_other_values_are_another_choice(data: Path) -> None:
    identities = []
    for columns in (COLUMNS, ["json.score"], ["json.score", "json.ok"]):
        prepare_columns(data, columns)
        assert len(chosen(data, "json.score < 50")) == 42
        identities.append(columns_of(open_shards(data, "train")).identity())
    assert identities[0] != identities[1] != identities[2]


def test_damage_anywhere_in_stored_values_is_an_error_with_the_way_out(data: Path) -> None:
    index = PreparedDataset.open(data).index
    assert index is not None

    def stored() -> list[Any]:
        found = StoredColumns(data, path)
        return [found.table(shard, found.kinds).to_pydict() for shard in index.entries.values()]

    path = data / ".nv-meta" / COLUMNS_PARQUET
    whole, expected, num_errors = path.read_bytes(), stored(), 0
    for at in (*range(0, 300, 2), *random.Random(0).sample(range(len(whole)), 150)):  # also in the headers of pages
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            assert stored() == expected
        except DatasetError as error:
            num_errors += 1
            assert str(path) in str(error) and "--tar-index-only --store-columns json." in str(error)
    assert num_errors > 250


NUM_ROWS = ROWS_AT_ONCE + 10


def test_a_file_of_columns_is_read_in_bounded_batches_also_from_a_store(bucket: Bucket) -> None:
    numbers = list(range(NUM_ROWS))
    table = {"key": list(map(str, numbers)), "score": numbers, "other": [b"x"] * NUM_ROWS}
    pq.write_table(pa.table(table), bucket.folder / "own.parquet")
    for path in (f"{bucket.folder}/own.parquet", f"{bucket.url}/own.parquet"):
        own = OwnColumns(path)
        batches = list(own.batches(["key", "score"]))
        assert list(own.types) == ["key", "score", "other"]
        assert [(batch.num_rows, batch.schema.names) for batch in batches] == [
            (ROWS_AT_ONCE, ["key", "score"]),
            (10, ["key", "score"]),
        ]
        assert [score for batch in batches for score in batch.column("score").to_pylist()] == numbers
    with pytest.raises(ConfigError, match=rf"columns: {bucket.url}/none.parquet: no such file"):
        OwnColumns(f"{bucket.url}/none.parquet")
    twice = pa.table([pa.array(["a"]), pa.array([1]), pa.array([2])], names=["key", "score", "score"])
    pq.write_table(twice, bucket.folder / "own.parquet")
    with pytest.raises(ConfigError, match=r"own\.parquet: has several columns 'score': rename all but one"):
        OwnColumns(f"{bucket.folder}/own.parquet")
