import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data.errors import StateError
from bridge_data.loader.rank_states import rank_names
from bridge_data.order.state import Generation, LoaderState, Resharded, merge, merge_states
from bridge_data.order.step_skips import SkippedRange, StepSkips

FINGERPRINT = {
    "sources": [["aa", "photos"], ["bb", "pages"]],
    "weights": [0.25, 0.75],
    "seed": 0,
    "order": "shuffled",
    "batch_size": 4,
}


def state(*lanes: int, slot: int = 8, num_lanes: int = 4) -> LoaderState:
    made = slot // num_lanes
    cursors = {lane: {"draws": lane, "cursors": {"0": [1, 0, lane, lane]}, "micro_batches": made} for lane in lanes}
    return LoaderState(dict(FINGERPRINT), [Generation(num_lanes, [[100, 8, 32, 0], [50, 8, 32, 0]])], slot, cursors)


def test_a_state_survives_json_and_weights_only_loading(tmp_path: Path) -> None:
    saved = state(0, 2).to_dict()
    torch.save(saved, tmp_path / "state.pt")
    for loaded in (json.loads(json.dumps(saved)), torch.load(tmp_path / "state.pt", weights_only=True)):
        assert LoaderState.from_dict(loaded) == state(0, 2)


def test_all_fields_are_saved_and_empty_ones_left_out(tmp_path: Path) -> None:
    skips = StepSkips.of([SkippedRange(20, 24)])
    full = dataclasses.replace(
        state(0, 2), drawn_before=5, epoch_batches=3, ended=True, extras={"a": 1}, repetition=2, skips=skips,
        resharded=Resharded(4, [1]),
    )  # fmt: skip
    names = {field.name for field in dataclasses.fields(full)}
    assert all(getattr(full, name) for name in names)
    saved = json.loads(json.dumps(full.to_dict()))
    assert (names - saved.keys(), LoaderState.from_dict(saved)) == (set(), full)
    empty = {"epoch_batches", "ended", "extras", "repetition", "skips", "resharded"}
    assert names - state(0, 2).to_dict().keys() == empty


def test_extras_are_kept_as_they_are_and_must_be_the_same_on_all_ranks() -> None:
    assert "extras" not in state(0).to_dict()
    given = [
        dataclasses.replace(state(*lanes), extras={"totals": {"version": 2, "data": 7}}) for lanes in ([0, 2], [1, 3])
    ]
    merged = merge_states([json.loads(json.dumps(part.to_dict())) for part in given])
    assert merged["extras"] == {"totals": {"version": 2, "data": 7}}
    with pytest.raises(StateError, match="has extras"):
        merge_states([given[0].to_dict(), state(1, 3).to_dict()])


def test_every_difference_is_named() -> None:
    run = {"sources": [["aa", "photos"], ["cc", "books"]], "weights": [0.25, 0.75], "seed": 1, "batch_size": 8}
    run["order"] = "shuffled"
    with pytest.raises(StateError) as caught:
        state(0).check(run)
    message = str(caught.value)
    for part in ("pages (bb)", "books (cc)", "seed: the state has 0, this run has 1", "batch_size: the state has 4"):
        assert part in message
    assert "weights: " not in message
    with pytest.raises(StateError, match="another order"):
        state(0).check(FINGERPRINT | {"sources": [["bb", "pages"], ["aa", "photos"]]})
    state(0).check(FINGERPRINT | {"sources": [["aa", "moved/photos"], ["bb", "pages"]]})
    with pytest.raises(StateError, match="repeat: the state has None, this run has False"):
        state(0).check(FINGERPRINT | {"repeat": False})


@pytest.mark.parametrize(
    ("saved", "run", "differing"),
    [
        ({"aa": 2, "bb": 3}, {"aa": 2, "bb": 3}, set()),
        ({"aa": 2, "bb": 3}, {"aa": 2}, {"sources"}),
        ({"aa": 2, "bb": 3}, {"aa": 4}, {"sources", "epochs_of_sources"}),
        ({"aa": 2}, {"aa": 2, "cc": 9}, {"sources"}),
        ({"bb": 3}, None, {"sources"}),
    ],
)
def test_what_is_told_by_source_is_compared_for_the_sources_that_both_runs_have(
    saved: dict[str, int], run: dict[str, int] | None, differing: set[str]
) -> None:
    """A source that is gone or new is one difference."""
    before = dataclasses.replace(state(0), fingerprint=FINGERPRINT | {"epochs_of_sources": saved})
    labels = {"aa": "photos"} if run != saved else {"aa": "photos", "bb": "pages"}
    labels |= {key: "books" for key in run or {} if key == "cc"}
    after = FINGERPRINT | {"sources": [[*source] for source in labels.items()]}
    after |= {} if run is None else {"epochs_of_sources": run}
    assert {name for name, _ in before.differences(after)} == differing


