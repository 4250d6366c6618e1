"""Columns of prepared tars: keys, shards, numbers and sizes, as reading the samples finds them."""

import shlex
from pathlib import Path

import pytest
import yaml

from bridge_data.errors import ConfigError
from bridge_data.plan import load_plan
from bridge_data.shards import open_shards
from bridge_data.shards.where.choosing import choose
from bridge_data.shards.where.sample_columns import BYTES, INDEX, KEY, SHARD
from bridge_data.shards.where.shard_columns import FIRST_SHARDS, ShardColumns
from tests.prepared import CRUDE, write_dataset
from tests.shards.tars import write_shards
from tests.shards.where.test_choosing import Clause
from tests.tools.cli.runner import run_command

SIZE = 230
LAST = SIZE - 1


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
    samples = ({"__key__": f"{number:04d}", **parts(number)} for number in range(SIZE))
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
    assert set(paths) == columns.types(of_all=True).keys()
    seen = 0
    for indices, values in columns.batches(paths):
        rows = zip(*(values[path].to_pylist() for path in paths), strict=True)
        for index, (key, shard, number, size, *sizes) in zip(indices.tolist(), rows, strict=True):
            sample = reader.read(index)
            assert (key, shard, number) == (sample.key, sample.shard_name, index)
            content = {name: len(data) for name, data in sample.parts.items()}
            assert sizes == [content.get(path[0]) for path in paths[4:]] and size == sum(content.values())
            seen += 1
    assert seen == SIZE


def test_a_part_that_a_later_shard_has_is_found(root: Path) -> None:
    assert LAST // 10 >= FIRST_SHARDS
    assert chosen(root, "late.bytes = 1") == [LAST]
    assert chosen(root, "late.bytes is null and jpg.bytes > 1100") == [n for n in range(221, LAST) if n % 3 == 0]


def test_names_with_dots_are_written_in_quotes(root: Path) -> None:
    assert chosen(root, '"info.json".bytes < 5') == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"unknown column 'info.json.bytes'; did you mean '\"info.json\".bytes'"):
        chosen(root, "info.json.bytes < 5")


def test_excluded_samples_have_no_number(root: Path) -> None:
    split = root / ".nv-meta" / "split.yaml"
    document = yaml.safe_load(split.read_text())
    excluded = ["data-0000.tar/0003", "data-0001.tar", "data-0002.tar/0029"]
    split.write_text(yaml.safe_dump({**document, "exclude": excluded}))
    left = [n for n in range(SIZE) if n not in {3, *range(10, 20), 29}]
    assert chosen(root, "index < 30") == left[:30]
    assert chosen(root, "txt.bytes = 3 and index > 3") == [n for n in left if n % 7 == 3 and n > 4]


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
