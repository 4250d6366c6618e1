"""Loaders that many tests share: a server and its workers take a second or two to start."""

import itertools
from collections.abc import Iterator

import pytest

from bridge_data.loader import SavableDataLoader, get_savable_loader
from tests.loader.faults import Faults
from tests.loader.streams import Streams, config


@pytest.fixture(scope="session")
def three_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SavableDataLoader]:
    """Six endless lanes on three workers, which can be made to fail."""
    faults = Faults(tmp_path_factory.mktemp("faults"))
    dataset = Streams(config(num_workers=3), before_sample=faults)
    with get_savable_loader(dataset, max_worker_restarts=1_000) as loader:
        yield loader


@pytest.fixture
def loader(three_workers: SavableDataLoader) -> SavableDataLoader:
    """`three_workers` at the first batch, which will come from a worker."""
    three_workers.dataset.before_sample.clear()
    three_workers.skipped.clear()
    three_workers.restore_state_rank(three_workers.dataset.new_state().to_dict())
    assert three_workers.wait_for_workers()
    return three_workers


@pytest.fixture
def faults(loader: SavableDataLoader) -> Faults:
    """The faults of `loader`."""
    return loader.dataset.before_sample


def in_turn(num: int, num_lanes: int = 6, start: int = 0) -> list[str]:
    """The names of `num` batches of endless lanes, by the rule: slot m is served by lane m mod num_lanes."""
    return [f"{slot % num_lanes}/{slot // num_lanes}" for slot in itertools.islice(itertools.count(start), num)]