@pytest.mark.parametrize(
    ("contents", "differing"),
    [
        ({"aa": "keys:1", "bb": "keys:1"}, set()),
        ({"aa": "keys:2"}, {"contents"}),
        ({"aa": "columns:2"}, set()),
        ({"bb": "keys:2"}, set()),
        (None, set()),
    ],
)
def test_contents_differ_where_both_runs_know_the_same_of_a_source(
    contents: dict[str, str] | None, differing: set[str]
) -> None:
    saved = dataclasses.replace(state(0), fingerprint=FINGERPRINT | {"contents": {"aa": "keys:1"}})
    run = FINGERPRINT | ({} if contents is None else {"contents": contents})
    assert {name for name, _ in saved.differences(run)} == differing


def test_merging_takes_the_union_of_the_lanes_in_any_order() -> None:
    merged = LoaderState.from_dict(merge_states([state(1, 3).to_dict(), state(0, 2).to_dict(), state(0, 2).to_dict()]))
    assert merged == state(0, 1, 2, 3)
    for world_size in (1, 2, 4):
        lanes = [sorted(merged.of_rank(rank, world_size).lanes) for rank in range(world_size)]
        assert sorted(lane for mine in lanes for lane in mine) == [0, 1, 2, 3]


def test_ranks_with_other_settings_are_named_and_not_called_a_saved_state() -> None:
    parts = [state(0, 2), dataclasses.replace(state(1, 3), fingerprint=FINGERPRINT | {"weights": [0.5, 0.5]})]
    with pytest.raises(StateError, match=r"(?s)of other data or settings than data-parallel rank 0.*weights") as caught:
        merge(parts, rank_names(parts))
    assert str(caught.value).startswith("data-parallel rank 1") and "strict" not in str(caught.value)


def test_a_pass_is_over_once_it_is_over_for_all_ranks() -> None:
    ended, going_on = state(0, 2), state(1, 3)
    ended.ended = True
    assert "ended" not in merge_states([ended.to_dict(), going_on.to_dict()])
    going_on.ended = True
    assert merge_states([ended.to_dict(), going_on.to_dict()])["ended"] is True


def test_ranks_pass_over_slots_at_the_end_of_finite_data_alone() -> None:
    for finite in ({"order": "ordered"}, {"repeat": False}, {"max_micro_batches": 5}):
        parts = [state(0, 2), state(1, 3, slot=9)]
        for part in parts:
            part.fingerprint |= finite
            if "order" in finite:
                part.generations = [Generation(4, [[0]])]
        for order in (parts, parts[::-1]):
            assert merge_states([part.to_dict() for part in order])["micro_batch_index"] == 8
        parts[1].lanes[3] = parts[1].lanes[3] | {"micro_batches": 4}
        with pytest.raises(StateError, match="state number 1 has handed out 6 micro-batches, state number 0 4"):
            merge_states([part.to_dict() for part in parts])


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (lambda saved: None, "not a loader state"),
        (lambda saved: [1], "not a loader state"),
        (lambda saved: {"datasets": 1, "rng": 2}, "not a loader state"),
        (
            lambda saved: saved | {"version": 1},
            r"version 1, .*version 4(?s:.*)from the beginning(?s:.*)the release",
        ),
        (lambda saved: saved | {"version": 99}, "version 99, this release reads version 4"),
        (lambda saved: saved | {"lanes": ["0"]}, "lanes: .*: expected a dict with a value of each lane"),
        (lambda saved: saved | {"checksums": {0: 1}}, "checksums: .*: expected a dict with a value of each lane"),
        (lambda saved: saved | {"lanes": {"0": saved["lanes"]["0"]}}, "lanes.2: missing from the state"),
        (lambda saved: saved | {"lanes": saved["lanes"] | {"1": {}}}, "lanes.1: not as saved"),
    ],
)
def test_what_is_no_state_of_this_format_is_refused(changed: Callable[[Any], Any], told: str) -> None:
    with pytest.raises(StateError, match=told):
        LoaderState.from_dict(changed(state(0, 2).to_dict()))


def other_step_of_a_lane() -> LoaderState:
    other = state(0, 1, 3)
    other.lanes[0] = {"draws": 99, "cursors": {}, "micro_batches": 2}
    return other


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ([], "no state"),
        ([state(0, 2)], r"lacks lanes \[1, 3\] of 4"),
        ([state(0, 2), state(1, 3, slot=12)], "micro_batch_index 12"),
        ([state(0, 2), other_step_of_a_lane()], "states of lane 0"),
    ],
)
def test_what_makes_no_whole_state_is_not_merged(parts: list[LoaderState], told: str) -> None:
    with pytest.raises(StateError, match=told):
        merge_states([part.to_dict() for part in parts])
