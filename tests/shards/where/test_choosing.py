import dataclasses
from collections.abc import Callable
from pathlib import Path

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
