"""Evaluating predicates over columns: NULLs, names, and files of the user's columns."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.shards.where.choosing import choose
from tests.shards.where.test_choosing import Clause
from tests.tables import write_parquet

SIZE = 60
KEYS = list(map(str, range(SIZE)))
COLUMNS: dict[str, Any] = {
    "Score": [number / 10 for number in range(SIZE)],
    "group": list(range(SIZE)),
    "My Column": list(range(SIZE)),
    "gaps": [None if number % 2 else number for number in range(SIZE)],
    "none": pa.nulls(SIZE, pa.int64()),
    "meta": [{"lang": "en", "deep": {"A b": number}} if number % 3 else None for number in range(SIZE)],
    "tags": [["a"] * (number % 3) for number in range(SIZE)],
}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    return write_parquet(tmp_path / "table.parquet", pa.table(COLUMNS), per_group=25)


def chosen(table: Path, text: str, columns: Path | None = None) -> list[int]:
    (source,) = load_plan(table).sources
    choice = choose(source.records, [Clause(text, None if columns is None else str(columns))])
    return choice.between(0, SIZE)


def own(table: Path, **columns: Any) -> Path:
    """A file of columns of one's own."""
    path = table.parent / "own.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=13)
    return path


@pytest.mark.parametrize(
    ("text", "is_chosen"),
    [
        ("gaps > 40", lambda n: n % 2 == 0 and n > 40),
        ("not (gaps > 40)", lambda n: n % 2 == 0 and n <= 40),
        ("gaps is null or gaps = 4", lambda n: n % 2 == 1 or n == 4),
        ("coalesce(gaps, 100) > 57", lambda n: n % 2 == 1 or n == 58),
        ("index in (3, 5, null)", lambda n: n in (3, 5)),
        ("case when index > 5 then null else true end", lambda n: n <= 5),
        ("sCORE > 5.5 and Score <= 5.8", lambda n: n in (56, 57, 58)),
        ('"group" >= 3 and "My Column" < 7 and "my column" <> 5', lambda n: n in (3, 4, 6)),
        ('meta.deep."A b" > 50', lambda n: n % 3 and n > 50),
        ("meta['lang'] = 'en' and (meta).deep.\"A b\" < 5", lambda n: n in (1, 2, 4)),
        ("meta is null and len(tags) = 0", lambda n: n % 3 == 0),
        ("list_filter(tags, lambda x: x = 'a') = ['a', 'a']", lambda n: n % 3 == 2),
        ("none is null", lambda n: True),
    ],
)
def test_what_is_chosen_is_what_python_chooses(table: Path, text: str, is_chosen: Callable[[int], bool]) -> None:
    assert chosen(table, text) == [number for number in range(SIZE) if is_chosen(number)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "none > 3",
            r"chooses none of the 60 .*NULL for 60 samples, as values are missing: `coalesce.*; change the con",
        ),
        ("index > 60", r"chooses none of the 60 samples of .*table\.parquet \[train\]; change the condition"),
        ("index", "has the type BIGINT, expected BOOLEAN"),
        (
            "My.Column > 3",
            r"unknown column 'My\.Column'; did you mean '\"My Column\"'\? There is: .*\"group\", \"My Col",
        ),
        ("meta.long = 'en'", "Could not find key|long"),
        ("cast('a' || key as int) > 3", "Could not convert string 'a0' to INT32"),
    ],
)
def test_mistakes_say_what_to_do(table: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s){told}"):
        chosen(table, text)


def test_names_that_differ_in_case_only_may_be_used_one_by_one(table: Path) -> None:
    path = own(table, key=KEYS, s=list(range(SIZE)), S=list(range(SIZE, 0, -1)))
    assert chosen(table, "s > 57", path) == [58, 59]
    assert chosen(table, "S > 58", path) == [0, 1]
    with pytest.raises(ConfigError, match="differ in case only"):
        chosen(table, "s > 57 or S > 58", path)


