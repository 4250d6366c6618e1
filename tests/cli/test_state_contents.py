import copy
from typing import Any

from bridge_data.cli.state_contents import Difference, differences, lanes_of, sources_of
from bridge_data.order.state import Generation, LoaderState, with_checksums
from tests.loader.checkpoint.states import make_state


def test_sources_show_the_span_of_the_lanes_and_those_of_a_validation_no_chunks_or_weights() -> None:
    state = LoaderState.from_dict(make_state())
    state.lanes[4]["cursors"]["0"] = [17, 2, 3, 80]
    state.lanes[6]["inbox"] = {"0": [[0, 5, 3, 1, 10, 0, 40]]}
    state.lanes[5] = {}
    photos, pages = sources_of(state)
    assert (photos.label, photos.weight, photos.chunk_size) == ("photos/train", 0.25, 100)
    assert (photos.samples_taken, photos.epochs, photos.inbox) == ((0, 80), (0, 17), 40)  # lane 5 has not begun
    assert (pages.weight, pages.chunk_size, pages.samples_taken, pages.epochs) == (0.75, 50, (0, 30), (0, 0))
    fingerprint = {"sources": [["aa", "photos/val"]], "weights": None, "order": "ordered"}
    lane = {"draws": 8, "cursors": {}, "inbox": {"0": [[0, 1, 0, 0, 8, 0, 12]]}, "micro_batches": 2}
    state = LoaderState(fingerprint, [Generation(4, [[0]]), Generation(2, [[8]])], 4, {0: lane, 1: {}})
    assert [lane.inbox for lane in lanes_of(state)] == [12, 0]
    (source,) = sources_of(state)
    assert (source.weight, source.chunk_size, source.samples_taken, source.inbox) == (None, None, None, 0)


def test_the_weight_shown_is_that_of_the_phase_that_the_job_is_in() -> None:
    weights = []
    for drawn_before in (0, 1_000, 10**6):
        state = LoaderState.from_dict(make_state())  # 8 lanes, 50 draws each
        state.fingerprint = state.fingerprint | {"schedule": [[1_200, [0, 1]], [10**6, [1, 0]]]}
        state.drawn_before = drawn_before
        weights.append([source.weight for source in sources_of(state)])
        del state.lanes[0], state.lanes[1]
        assert [source.weight for source in sources_of(state)] == weights[-1]
    assert weights == [[0.25, 0.75], [0, 1], [1, 0]]


def compare(second: dict[str, Any]) -> tuple[list[Difference], dict[int, list[Difference]]]:
    return differences(LoaderState.from_dict(make_state()), LoaderState.from_dict(second))


def test_settings_and_deals_are_named() -> None:
    other = {
        "sources": [["aa", "photos/train"], ["cc", "books/train"]],
        "weights": [0.5, 0.5],
        "seed": 1,
        "epochs_per_shuffle": 2,
    }
    of_all, of_lanes = compare(make_state(**other))
    assert of_lanes == {} and of_all == [
        Difference("source", "bb", None, source="pages/train"),
        Difference("source", None, "cc", source="books/train"),
        Difference("weight", 0.25, 0.5, source="photos/train"),
        Difference("weight", 0.75, None, source="pages/train"),
        Difference("weight", None, 0.5, source="books/train"),
        Difference("seed", 0, 1),
        Difference("epochs_per_shuffle", None, 2),
    ]
    assert (of_all[3].heading, *of_all[3].texts) == ("weight of pages/train", "75.000%", "–")
    (first, *_), _ = compare(make_state(sources=[["bb", "pages/train"], ["aa", "photos/train"]]))
    assert (first.item, first.second) == ("source_sequence", ["pages/train", "photos/train"])
    assigned = make_state()
    assigned["generations"] = [[6, [[100, 32, 1024, 0], [50, 32, 1024, 0]]], *assigned["generations"]]
    assigned["drawn_before"] = 4_000
    of_all, _ = compare(with_checksums(assigned))
    assert [(one.heading, *one.texts) for one in of_all[:2]] == [
        ("samples drawn before the last reshard", "0", "4,000"),
        ("lanes of each generation", "[8]", "[6, 8]"),
    ]
    assert of_all[2].heading == "geometry of each generation"


def test_each_number_of_a_lane_is_compared() -> None:
    first, other = (LoaderState.from_dict(make_state()) for _ in range(2))
    lane = other.lanes[3] = copy.deepcopy(other.lanes[3])
    lane["draws"], lane["cursors"]["1"], lane["new"] = 1_234, [2, 7, 3, 12], 1
    lane["inbox"] = {"0": [[0, 1, 0, 0, 0, 0, 8]]}
    lane["pending"]["packs"][0] = [0, 3]
    del other.lanes[5]
    other.lanes[6] = {}
    of_all, of_lanes = differences(first, other)
    assert of_all == [] and of_lanes.keys() == {3, 5, 6}
    assert (of_lanes[5][0].heading, *of_lanes[5][0].texts) == ("lane 5: state", "here", "–")
    cursors = {"shuffle": 0, "samples_taken": 30}, {"shuffle": 2, "samples_taken": 12}
    assert of_lanes[3] == [
        Difference("draws", 50, 1_234, lane=3),
        Difference("cursor", *cursors, source="pages/train", lane=3),
        Difference("new", None, 1, lane=3),
        Difference("inbox", 0, 8, lane=3),
        Difference("pending", 4, 4, lane=3),
    ]
    assert [one.texts for one in of_lanes[3]] == [
        ("50", "1,234"),
        ("shuffle 0, 30 samples taken", "shuffle 2, 12 samples taken"),
        ("–", "1"),
        ("0 samples", "8 samples"),
        ("4 samples", "4 others"),
    ]
    assert of_lanes[5] == [Difference("is_here", True, False, lane=5)]
    assert [difference.heading for difference in of_lanes[6]][:2] == ["lane 6: micro-batches", "lane 6: draws"]
