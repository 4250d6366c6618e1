from bridge_data.order.pending import num_pending
from bridge_data.order.state import LoaderState
from bridge_data.tools.cli.state_contents import LaneContents, lanes_of, sources_of
from tests.loader.checkpoint.states import make_state


def test_lanes_are_counted_up() -> None:
    state = LoaderState.from_dict(make_state(2, 1))
    state.lanes[3] = {}
    state.lanes[1]["inbox"] = {"0": [[0, 5, 3, 1, 10, 0, 40], [[0, 7, -1], [1, 8, 2]]], "1": [[0, 1, 0, 0, 0, 0, 8]]}
    assert lanes_of(state) == [
        LaneContents(1, 10, 50, 4, 50),
        LaneContents(2, 10, 50, 4, 0),
        LaneContents(3, 0, 0, 0, 0),
    ]


def test_pending_samples_are_counted_wherever_they_wait() -> None:
    pending = {
        "queue": [1, [2, 1]],
        "carried": [[0, 0, 7, -1]],
        "packs": [[3, 4], [5]],
        "buckets": {"a": [[6], [7, 8]], "b": [[9]]},
        "open": [[[[10, 11], [12]], 1]],
        "base": {"draws": 0},
    }
    assert num_pending({"pending": pending}) == 2 + 1 + 3 + 4 + 3
    assert num_pending({}) == 0


def test_sources_show_the_span_of_the_lanes() -> None:
    state = LoaderState.from_dict(make_state())
    state.lanes[4]["cursors"]["0"] = [17, 2, 3, 80]
    state.lanes[6]["inbox"] = {"0": [[0, 5, 3, 1, 10, 0, 40]]}
    state.lanes[5] = {}
    photos, pages = sources_of(state)
    assert (photos.label, photos.weight, photos.chunk_size) == ("photos/train", 0.25, 100)
    assert (photos.samples_taken, photos.epochs, photos.inbox) == ((0, 80), (0, 17), 40)  # lane 5 has not begun
    assert (pages.weight, pages.chunk_size, pages.samples_taken, pages.epochs) == (0.75, 50, (0, 30), (0, 0))


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


def test_a_validation_has_sources_without_chunks_or_weights() -> None:
    fingerprint = {"sources": [["aa", "photos/val"]], "weights": None, "order": "ordered"}
    state = LoaderState(
        fingerprint,
        [(4, [[0]]), (2, [[8]])],
        4,
        {0: {"draws": 8, "cursors": {}, "inbox": {"0": [[0, 1, 0, 0, 8, 0, 12]]}, "micro_batches": 2}, 1: {}},
    )
    assert [lane.inbox for lane in lanes_of(state)] == [12, 0]
    (source,) = sources_of(state)
    assert (source.weight, source.chunk_size, source.samples_taken, source.inbox) == (None, None, None, 0)
