"""Micro-batches that a loader takes and discards; `tests/properties/test_step_skips.py` compares whole runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from bridge_data import LaneDataset, get_savable_loader
from bridge_data.errors import ConfigError
from bridge_data.order.state import LoaderState
from bridge_data.order.step_skips import SkippedRange, StepSkips
from tests.lanes.test_lane import dataset
from tests.prepared import write_texts
from tests.properties.jobs import Encoder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("data"), 100)


def skips_of(*ranges: SkippedRange) -> StepSkips:
    found = StepSkips.of(ranges)
    assert found is not None
    return found


def after(made: LaneDataset, num_batches: int) -> dict[str, Any]:
    """The state after so many batches."""
    loader = get_savable_loader(made)
    for _ in zip(range(num_batches), loader, strict=False):
        pass
    return json.loads(json.dumps(loader.save_state_rank()))  # type: ignore[no-any-return]


def test_discarded_samples_are_counted(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = dataset(data, Encoder(skip_every=7), num_lanes=2)
    state = made.new_state()
    lanes = [made.lane(lane, state) for lane in range(2)]
    expected = [lanes[index % 2].next() for index in range(12)]
    made.skips = skips_of(SkippedRange(4, 10))
    loader = get_savable_loader(made)
    found = [batch for _, batch in zip(range(6), loader, strict=False)]
    assert [message for message in caplog.messages if "skip micro-batches 4 to 9" in message], "at the default level"
    assert found == [expected[index].batch for index in (0, 1, 2, 3, 10, 11)]
    hooks = sum(one.skipped.get("encode_sample", 0) for one in expected)
    assert loader.skipped == {"skip_steps": 24, **({"encode_sample": hooks} if hooks else {})}
    assert loader.save_state_rank()["lanes"]["1"]["cursors"] == expected[11].state["cursors"]


def test_ranges_are_added_only_ahead_and_to_endless_data(data: Path) -> None:
    state = LoaderState.from_dict(after(dataset(data), 6))
    ahead = skips_of(SkippedRange(6, 8))
    skipping = state.skipping(ahead)
    assert (skipping.micro_batch_index, skipping.num_handed_out) == (8, 6)
    assert state.skipping(skips_of(SkippedRange(0, 2), SkippedRange(4, 8))).skips == ahead
    assert state.skipping(skips_of(SkippedRange(0, 6))) == state
    assert skipping.skipping(ahead) == skipping
    assert skipping.skipping(skips_of(SkippedRange(9, 10))).skips == skips_of(SkippedRange(6, 8), SkippedRange(9, 10))
    with pytest.raises(ConfigError, match=r"skip micro-batches 6 to 7: steps are skipped in endless training only"):
        dataset(data, repeat=False).new_state().skipping(ahead)
