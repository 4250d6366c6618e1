import copy
from typing import Any

from bridge_data.order.state import LoaderState
from bridge_data.tools.cli.state_differences import Difference, differences
from tests.loader.checkpoint.states import make_state


def compare(second: dict[str, Any]) -> tuple[list[Difference], dict[int, list[Difference]]]:
    return differences(LoaderState.from_dict(make_state()), LoaderState.from_dict(second))


def test_equal_states_do_not_differ() -> None:
    assert compare(make_state()) == ([], {})


def test_settings_are_named() -> None:
    other = {
        "sources": [["aa", "photos/train"], ["cc", "books/train"]],
        "weights": [0.5, 0.5],
        "seed": 1,
        "epochs_per_shuffle": 2,
    }
    of_all, of_lanes = compare(make_state(**other))
    assert of_all == [
        Difference("source pages/train", "bb", "–"),
        Difference("source books/train", "–", "cc"),
        Difference("weight of photos/train", "25.000%", "50.000%"),
        Difference("weight of pages/train", "75.000%", "–"),
        Difference("weight of books/train", "–", "50.000%"),
        Difference("seed", "0", "1"),
        Difference("epochs_per_shuffle", "–", "2"),
    ]
    assert of_lanes == {}


def test_the_same_sources_in_another_sequence_are_told() -> None:
    (first, *_), _ = compare(make_state(sources=[["bb", "pages/train"], ["aa", "photos/train"]]))
    assert first.item == "sequence of the sources"


def test_deals_are_told() -> None:
    other = make_state()
    other["generations"] = [[6, [[100, 32, 1024, 0], [50, 32, 1024, 0]]], *other["generations"]]
    other["drawn_before"] = 4_000
    of_all, _ = compare(other)
    assert [difference.item for difference in of_all] == [
        "samples drawn before the last deal",
        "lanes of each deal",
        "geometry of each deal",
    ]
    assert (of_all[0].first, of_all[0].second) == ("0", "4,000")
    assert (of_all[1].first, of_all[1].second) == ("[8]", "[6, 8]")


def test_each_number_of_a_lane_is_compared() -> None:
    first, other = (LoaderState.from_dict(make_state()) for _ in range(2))
    lane = other.lanes[3] = copy.deepcopy(other.lanes[3])
    lane["draws"], lane["cursors"]["1"], lane["new"] = 1_234, [2, 7, 3, 12], 1
    lane["inbox"] = {"0": [[0, 1, 0, 0, 0, 0, 8]]}
    lane["pending"]["packs"][0] = [0, 3]
    del other.lanes[5]
    other.lanes[6] = {}
    of_all, of_lanes = differences(first, other)
    assert of_all == []
    assert of_lanes[3] == [
        Difference("lane 3: draws", "50", "1,234"),
        Difference("lane 3: pages/train", "shuffle 0, 30 samples taken", "shuffle 2, 12 samples taken"),
        Difference("lane 3: new", "–", "1"),
        Difference("lane 3: inbox", "0 samples", "8 samples"),
        Difference("lane 3: pending", "4 samples", "4 others"),
    ]
    assert of_lanes[5] == [Difference("lane 5: state", "here", "–")]
    assert [difference.item for difference in of_lanes[6]][:2] == ["lane 6: micro-batches", "lane 6: draws"]
    assert of_lanes.keys() == {3, 5, 6}
