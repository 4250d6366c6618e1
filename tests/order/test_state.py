import dataclasses
import json

import pytest
import torch

from bridge_data.errors import StateError
from bridge_data.order.state import LoaderState, merge_states, with_checksums

FINGERPRINT = {
    "sources": [["aa", "photos"], ["bb", "pages"]],
    "weights": [0.25, 0.75],
    "seed": 0,
    "order": "shuffled",
    "batch_size": 4,
}


def state(*lanes: int, slot: int = 6, num_lanes: int = 4) -> LoaderState:
    cursors = {lane: {"draws": lane, "cursors": {"0": [1, 0, lane, lane]}, "micro_batches": 2} for lane in lanes}
    return LoaderState(dict(FINGERPRINT), [(num_lanes, [[100, 8, 32, 0], [50, 8, 32, 0]])], slot, cursors)


def test_a_state_survives_json_and_weights_only_loading(tmp_path) -> None:  # type: ignore[no-untyped-def]
    saved = state(0, 2).to_dict()
    torch.save(saved, tmp_path / "state.pt")
    for loaded in (json.loads(json.dumps(saved)), torch.load(tmp_path / "state.pt", weights_only=True)):
        assert LoaderState.from_dict(loaded) == state(0, 2)


@pytest.mark.parametrize("other", [None, [1], {"datasets": 1, "rng": 2}])
def test_a_state_of_something_else_is_refused(other: object) -> None:
    with pytest.raises(StateError, match="not a loader state"):
        LoaderState.from_dict(other)


def test_a_state_of_another_version_is_refused_with_the_way_out() -> None:
    for version in (1, 99):
        with pytest.raises(StateError, match=rf"has order format {version}, this release reads format 2") as e:
            LoaderState.from_dict(state(0).to_dict() | {"version": version})
        assert "Start the data from the beginning" in str(e.value)
        assert "resume with the release that wrote it" in str(e.value)


def test_extras_of_an_unknown_name_are_refused_with_the_name() -> None:
    extra = {"totals": {"version": 1, "data": [1, 2]}}
    saved = state(0, 2).to_dict()
    with pytest.raises(StateError, match=r"^extras\.totals: version 1\b"):
        LoaderState.from_dict(saved | {"extras": extra})
    lanes = saved["lanes"] | {"2": saved["lanes"]["2"] | {"extras": extra}}
    with pytest.raises(StateError, match=r"^lanes\.2\.extras\.totals: version 1\b"):
        LoaderState.from_dict(saved | {"lanes": lanes})


def test_extras_of_a_known_name_are_kept_and_none_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge_data.order.state.EXTRAS", {"totals": (2, lambda path, data: None)})
    assert "extras" not in state(0).to_dict()
    assert LoaderState.from_dict(with_checksums(state(0).to_dict() | {"extras": {}})) == state(0)
    given = [
        dataclasses.replace(state(*lanes), extras={"totals": {"version": 2, "data": 7}}) for lanes in ([0, 2], [1, 3])
    ]
    merged = merge_states([json.loads(json.dumps(part.to_dict())) for part in given])
    assert merged["extras"] == {"totals": {"version": 2, "data": 7}}
    with pytest.raises(StateError, match="has extras"):
        merge_states([given[0].to_dict(), state(1, 3).to_dict()])
    for wrong in ({"version": 3, "data": 7}, {"version": 1, "data": 7}, {"data": 7}, 7):
        with pytest.raises(StateError, match=r"^extras\.totals: version (3|1|None)\b"):
            LoaderState.from_dict(state(0).to_dict() | {"extras": {"totals": wrong}})


def test_every_difference_is_named() -> None:
    run = {"sources": [["aa", "photos"], ["cc", "books"]], "weights": [0.25, 0.75], "seed": 1, "batch_size": 8}
    run["order"] = "shuffled"
    with pytest.raises(StateError) as caught:
        state(0).check(run)
    message = str(caught.value)
    for part in ("pages (bb)", "books (cc)", "seed: the state has 0, this run has 1", "batch_size: the state has 4"):
        assert part in message
    assert "weights: " not in message


def test_reordered_sources_differ_and_renamed_ones_do_not() -> None:
    with pytest.raises(StateError, match="another order"):
        state(0).check(FINGERPRINT | {"sources": [["bb", "pages"], ["aa", "photos"]]})
    state(0).check(FINGERPRINT | {"sources": [["aa", "moved/photos"], ["bb", "pages"]]})


def test_merging_takes_the_union_of_the_lanes_in_any_order() -> None:
    merged = LoaderState.from_dict(merge_states([state(1, 3).to_dict(), state(0, 2).to_dict(), state(0, 2).to_dict()]))
    assert merged == state(0, 1, 2, 3)
    for world_size in (1, 2, 4):
        lanes = [sorted(merged.of_rank(rank, world_size).lanes) for rank in range(world_size)]
        assert sorted(lane for mine in lanes for lane in mine) == [0, 1, 2, 3]


def test_a_merge_with_a_lane_missing_is_refused() -> None:
    with pytest.raises(StateError, match=r"lacks lanes \[1, 3\] of 4"):
        merge_states([state(0, 2).to_dict()])
    with pytest.raises(StateError, match="no state"):
        merge_states([])


def test_a_merge_of_different_steps_is_refused() -> None:
    with pytest.raises(StateError, match="next_slot 8"):
        merge_states([state(0, 2).to_dict(), state(1, 3, slot=8).to_dict()])
    other = state(0, 1, 3)
    other.lanes[0] = {"draws": 99, "cursors": {}, "micro_batches": 2}
    with pytest.raises(StateError, match="states of lane 0"):
        merge_states([state(0, 2).to_dict(), other.to_dict()])


def test_a_rank_without_its_lanes_says_which_are_missing() -> None:
    with pytest.raises(StateError, match=r"needs lanes \[0, 2\].*holds \[1, 3\]"):
        state(1, 3).of_rank(0, 2)


def test_a_pass_is_over_once_it_is_over_for_all_ranks() -> None:
    ended, going_on = state(0, 2), state(1, 3)
    ended.ended = True
    assert "ended" not in merge_states([ended.to_dict(), going_on.to_dict()])
    going_on.ended = True
    assert merge_states([ended.to_dict(), going_on.to_dict()])["ended"] is True


def test_ranks_pass_over_slots_at_the_end_of_finite_data_alone() -> None:
    for finite in ({"order": "ordered"}, {"repeat": False}, {"max_micro_batches": 5}):
        parts = [state(0, 2), state(1, 3, slot=8)]
        for part in parts:
            part.fingerprint |= finite
            if "order" in finite:
                part.generations = [(4, [[0]])]
        assert merge_states([part.to_dict() for part in parts])["next_slot"] == 6
        parts[1].lanes[3] = parts[1].lanes[3] | {"micro_batches": 4}
        with pytest.raises(StateError, match="state number 1 has handed out 6 micro-batches, state number 0 4"):
            merge_states([part.to_dict() for part in parts])
