"""A loader that gathers states is a loader as any other, but for what its ranks exchange."""

import logging
from pathlib import Path
from typing import Any

import pytest

from bridge_data import LaneDataset, get_savable_loader
from bridge_data.errors import ConfigError
from bridge_data.order.step_skips import SkippedRange, StepSkips
from tests.prepared import train_dataset, write_texts


def dataset_of(path: Path, world_size: int) -> LaneDataset:
    return train_dataset(path, world_size=world_size, num_lanes=4)


def state_that_skips(dataset: LaneDataset, first: int, stop: int) -> dict[str, Any]:
    return dataset.new_state().skipping(StepSkips((SkippedRange(first, stop),))).to_dict()


def test_skips_of_a_restored_state_are_checked_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_texts(tmp_path / "texts", 100)
    dataset = dataset_of(path, 1)
    loader = get_savable_loader(dataset, gathers_states=True)
    loader.restore_state_rank(state_that_skips(dataset, 4, 8))
    with caplog.at_level(logging.INFO, "bridge_data"):
        next(iter(loader))
    assert "skip micro-batches 4 to 7" in caplog.text
    two = dataset_of(path, 2)
    for gathers in (False, True):
        loader = get_savable_loader(two, gathers_states=gathers)
        loader.restore_state_rank(state_that_skips(two, 5, 8))
        with pytest.raises(ConfigError, match="5 to 7"):  # 3 micro-batches are no round of 2 ranks
            next(iter(loader))


def test_a_rank_that_cannot_gather_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "bridge_data"):
        get_savable_loader(dataset_of(write_texts(tmp_path / "texts", 100), 2), gathers_states=True)
    assert "data_parallel_group" in caplog.text
