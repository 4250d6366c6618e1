"""Many samples at once: the same samples, failures and counts as one by one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge_data import DatasetError, DefaultTaskEncoder, Sample, TextSample, WorkerConfig
from bridge_data.data.blocks import BlockCache
from bridge_data.decode.source_reader import SingleSourceReader
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.samples import edataclass
from tests.prepared import train_dataset, write_dataset, write_texts
from tests.tables import table_of, write_parquet, write_text_table


@edataclass
class Short(TextSample):
    """A text of less than 3 characters."""

    def __post_init__(self) -> None:
        if isinstance(self.text, str) and len(self.text) > 2:  # of a batch, it is a list
            raise ValueError("it is too long")


@edataclass
class Pair(Sample):
    number: int
    context: str
    answers: list[str] | None = None


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each plain sample that was asked for, whether it came out of a block."""
    found: list[bool] = []
    take_plain = SingleSourceReader.take_plain

    def noted(reader: SingleSourceReader, *args: Any) -> list[Any]:
        samples = take_plain(reader, *args)
        found.extend(sample is not None for sample in samples)
        return samples

    monkeypatch.setattr(SingleSourceReader, "take_plain", noted)
    return found


def opened(path: Path, max_open_bytes: int, **settings: Any) -> LaneDataset:
    """With 0 bytes, samples are read one by one, and none is ever held."""
    config = WorkerConfig(0, 1, 0, num_lanes=2, max_open_bytes=max_open_bytes)
    return train_dataset(path, worker_config=config, **({"batch_size": 8} | settings))


def produced(path: Path, max_open_bytes: int, count: int = 40, **settings: Any) -> list[Any]:
    """What lane 0 makes, with states, skips and references."""
    data = opened(path, max_open_bytes, **settings)
    lane = data.lane(0, data.new_state())
    return [lane.next() for _ in range(count)]


def test_failures_in_a_row_are_those_of_the_order(tmp_path: Path) -> None:
    """Half of the samples fail, more than are tolerated in a row, but not one after the other."""

    class Strict(DefaultTaskEncoder[Any, Any, Any, Any]):
        __default_failure_tolerance__ = 40

    samples = ({"__key__": f"{n:03d}", "txt": b"\xff" if n % 2 else b"fine"} for n in range(400))
    write_dataset(tmp_path / "tars", samples, per_shard=400)
    for max_open_bytes in (0, 1 << 30):
        made = produced(tmp_path / "tars", max_open_bytes, 2, batch_size=100, task_encoder=Strict())
        assert sum(one.skipped["decode"] for one in made) > 100


def test_only_samples_whose_block_is_read_are_watched(tmp_path: Path, taken: list[bool]) -> None:
    write_text_table(tmp_path / "a.parquet", 200, per_group=100)
    data = opened(tmp_path / "a.parquet", 1 << 30, sample_type=TextSample, field_map={"text": "text"})
    watched: list[Any] = []
    lane = data.lane(0, data.new_state(), watched.append)
    for _ in range(12):
        lane.next()
    assert sum(taken) == 96
    assert 0 < len(watched) < 20
    assert watched[0].index != watched[1].index


def test_a_block_that_cannot_be_read_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is gone has been waited for by then."""
    tried: list[int] = []

    def fails(_: BlockCache, index: int) -> None:
        tried.append(index)
        raise DatasetError("the store is gone")

    monkeypatch.setattr(BlockCache, "open", fails)
    data = opened(blend(tmp_path), 1 << 30, batch_size=64)
    with pytest.raises(DatasetError, match="the store is gone"):
        data.lane(0, data.new_state()).next()
    assert len(tried) == 1


def blend(folder: Path) -> Path:
    write_texts(folder / "tars", 90, lambda number: f"text {number} ö", per_shard=30)
    write_text_table(folder / "a.parquet", 120)
    file = folder / "blend.yaml"
    file.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {train: {blend: [\n"
        "  {path: tars, weight: 2},\n"
        "  {path: a.parquet, weight: 1, subset: {range: [10%, 80%]}, field_map: {text: text},\n"
        "   sample_type: {__module__: megatron.energon, __class__: TextSample}}]}}\n"
    )
    return file


def with_missing_values(folder: Path) -> Path:
    questions = [None if n % 20 == 0 else f"{n}?" for n in range(120)]
    columns = {"number": [*range(120)], "question": questions, "answers": [[str(n)] * (n % 3) for n in range(120)]}
    return write_parquet(folder / "pairs.parquet", table_of(columns))


def with_undecodable_texts(folder: Path) -> Path:
    samples = ({"__key__": f"{n:03d}", "txt": b"\xff" if n % 25 == 7 else b"fine"} for n in range(100))
    return write_dataset(folder / "tars", samples)


def of_a_strict_class(folder: Path) -> Path:
    return write_text_table(folder / "a.parquet", 110)


@pytest.mark.parametrize(
    ("write", "settings", "num_skipped"),
    [
        (blend, {}, 0),
        (
            with_missing_values,
            {"sample_type": Pair, "field_map": {"number": "number", "context": "question", "answers": "answers"}},
            6,
        ),
        (with_undecodable_texts, {}, 10),
        (of_a_strict_class, {"sample_type": Short, "field_map": {"text": "text"}}, 10),
    ],
)
def test_samples_and_failures_are_the_same_held_or_read_one_by_one(
    tmp_path: Path, taken: list[bool], write: Callable[[Path], Path], settings: dict[str, Any], num_skipped: int
) -> None:
    path = write(tmp_path)
    expected = produced(path, 0, **settings)
    assert not any(taken)
    assert produced(path, 1 << 30, **settings) == expected
    assert sum(taken) > 100
    assert sum(one.skipped.get("decode", 0) for one in expected) >= num_skipped
