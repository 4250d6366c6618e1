import dataclasses
from typing import Any

import pytest

from bridge_data.errors import StateError
from bridge_data.order.extras import with_data
from bridge_data.order.state import Generation, LoaderState, merge_states
from bridge_data.plugins.forget.forgotten import ForgottenSamples
from bridge_data.plugins.forget.forgotten_lists import check_lists, lists_at, with_lists
from bridge_data.plugins.forget.tombstones import counts_at

FINGERPRINT = {"sources": [["s", "a/train"]], "weights": None, "order": "shuffled"}


def state(micro_batch_index: int, **extras: object) -> LoaderState:
    lane = {"draws": micro_batch_index, "cursors": {}, "micro_batches": micro_batch_index}
    return LoaderState(FINGERPRINT, [Generation(1, [[1, 1, 0, 0]])], micro_batch_index, {0: lane}, extras=extras)


def used(saved: LoaderState, lists: Any) -> LoaderState:
    """`saved` of a run that uses `lists` from here on."""
    history = with_lists(ForgottenSamples.history(saved), saved.micro_batch_index, lists)
    return dataclasses.replace(saved, extras=with_data(saved.extras, ForgottenSamples, history or None))


def check(saved: LoaderState, known: Any) -> None:
    check_lists(ForgottenSamples.history(saved), saved.micro_batch_index, known, dict(saved.fingerprint["sources"]))


def at_slot(micro_batch_index: int, before: LoaderState) -> LoaderState:
    return state(micro_batch_index, **before.extras)


def test_a_list_is_noted_once_with_the_slot_from_which_on_it_is_used() -> None:
    none = used(state(0), {})
    assert none.extras == {}
    first = used(at_slot(10, none), {"s": [[1, "d1"]]})
    assert first.extras["withheld"]["data"] == [[10, {"s": [[1, "d1"]]}]]
    assert used(at_slot(15, first), {"s": [[1, "d1"]]}).extras == first.extras
    second = used(at_slot(20, first), {"s": [[2, "d2"]]})
    replaced = used(at_slot(20, second), {"s": [[3, "d3"]]})
    assert [slot for slot, _ in replaced.extras["withheld"]["data"]] == [10, 20]
    assert [lists_at(ForgottenSamples.history(replaced), slot) for slot in (9, 10, 20)] == [
        {},
        {"s": [[1, "d1"]]},
        {"s": [[3, "d3"]]},
    ]
    assert LoaderState.from_dict(replaced.to_dict()).extras == replaced.extras


def test_several_lists_of_a_data_set_are_each_compared_by_their_own_versions() -> None:
    one, both = used(state(5), {"s": [[2, "d2"]]}), used(state(5), {"s": [[3, "d2+e1"]]})
    for now in ([["d1", "d2"], ["e1"]], [["e1", "e2"], ["d1", "d2", "d3"]]):
        check(one, {"s": [now]})
        check(both, {"s": [now]})
        assert counts_at((2, "d2"), now) == [2 * ("d2" in own) for own in now]
    for now in ([["d1", "d2"]], [["d1"], ["e1"]], [["d1", "d2"], ["x1"]], []):
        with pytest.raises(StateError, match="version 3 of the list of forgotten samples of a/train"):
            check(both, {"s": [now]})


def test_ranks_with_other_lists_cannot_be_merged() -> None:
    ranks = []
    for rank in range(2):
        own = used(state(0), {"s": [[1 + rank, "d"]]})
        own.generations, own.lanes = [(2, [[1, 1, 0, 0]])], {rank: {}}
        ranks.append(own.to_dict())
    with pytest.raises(StateError, match=r"has extras .*withheld"):
        merge_states(ranks)


@pytest.mark.parametrize(
    ("known", "told"),
    [({"s": [[["d1"]], []]}, "has version 1"), ({}, "has none"), ({"s": [[["d1", "x"]], []]}, "another")],
)
def test_an_older_or_another_list_is_refused(known: Any, told: str) -> None:
    saved = used(state(5), {"s": [[2, "d2"], [0, ""]]})
    check(saved, {"s": [[["d1", "d2", "d3"]], [["e1"]]]})
    with pytest.raises(StateError, match=f"version 2 of the list of forgotten samples of a/train.*{told}"):
        check(saved, known)
