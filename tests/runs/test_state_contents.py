from bridge_data.order.state import Generation, LoaderState
from bridge_data.runs.state_contents import lanes_of, sources_of
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


def test_draws_that_the_state_does_not_tell_are_not_shown_as_none() -> None:
    state = LoaderState.from_dict(make_state())
    for lane in state.lanes.values():
        lane |= {"draws": 0, "cursors": {}, "pack_source": {"position": [7]}}
    assert [lane.draws for lane in lanes_of(state)] == [None] * 8
    for source in sources_of(state):
        assert (source.samples_taken, source.epochs) == (None, None)
        assert source.weight is not None
    state.fingerprint = state.fingerprint | {"schedule": [[1_200, [0, 1]]]}
    assert [source.weight for source in sources_of(state)] == [None, None], "nobody knows which weights hold now"


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
