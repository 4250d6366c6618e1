"""Choosing: what a predicate chooses, NULLs, names, columns of the user, what is refused, and how it is kept."""

import bisect
import dataclasses
import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.data import open_shards
from bridge_data.data.paged_file import HEADER_BYTES
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plan import load_plan
from bridge_data.plugins.where.choices import PAGE_SAMPLES, Choice, ChosenRecords, write_choice
from bridge_data.plugins.where.choosing import SampleQuery, as_written, choose, open_engine, parse_predicate
from tests.prepared import write_texts
from tests.tables import write_parquet


@dataclasses.dataclass
class Clause:
    text: str
    columns: str | None = None

    def error(self, message: str) -> ConfigError:
        return ConfigError(message)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRIDGE_DATA_CACHE", str(tmp_path / "cache"))
    return write_texts(tmp_path / "texts", 500, lambda number: "x" * number)


def test_the_same_samples_are_the_same_choice_however_the_condition_is_written(data: Path) -> None:
    records = open_shards(data, "train")
    texts = ["index % 3 = 0", "INDEX%3=0 -- a third", "(0 = index % 3)"]
    choices = [choose(records, [Clause(text)]) for text in texts]
    choices.append(choose(records, [Clause("index % 3 = 0"), Clause("index >= 0")]))
    identities = [ChosenRecords(records, choice).identity() for choice in choices]
    assert identities == identities[:1] * 4
    assert ChosenRecords(records, choose(records, [Clause("index % 3 = 1")])).identity() != identities[0]


def test_columns_of_ones_own_that_change_choose_anew(table: Path) -> None:
    found = []
    for score in (1, 2, 1):
        path = own(table, key=["0", "1"], mine=[score, 1])
        found.append(chosen(table, "mine = 1", path))
    assert found == [[0, 1], [1], [0, 1]]


_FIRST_USE = """
import logging, sys
from bridge_data.plugins.where.where_clauses import given_where
from bridge_data.data import open_shards
from bridge_data.plugins.where.choosing import choose

logging.basicConfig(stream=sys.stderr, level=logging.INFO)
sys.stdin.read()
choice = choose(open_shards(sys.argv[1], "train"), given_where("txt.bytes % 5 = 0", None))
print(choice.num_chosen, choice.digest)
"""


