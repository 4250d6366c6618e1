import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from bridge_data import WorkerConfig, get_loader, get_train_dataset
from bridge_data.loader.batch_log import keys_of_batch
from tests.prepared import write_texts


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("data") / "texts", 40)


def run(data: Path, **config: Any) -> list[Any]:
    dataset = get_train_dataset(
        data,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=2, **config),
        batch_size=3,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
    )
    return list(itertools.islice(get_loader(dataset), 4))


def test_the_batches_that_a_rank_was_given_are_in_the_log(data: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "logs" / "{worker_id}-{pid}.jsonl")
    batches = run(data, worker_log_level=1, worker_debug_path=path)
    lines = (tmp_path / "logs" / f"0-{os.getpid()}.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"rank": 0, "batch": number, "lane": number % 2, "keys": batch.__key__} for number, batch in enumerate(batches)
    ]


def test_without_a_file_the_log_is_printed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = run(data, worker_log_level=1)
    assert [json.loads(line)["keys"] for line in capsys.readouterr().out.splitlines()] == [b.__key__ for b in batches]


def test_nothing_is_logged_unless_asked_for(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(data, worker_debug_path=str(tmp_path / "log"))
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


def test_keys_are_found_under_their_usual_names() -> None:
    class Batch:
        __keys__ = ("a", 1)

    assert keys_of_batch(Batch()) == ["a", "1"]
    assert keys_of_batch({"keys": ["a"]}) == ["a"]
    assert keys_of_batch({"__key__": "a"}) == ["a"]
    assert keys_of_batch(3) is None
