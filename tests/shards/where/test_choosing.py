import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge_data.errors import ConfigError
from bridge_data.shards import open_shards
from bridge_data.shards.where.choosing import choose
from bridge_data.shards.where.chosen_records import ChosenRecords
from tests.prepared import write_texts


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


@pytest.mark.parametrize(
    ("text", "is_chosen"),
    [
        ("txt.bytes >= 100 and index % 2 = 0", lambda number: number >= 100 and number % 2 == 0),
        ("key like '%7'", lambda number: number % 10 == 7),
        ("shard = 'data-0003.tar'", lambda number: 150 <= number < 200),
    ],
)
def test_what_is_chosen_is_what_python_chooses(data: Path, text: str, is_chosen: Callable[[int], bool]) -> None:
    records = open_shards(data, "train")
    chosen = ChosenRecords(records, choose(records, [Clause(text)]))
    reader = chosen.reader()
    keys = [reader.read(index).key for index in range(chosen.num_samples)]
    assert keys == [f"{number:06d}" for number in range(500) if is_chosen(number)]
    assert sum(chosen.counts) == len(keys)


@pytest.mark.parametrize(
    "text", ["random() < 0.5", "ago('1 day'::interval) > '2020-01-01'::timestamptz", "(select true)", "key = 'none'"]
)
def test_what_is_not_the_same_everywhere_or_chooses_nothing_is_refused(data: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        choose(open_shards(data, "train"), [Clause(text)])


def test_the_same_samples_are_the_same_choice_however_the_condition_is_written(data: Path) -> None:
    records = open_shards(data, "train")
    texts = ["index % 3 = 0", "INDEX%3=0 -- a third", "(0 = index % 3)"]
    choices = [choose(records, [Clause(text)]) for text in texts]
    choices.append(choose(records, [Clause("index % 3 = 0"), Clause("index >= 0")]))
    identities = [ChosenRecords(records, choice).identity() for choice in choices]
    assert identities == identities[:1] * 4
    assert ChosenRecords(records, choose(records, [Clause("index % 3 = 1")])).identity() != identities[0]


def test_columns_of_ones_own_that_change_choose_anew(data: Path, tmp_path: Path) -> None:
    records, path = open_shards(data, "train"), tmp_path / "own.parquet"
    found = []
    for score in (1, 2, 1):
        table = {"key": ["000000", "000001"], "score": [score, 1]}
        pq.write_table(pa.table(table), path)
        found.append(choose(records, [Clause("score = 1", str(path))]))
    assert [choice.between(0, 500) for choice in found] == [[0, 1], [1], [0, 1]]
    assert found[0].digest == found[2].digest != found[1].digest


_FIRST_USE = """
import logging, sys
from bridge_data.plan.where_clauses import given_where
from bridge_data.shards import open_shards
from bridge_data.shards.where.choosing import choose

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


def test_a_damaged_file_in_the_cache_is_made_anew(data: Path, tmp_path: Path) -> None:
    records = open_shards(data, "train")
    before = choose(records, [Clause("index < 5")])
    (path,) = (tmp_path / "cache" / "where").glob("*.choice")
    path.write_bytes(path.read_bytes()[:-9])
    after = choose(records, [Clause("index < 5")])
    assert (after.digest, after.between(0, 500)) == (before.digest, [0, 1, 2, 3, 4])


def test_a_cache_that_cannot_be_written_is_named(data: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(ConfigError, match=r"where: cannot store the chosen samples: .*set BRIDGE_DATA_CACHE"):
        choose(open_shards(data, "train"), [Clause("index < 5")])
