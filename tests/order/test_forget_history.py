import pytest

from bridge_data.errors import StateError
from bridge_data.order.forget_history import NAME, changes_between, check_lists, lists_at, with_lists
from bridge_data.order.state import LoaderState, merge_states
from bridge_data.shards.tombstones import counts_at

FINGERPRINT = {"sources": [["s", "a/train"]], "weights": None, "order": "shuffled"}


def state(next_slot: int, **extras: object) -> LoaderState:
    return LoaderState(FINGERPRINT, [(1, [[1, 1, 0, 0]])], next_slot, {0: {}}, extras=extras)


def at_slot(next_slot: int, before: LoaderState) -> LoaderState:
    return state(next_slot, **before.extras)


def test_a_list_is_noted_once_with_the_slot_from_which_on_it_is_used() -> None:
    none = with_lists(state(0), {})
    assert none.extras == {}
    first = with_lists(at_slot(10, none), {"s": [(1, "d1")]})
    assert first.extras[NAME]["data"] == [[10, {"s": [[1, "d1"]]}]]
    assert with_lists(at_slot(15, first), {"s": [(1, "d1")]}).extras == first.extras
    second = with_lists(at_slot(20, first), {"s": [(2, "d2")]})
    replaced = with_lists(at_slot(20, second), {"s": [(3, "d3")]})
    assert [slot for slot, _ in replaced.extras[NAME]["data"]] == [10, 20]
    assert [lists_at(replaced.extras, slot) for slot in (9, 10, 20)] == [{}, {"s": [[1, "d1"]]}, {"s": [[3, "d3"]]}]
    assert changes_between(replaced.extras, 10, 20) == []
    assert [slot for slot, _ in changes_between(replaced.extras, 9, 21)] == [10, 20]
    assert LoaderState.from_dict(replaced.to_dict()).extras == replaced.extras


@pytest.mark.parametrize(
    "data", [[], [[0]], [[3, {}], [3, {}]], [[0, {"s": [1]}]], [[0, {"s": [[-1, ""]]}]], [[0, []]]]
)
def test_a_damaged_history_is_refused(data: list[object]) -> None:
    damaged = state(5, forgotten={"version": 1, "data": data}).to_dict()
    with pytest.raises(StateError, match=r"extras\.forgotten\.data"):
        LoaderState.from_dict(damaged)


def test_an_older_or_another_list_is_refused() -> None:
    saved = with_lists(state(5), {"s": [(2, "d2"), (0, "")]})
    check_lists(saved, {"s": [[["d1", "d2"]], []]})
    check_lists(saved, {"s": [[["d1", "d2", "d3"]], [["e1"]]]})
    for known, told in (
        ({"s": [[["d1"]], []]}, "has version 1"),
        ({}, "has none"),
        ({"s": [[["d1", "x"]], []]}, "another"),
    ):
        with pytest.raises(StateError, match=f"version 2 of the list of forgotten samples of a/train.*{told}"):
            check_lists(saved, known)


def test_several_lists_of_a_data_set_are_each_compared_by_their_own_versions() -> None:
    one, both = with_lists(state(5), {"s": [(2, "d2")]}), with_lists(state(5), {"s": [(3, "d2+e1")]})
    for now in ([["d1", "d2"], ["e1"]], [["e1", "e2"], ["d1", "d2", "d3"]]):
        check_lists(one, {"s": [now]})
        check_lists(both, {"s": [now]})
        assert counts_at((2, "d2"), now) == [2 * ("d2" in own) for own in now]
    for now in ([["d1", "d2"]], [["d1"], ["e1"]], [["d1", "d2"], ["x1"]], []):
        with pytest.raises(StateError, match="version 3 of the list of forgotten samples of a/train"):
            check_lists(both, {"s": [now]})


def test_ranks_with_other_lists_cannot_be_merged() -> None:
    ranks = []
    for rank in range(2):
        own = with_lists(state(0), {"s": [(1 + rank, "d")]})
        own.generations, own.lanes = [(2, [[1, 1, 0, 0]])], {rank: {}}
        ranks.append(own.to_dict())
    with pytest.raises(StateError, match="a list of forgotten samples was written while the ranks started"):
        merge_states(ranks)
