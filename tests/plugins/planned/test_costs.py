import itertools
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.data import Records, Subset, open_shards
from bridge_data.data.jsonl_file import open_jsonl
from bridge_data.errors import ConfigError, DatasetError
from bridge_data.plugins.planned.costs import CostTable, arrays_of, known_costs, open_costs, read_costs
from bridge_data.plugins.where.choices import ChosenRecords
from bridge_data.plugins.where.choosing import choose
from tests.costs import KEY, save_costs
from tests.data.test_blocks import lines
from tests.plugins.where.test_choosing import Clause
from tests.prepared import write_texts

NAMES = ("tokens", "images")


def parts_of(index: int) -> list[dict[str, int]]:
    """None for each fifth sample, two for each seventh, else one."""
    if index % 5 == 0:
        return []
    return [{"tokens": 10 * index + number, "images": number} for number in range(2 if index % 7 == 0 else 1)]


def saved(tmp_path: Path, size: int = 120) -> Records:
    records = open_shards(write_texts(tmp_path / "data", size), "train")
    save_costs(records, [parts_of(index) for index in range(size)], NAMES)
    return records


def check(records: Records, table: CostTable, stored: list[int]) -> None:
    """`stored` are the numbers of the samples in the data set itself."""
    rng = np.random.default_rng(1)
    for indices in (rng.integers(0, len(stored), 200), np.arange(len(stored)), np.array([], np.int64)):
        wanted = [parts_of(stored[index]) for index in indices]
        for number, name in enumerate(NAMES):
            assert table.take(indices, name).tolist() == [sum(part[name] for part in parts) for parts in wanted]
            costs = table.parts(indices)[2][:, number].tolist()
            assert costs == [part[name] for part in itertools.chain(*wanted)]
        positions, numbers, _ = table.parts(indices)
        places = [(at, number) for at, parts in enumerate(wanted) for number in range(len(parts))]
        assert [*zip(positions.tolist(), numbers.tolist(), strict=True)] == places
    for name in NAMES:
        assert table.total(name) == sum(part[name] for index in stored for part in parts_of(index))


def test_costs_are_those_of_the_samples_also_in_a_selection_of_a_selection(tmp_path: Path) -> None:
    records = saved(tmp_path)
    chosen = ChosenRecords(records, choose(records, [Clause("index % 3 <> 0")]))
    kept = [index for index in range(120) if index % 3]
    for some, stored in (
        (records, [*range(120)]),
        (Subset(records, 13, 101), [*range(13, 101)]),
        (chosen, kept),
        (Subset(chosen, 5, 70), kept[5:70]),
    ):
        table = open_costs(some, KEY)
        assert table.names == NAMES
        check(some, table, stored)
        check(some, pickle.loads(pickle.dumps(table)), stored)


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=3), min_size=1, max_size=40), st.data())
def test_arrays_hold_every_number_exactly(costs: list[list[int]], data: st.DataObject) -> None:
    arrays = arrays_of([[{"tokens": cost} for cost in parts] for parts in costs], ("tokens",))
    at = data.draw(st.integers(0, len(costs) - 1))
    assert arrays.columns[0][arrays.offsets[at] : arrays.offsets[at + 1]].tolist() == costs[at]


@pytest.mark.parametrize("cost", [-1, 2**32, 1.5, "a"])
def test_a_cost_is_a_number_of_32_bits(cost: int) -> None:
    with pytest.raises(ConfigError, match=f"'tokens'.*{cost!r}"):
        arrays_of([[{"tokens": cost}]], ("tokens",))


def test_nothing_is_read_on_opening_and_a_pickle_holds_no_column(tmp_path: Path) -> None:
    table = open_costs(saved(tmp_path, 2000), KEY)
    before = pa.total_allocated_bytes()
    table.take(np.arange(2000), "tokens")
    assert pa.total_allocated_bytes() == before
    assert len(pickle.dumps(table)) < len(pickle.dumps(table._records)) + 20_000


def test_a_lines_file_has_its_costs_beside_it(tmp_path: Path) -> None:
    records = lines(tmp_path / "data", ["{}"] * 3)
    path = tmp_path / "data" / "a.jsonl"
    file = save_costs(records, [[{"tokens": n}] for n in range(3)])
    assert file.parent == tmp_path / "data" / "a.jsonl.costs"
    assert open_costs(open_jsonl(path, "val"), KEY).take(np.array([2, 1]), "tokens").tolist() == [2, 1]


def test_what_was_not_measured_names_what_was_and_the_command(tmp_path: Path) -> None:
    records = open_shards(write_texts(tmp_path / "data", 10), "train")
    with pytest.raises(ConfigError, match=r"bridge-data prepare .*data --costs ENCODER") as none:
        open_costs(records, KEY)
    assert "only with others" not in str(none.value)
    save_costs(records, [[{"tokens": 1}]] * 10)
    with pytest.raises(ConfigError, match=r"tests\.Encoder, train.*bridge-data prepare"):
        open_costs(records, "f" * 16)
    with pytest.raises(ConfigError, match="no cost 'images'; there is tokens"):
        open_costs(records, KEY).take(np.array([0]), "images")
    for index in (-1, 10):
        with pytest.raises(IndexError):
            open_costs(records, KEY).take(np.array([index]), "tokens")


def test_other_data_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    write_texts(tmp_path / "data", 130)
    with pytest.raises(DatasetError, match=r"data \[train\]: has changed.*bridge-data prepare"):
        open_costs(open_shards(tmp_path / "data", "train"), KEY)


def test_a_damaged_or_replaced_file_is_told(tmp_path: Path) -> None:
    records = saved(tmp_path)
    table = open_costs(records, KEY)
    ((path, _),) = known_costs(records)
    assert isinstance(path, Path)
    content = path.read_bytes()
    save_costs(records, [[{"tokens": 1}]] * 120)
    with pytest.raises(DatasetError, match="replaced"):
        table.take(np.array([0]), "tokens")
    for damaged in (content[:-100], content[:200], b"", content.replace(b'"format":2', b'"format":1')):
        path.write_bytes(damaged)
        with pytest.raises(DatasetError, match=f"{path}.*bridge-data prepare"):
            open_costs(records, KEY)
    assert [*known_costs(records)] == []
    path.unlink()
    assert read_costs(path) is None


def test_an_offset_beyond_the_columns_is_damage(tmp_path: Path) -> None:
    records = open_shards(write_texts(tmp_path / "data", 3), "train")
    path = save_costs(records, [[{"tokens": 1}]] * 3)
    content = path.read_bytes()
    offsets = np.arange(4, dtype=np.int32).tobytes()
    assert content.count(offsets) == 1
    path.write_bytes(content.replace(offsets, np.array([0, 1, 900, 3], np.int32).tobytes()))
    with pytest.raises(DatasetError, match="damaged"):
        open_costs(records, KEY).take(np.array([1]), "tokens")
