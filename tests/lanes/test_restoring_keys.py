from typing import Any

import pytest

from bridge_data import ConfigError, LaneDataset, WorkerConfig, get_val_dataset
from tests.prepared import write_texts


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> LaneDataset:
    folder = write_texts(tmp_path_factory.mktemp("data") / "a", 4)
    return get_val_dataset(folder, split_part="train", worker_config=WorkerConfig(0, 1, 0), batch_size=2)


@pytest.mark.parametrize(
    "key",
    [
        (),
        None,
        "shard.tar/0001",
        7,
        ("a1", 0, 3),
        ("a1", 0, 3, -1),
        ("a1", 0, "3", 0),
        (0, 0, 3, 0),
        ("pack",),
        ("batch", 0, 0),
        [("a1", 0, 3, 0), ("a1", 0, 4, 0)],
        ("pack", ("pack", ("a1", 0, 3, 0))),
        ("BatchDataset", 0, ("a1", 0, 3, 0)),
    ],
)
def test_what_is_no_key_is_refused(dataset: LaneDataset, key: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        dataset.restore_sample(key)
    assert repr(key) in str(raised.value)


def test_a_fault_within_a_long_key_is_named(dataset: LaneDataset) -> None:
    key = ("batch", 0, 0, *[("a1", 0, index, 0) for index in range(100)], ("a1", 0, 0.5, 0))
    with pytest.raises(ConfigError) as raised:
        dataset.restore_sample(key)
    assert "('a1', 0, 0.5, 0)" in str(raised.value)
    assert len(str(raised.value)) < 600