@pytest.mark.processes
def test_of_processes_that_come_at_once_one_evaluates_and_all_choose_the_same(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FIRST_USE, str(data)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()  # all go on now
    told = [
        (process.stdout.read(), process.stderr.read()) for process in processes if process.stdout and process.stderr
    ]
    assert [process.wait() for process in processes] == [0] * 4
    assert len({out for out, _ in told}) == 1 and told[0][0].startswith("100 ")
    assert sum("chooses 100 of 500 samples" in log for _, log in told) == 1
    assert [path.suffix for path in sorted((tmp_path / "cache" / "where").iterdir())] == [".choice", ".lock"]


def test_columns_that_are_replaced_meanwhile_are_an_error(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = own(table, key=KEYS, mine=list(range(SIZE)))
    run = SampleQuery.run

    def replaced(query: SampleQuery, num_samples: int) -> Any:
        path.unlink()
        own(table, key=KEYS, mine=["x"] * SIZE)
        return run(query, num_samples)

    with monkeypatch.context() as patch, pytest.raises(DatasetError, match=r"columns were replaced .* start again"):
        patch.setattr(SampleQuery, "run", replaced)
        chosen(table, "mine > 57", path)
    assert not [*(table.parent / "cache" / "where").glob("*.choice")]


def test_a_damaged_file_in_the_cache_is_made_anew_and_a_cache_that_cannot_be_written_named(
    data: Path, tmp_path: Path
) -> None:
    records, cache = open_shards(data, "train"), tmp_path / "cache"
    before = choose(records, [Clause("index < 5")])
    (path,) = (cache / "where").glob("*.choice")
    path.write_bytes(path.read_bytes()[:-9])
    after = choose(records, [Clause("index < 5")])
    assert (after.digest, after.between(0, 500)) == (before.digest, [0, 1, 2, 3, 4])
    shutil.rmtree(cache)
    cache.write_text("a file where a folder should be")
    with pytest.raises(ConfigError, match=r"where: cannot store the chosen samples: .*set BRIDGE_DATA_CACHE"):
        choose(records, [Clause("index < 5")])


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


def test_names_that_differ_in_case_only_may_be_used_one_by_one_but_not_in_fields(table: Path) -> None:
    path = own(table, key=KEYS, s=list(range(SIZE)), S=list(range(SIZE, 0, -1)))
    assert chosen(table, "s > 57", path) == [58, 59]
    assert chosen(table, "S > 58", path) == [0, 1]
    with pytest.raises(ConfigError, match="differ in case only"):
        chosen(table, "s > 57 or S > 58", path)
    write_parquet(table, pa.table({"meta": [{"a": number, "A": -number} for number in range(SIZE)]}))
    with pytest.raises(ConfigError, match=r"column 'meta' has the type .*differ in case only"):
        chosen(table, 'meta."A" > 50')


ODD_NAMES = [
    "__number",
    "samples",
    "own",
    "number",
    "c0",
    "a.b",
    'q"uote',
    "ü",
    "select",
    "unnamed_subquery",
    "_",
    "__",
]


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("is_own", [False, True])
def test_a_column_may_have_any_name(table: Path, name: str, is_own: bool) -> None:
    values = list(range(SIZE, 0, -1))
    write_parquet(table, pa.table({"meta": COLUMNS["meta"], **({} if is_own else {name: values})}), per_group=25)
    path = own(table, key=KEYS, **({name: values} if is_own else {"other": values}))
    quoted = '"' + name.replace('"', '""') + '"'
    assert chosen(table, f"{quoted} > 57 and (meta is null or meta.lang = 'en')", path) == [0, 1, 2]


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


def test_samples_without_a_row_have_nulls_and_the_key_that_batches_have(table: Path) -> None:
    path = own(table, key=[*KEYS[:30], None, None, "other", "other"], mine=[1] * 34)
    assert chosen(table, "mine = 1", path) == list(range(30))
    assert chosen(table, "mine is null", path) == list(range(30, SIZE))
    text = "mine > 10 and __key__ in ('table.parquet/4', 'table.parquet/30', 'table.parquet/50')"
    for more in ({}, {"shard": ["table.parquet"] * SIZE}):
        assert chosen(table, text, own(table, key=KEYS, mine=list(range(SIZE)), **more)) == [30, 50]


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
    with pytest.raises(ConfigError, match=r"own\.parquet: .*expected a Parquet file"):
        chosen(table, "mine = 1", path)
    path.unlink()
    with pytest.raises(ConfigError, match=r"own\.parquet: no such file; it is a Parquet file with a column `key`"):
        chosen(table, "mine = 1", path)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_engine(tmp_path_factory.mktemp("spill")) as opened:
        yield opened


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("bytes < 3 and key like 'a%' and bytes > 1", [("bytes",), ("key",)]),
        ("jpg.width > 3", [("jpg", "width")]),
        ('"info.json".meta."My Field" is null', [("info.json", "meta", "My Field")]),
        ("list_filter(tags, lambda x: x = lang) = []", [("tags",), ("lang",)]),
        ("case when a > 1 then b else coalesce(c, true) end", [("a",), ("b",), ("c",)]),
        ("text = 'select 1; drop table x' -- and other", [("text",)]),
        ("true", []),
        ("age(a, b) > interval '1 day'", [("a",), ("b",)]),
        ("ifnull(a, 0) > date_diff('day', b, c)", [("a",), ("b",), ("c",)]),
    ],
)
def test_the_columns_are_those_that_it_names(engine: Any, text: str, columns: list[tuple[str, ...]]) -> None:
    assert sorted(parse_predicate(engine, text)) == sorted(columns)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("random() < 0.5", "random.. depends on more than the sample"),
        ("uuid() is null", "depends on more than the sample"),
        ("today() > a", "depends on more than the sample"),
        ("now() > a", "depends on more than the sample"),
        ("age(a) > interval '1 day'", "age.. of one time counts up to today"),
        ("AGE(a) > interval '1 day'", "age.. of one time counts up to today"),
        ("ago(interval '1 day') > a", "depends on more than the sample"),
        ("current_setting('threads') = '1'", "depends on more than the sample"),
        ("nextval('s') > 1", "depends on more than the sample"),
        ("count(*) > 1", "is no function of one sample"),
        ("sum(a) > 1", "is no function of one sample"),
        ("read_text('/etc/hostname') is null", "is no function of one sample"),
        ("row_number() over () > 1", "a window function is not allowed"),
        ("exists(select 1)", "a query is not allowed"),
        ("a in (select 1)", "a query is not allowed"),
        ("a = any([1])", "a query is not allowed"),
        ("* = 1", "a star is not allowed"),
        ("columns('a') = 1", "a star is not allowed"),
        ("a = ?", "a parameter is not allowed"),
        ("#1 = 1", "a column by its position is not allowed"),
        ("a = 1; drop table b", "at character 6 .*syntax error"),
        ("a = 1) from b where (true", "expected one expression"),
        ("a = 1 order by (a)", "expected one expression|syntax error"),
        ("a > '\udcff'", "has a character that is not in UTF-8, at 6"),
        ("(" * 3000 + "a > 1" + ")" * 3000, r"^'\({300} …', at character"),
        (" \n", "expected one expression, such as"),
        ("group = 1", 'a column whose name is a keyword, or no plain word, is written in double quotes: "group" = 1'),
    ],
)
def test_what_is_no_expression_over_columns_alone_is_refused(engine: Any, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?is){told}"):
        parse_predicate(engine, text)