@pytest.mark.parametrize(
    "keys", [KEYS, list(range(SIZE)), pa.array(KEYS).dictionary_encode(), [k.encode() for k in KEYS]]
)
def test_rows_of_the_users_file_are_found_by_the_key_of_the_sample(table: Path, keys: Any) -> None:
    order = [(number * 7) % SIZE for number in range(SIZE)]
    shuffled = pa.table({"key": keys, "mine": list(range(SIZE))}).take(order)
    path = own(table, **{name: shuffled.column(name) for name in ("key", "mine")})
    assert chosen(table, "mine < 10 and Score >= 0.5", path) == [5, 6, 7, 8, 9]


def test_rows_are_found_by_the_key_also_if_a_column_of_the_data_is_called_so(table: Path) -> None:
    names = {"key": [number * 10 for number in range(SIZE)], "shard": ["x"] * SIZE, "index": list(range(SIZE, 0, -1))}
    write_parquet(table, pa.table({**COLUMNS, **names}), per_group=25)
    assert chosen(table, "key = 70 or index = 60 and shard = 'x'") == [0, 7]
    shards = ["table.parquet"] * SIZE
    assert chosen(table, "mine > 57", own(table, key=KEYS, mine=list(range(SIZE)))) == [58, 59]
    assert chosen(table, "mine > 57", own(table, key=KEYS, shard=shards, mine=list(range(SIZE)))) == [58, 59]


def test_the_key_that_batches_have_stands_beside_columns_of_ones_own(table: Path) -> None:
    full_keys = ", ".join(f"'table.parquet/{number}'" for number in (4, 30, 50))
    text = f"mine > 10 and __key__ in ({full_keys})"
    assert chosen(table, text, own(table, key=KEYS, mine=list(range(SIZE)))) == [30, 50]
    shards = ["table.parquet"] * SIZE
    assert chosen(table, text, own(table, key=KEYS, shard=shards, mine=list(range(SIZE)))) == [30, 50]


def test_samples_without_a_row_have_nulls(table: Path) -> None:
    path = own(table, key=[*KEYS[:30], None, None, "other", "other"], mine=[1] * 34)
    assert chosen(table, "mine = 1", path) == list(range(30))
    assert chosen(table, "mine is null", path) == list(range(30, SIZE))


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (
            {"key": [*KEYS, "7", "7"], "mine": [1] * (SIZE + 2)},
            "has 3 rows of key '7': expected one .* a column `shard`",
        ),
        ({"key": ["a", "b"], "mine": [1, 1]}, "its keys, such as 'a', are those of no sample"),
        ({"key": KEYS, "shard": ["other"] * SIZE, "mine": [1] * SIZE}, "are those of no sample"),
        ({"key": pa.array([], pa.string()), "mine": pa.array([], pa.int64())}, "its keys are those of no sample"),
        ({"name": KEYS, "mine": [1] * SIZE}, "has no column `key`, with the keys of samples; there is name, mine"),
        (
            {"key": KEYS, "mine": [1] * SIZE, "Score": [1] * SIZE},
            "column 'Score' is one of the data and one of .*rename",
        ),
        ({"key": KEYS, "m.a": [1] * SIZE}, "unknown column 'mine'"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(table: Path, columns: dict[str, Any], told: str) -> None:
    text = "mine = 1 and Score > 0" if "Score" in columns else "mine = 1"
    with pytest.raises(ConfigError, match=told):
        chosen(table, text, own(table, **columns))


def test_a_file_that_is_none_or_is_damaged_is_named(table: Path) -> None:
    path = own(table, key=KEYS, mine=[1] * SIZE)
    content = path.read_bytes()
    path.write_bytes(content[:8] + bytes(40) + content[48:])
    with pytest.raises(DatasetError, match=r"own\.parquet: cannot be read"):
        chosen(table, "mine = 1", path)
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"own\.parquet: is no Parquet file"):
        chosen(table, "mine = 1", path)
    path.unlink()
    with pytest.raises(ConfigError, match=r"own\.parquet: no such file; it is a Parquet file with a column `key`"):
        chosen(table, "mine = 1", path)
