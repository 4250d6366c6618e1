"""Lanes of runs that skip and repeat; `tests/properties/test_step_edits.py` compares whole runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from bridge_data import LaneDataset, get_savable_loader
from bridge_data.errors import ConfigError, StateError
from bridge_data.lanes.edited_lane import EditedLane, caught_up, with_edits
from bridge_data.order.state import LoaderState
from bridge_data.order.step_edits import StepEdit, StepEdits
from tests.lanes.test_lane import dataset
from tests.prepared import write_blend
from tests.properties.jobs import Encoder


def edits_of(*edits: StepEdit) -> StepEdits:
    found = StepEdits.of(edits)
    assert found is not None
    return found


def after(made: LaneDataset, num_batches: int, edits: StepEdits | None = None) -> dict[str, Any]:
    """The state after so many batches."""
    made.edits = edits
    loader = get_savable_loader(made)
    for _ in zip(range(num_batches), loader, strict=False):
        pass
    return json.loads(json.dumps(loader.save_state_rank()))  # type: ignore[no-any-return]


def test_discarded_samples_are_counted_with_the_next_batch(data: Path) -> None:
    made = dataset(data, Encoder(skip_every=7), num_lanes=2)
    plain = made.lane(0, made.new_state())
    expected = [plain.next() for _ in range(6)]
    state = with_edits(made.new_state(), edits_of(StepEdit(4, 10, 0)))
    lane = EditedLane(0, state, made.lane)
    found = [lane.next() for _ in range(3)]
    assert [one.batch for one in found] == [expected[place].batch for place in (0, 1, 5)]
    hooks = sum(one.skipped.get("encode_sample", 0) for one in expected[2:6])
    assert found[2].skipped == {"skip_steps": 12, **({"encode_sample": hooks} if hooks else {})}
    assert found[2].state == expected[5].state
    assert lane.take_skipped() == {}


def test_a_state_keeps_where_a_repeat_begins_until_it_has_begun_again(data: Path) -> None:
    state = with_edits(dataset(data).new_state(), edits_of(StepEdit(2, 6, 2)))
    lane = EditedLane(0, state, dataset(data).lane)
    kept = [("kept" in lane.next().state) for _ in range(6)]
    assert kept == [False, True, True, False, False, False]


def test_a_state_without_what_is_to_be_repeated_is_refused(data: Path) -> None:
    edits = edits_of(StepEdit(2, 6, 2))
    saved = after(dataset(data), 6, edits)
    for lane in saved["lanes"].values():
        del lane["kept"]
    del saved["checksums"]
    loader = get_savable_loader(dataset(data))
    loader.restore_state_rank(saved)
    with pytest.raises(StateError, match=r"lane 0 must repeat its micro-batch 1, .*the state was edited or damaged"):
        next(iter(loader))


def test_ranges_are_added_only_ahead_and_to_endless_data(data: Path) -> None:
    state = LoaderState.from_dict(after(dataset(data), 6))
    with pytest.raises(StateError, match=r"the state is at micro-batch 6 of the run, after their start"):
        with_edits(state, edits_of(StepEdit(4, 8, 2)))
    ahead = edits_of(StepEdit(6, 8, 0))
    assert with_edits(state, edits_of(StepEdit(0, 2, 0), StepEdit(4, 8, 0))).edits == ahead
    assert with_edits(state, edits_of(StepEdit(0, 6, 0))) == state
    assert with_edits(with_edits(state, ahead), ahead).edits == ahead
    assert with_edits(with_edits(state, ahead), edits_of(StepEdit(8, 10, 2))).edits == edits_of(
        StepEdit(6, 8, 0), StepEdit(8, 10, 2)
    )
    with pytest.raises(ConfigError, match=r"skip micro-batches 6 to 7: steps are skipped .* in endless training only"):
        with_edits(dataset(data, repeat=False).new_state(), ahead)


def test_a_state_whose_lanes_have_caught_up_is_that_of_the_plain_run(data: Path) -> None:
    edits = edits_of(StepEdit(2, 10, 0))
    made = dataset(data, Encoder(skip_every=7), num_lanes=4, packing_buffer_size=20)
    state = LoaderState.from_dict(after(made, 2, edits))
    assert {lane: one.get("micro_batches", 0) for lane, one in state.lanes.items()} == {0: 1, 1: 1, 2: 0, 3: 0}
    plain = LoaderState.from_dict(after(made, 10))

    def without_ledger(found: LoaderState) -> Any:
        return [{name: value for name, value in one.items() if name != "extras"} for one in found.lanes.values()]

    assert without_ledger(caught_up(state, made.lane)) == without_ledger(plain)


def test_weights_do_not_change_within_a_repeat(data: Path, tmp_path: Path) -> None:
    saved = after(dataset(data), 6, edits_of(StepEdit(2, 8, 2)))
    other = write_blend(tmp_path / "other.yaml", {str(data.parent / "a"): 1, str(data.parent / "b"): 1})
    loader = get_savable_loader(dataset(other))
    with pytest.raises(StateError, match="the state was saved during repeated steps, which need the weights"):
        loader.restore_state_rank(saved, strict=False)