def test_names_are_shown_as_they_have_to_be_written(engine: Any) -> None:
    written = as_written(engine)
    names = [("jpg", "width"), ("group",), ("info.json", "My Field"), ('a"b',), ("between",), ("0",), ("left",)]
    shown = ["jpg.width", '"group"', '"info.json"."My Field"', '"a""b"', "between", '"0"', '"left"']
    assert [written(name) for name in names] == shown
    for text, name in zip(shown, names, strict=True):
        assert parse_predicate(engine, f"{text} = 1") == [name]


def written(path: Path, chosen: list[int], shard_counts: list[int]) -> Choice:
    bits = bytearray(-(-sum(shard_counts) // 8))
    for sample in chosen:
        bits[sample >> 3] |= 1 << (sample & 7)
    write_choice(path, bytes(bits), shard_counts, None)
    choice = Choice.open(path)
    assert choice is not None
    return choice


SHARDS = st.lists(st.sampled_from([0, 1, 7, 8, 500, PAGE_SAMPLES - 1, PAGE_SAMPLES]), max_size=5)


@given(counts=SHARDS, every=st.sampled_from([1, 2, 7, 5_000]), data=st.data())
def test_numbers_are_those_in_the_list_of_chosen_samples(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], every: int, data: st.DataObject
) -> None:
    size = sum(counts)
    chosen = list(range(data.draw(st.integers(0, every)), size, every))
    choice = written(tmp_path_factory.mktemp("choice") / "a.choice", chosen, counts)
    assert (choice.num_samples, choice.num_chosen) == (size, len(chosen))
    ends = list(itertools.accumulate(counts, initial=0))
    assert choice.counts == [
        bisect.bisect_left(chosen, end) - bisect.bisect_left(chosen, first) for first, end in itertools.pairwise(ends)
    ]
    assert [choice.sample(number) for number in range(len(chosen))] == chosen
    for sample in {0, 1, size // 3, size // 2, PAGE_SAMPLES, size, size + PAGE_SAMPLES, *chosen}:
        assert choice.rank(sample) == bisect.bisect_left(chosen, sample)
    first = data.draw(st.integers(0, size))
    end = data.draw(st.integers(first, size))
    assert choice.between(first, end) == chosen[bisect.bisect_left(chosen, first) : bisect.bisect_left(chosen, end)]


def test_the_digest_is_that_of_the_chosen_samples(tmp_path: Path) -> None:
    choices = [
        written(tmp_path / str(number), chosen, counts)
        for number, (chosen, counts) in enumerate([([1, 2], [4]), ([1, 2], [2, 2]), ([1, 3], [4])])
    ]
    assert choices[0].digest == choices[1].digest != choices[2].digest


def test_damaged_bits_are_an_error_and_a_damaged_table_is_no_choice(tmp_path: Path) -> None:
    path = tmp_path / "a.choice"
    written(path, [3, PAGE_SAMPLES + 1], [2 * PAGE_SAMPLES])
    whole = path.read_bytes()
    path.write_bytes(whole[:HEADER_BYTES] + b"\1" + whole[HEADER_BYTES + 1 :])
    choice = Choice.open(path)
    assert choice is not None
    assert choice.sample(1) == PAGE_SAMPLES + 1  # of another page
    with pytest.raises(DatasetError, match=r"a\.choice: is damaged: .*; delete it and start again"):
        choice.sample(0)
    path.write_bytes(whole[:-1])
    assert Choice.open(path) is None
