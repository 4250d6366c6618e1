"""Lanes of runs that skip steps; `tests/properties/test_step_skips.py` compares whole runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from bridge_data import LaneDataset, get_savable_loader
from bridge_data.errors import ConfigError
from bridge_data.lanes.skipping import SkippingLane, with_skips
from bridge_data.order.state import LoaderState
from bridge_data.order.step_skips import SkippedRange, StepSkips
from tests.lanes.test_lane import dataset
from tests.properties.jobs import Encoder


def skips_of(*ranges: SkippedRange) -> StepSkips:
    found = StepSkips.of(ranges)
    assert found is not None
    return found


def after(made: LaneDataset, num_batches: int, skips: StepSkips | None = None) -> dict[str, Any]:
    """The state after so many batches."""
    made.skips = skips
    loader = get_savable_loader(made)
    for _ in zip(range(num_batches), loader, strict=False):
        pass
    return json.loads(json.dumps(loader.save_state_rank()))  # type: ignore[no-any-return]


def test_discarded_samples_are_counted_with_the_next_batch(data: Path) -> None:
    made = dataset(data, Encoder(skip_every=7), num_lanes=2)
    plain = made.lane(0, made.new_state())
    expected = [plain.next() for _ in range(6)]
    state = with_skips(made.new_state(), skips_of(SkippedRange(4, 10)))
    lane = SkippingLane(0, state, made.lane)
    found = [lane.next() for _ in range(3)]
    assert [one.batch for one in found] == [expected[place].batch for place in (0, 1, 5)]
    hooks = sum(one.skipped.get("encode_sample", 0) for one in expected[2:6])
    assert found[2].skipped == {"skip_steps": 12, **({"encode_sample": hooks} if hooks else {})}
    assert found[2].state == expected[5].state
    assert lane.take_skipped() == {}


def test_ranges_are_added_only_ahead_and_to_endless_data(data: Path) -> None:
    state = LoaderState.from_dict(after(dataset(data), 6))
    ahead = skips_of(SkippedRange(6, 8))
    assert with_skips(state, skips_of(SkippedRange(0, 2), SkippedRange(4, 8))).skips == ahead
    assert with_skips(state, skips_of(SkippedRange(0, 6))) == state
    assert with_skips(with_skips(state, ahead), ahead).skips == ahead
    assert with_skips(with_skips(state, ahead), skips_of(SkippedRange(9, 10))).skips == skips_of(
        SkippedRange(6, 8), SkippedRange(9, 10)
    )
    with pytest.raises(ConfigError, match=r"skip micro-batches 6 to 7: steps are skipped in endless training only"):
        with_skips(dataset(data, repeat=False).new_state(), ahead)
