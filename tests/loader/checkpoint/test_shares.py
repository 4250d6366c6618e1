import pytest

from bridge_data.errors import StateError
from bridge_data.loader.checkpoint.shares import place_in, share_of
from bridge_data.order.state import LoaderState, merge_states
from tests.loader.checkpoint.states import make_state

WHOLE = LoaderState.from_dict(make_state())


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_ranks_share_the_lanes_where_they_can(world_size: int) -> None:
    shares = [share_of(WHOLE, rank, world_size) for rank in range(world_size)]
    assert [len(share.lanes) for share in shares] == [8 // world_size] * world_size
    assert merge_states([share.to_dict() for share in shares]) == make_state()
    assert [share_of(share, rank, world_size) for rank, share in enumerate(shares)] == shares


@pytest.mark.parametrize("world_size", [3, 5, 16])
def test_otherwise_some_keep_more(world_size: int) -> None:
    shares = [share_of(WHOLE, rank, world_size) for rank in range(world_size)]
    assert sum(len(share.lanes) for share in shares) == 8
    assert merge_states([share.to_dict() for share in shares]) == make_state()


def test_a_state_of_another_rank_is_refused() -> None:
    with pytest.raises(StateError, match=r"rank 0 of 2 needs lanes \[0, 2, 4, 6\], the state holds \[1, 3, 5, 7\]"):
        share_of(share_of(WHOLE, 1, 2), 0, 2)
    with pytest.raises(StateError, match=r"rank 0 of 3 needs lanes \[0, 6\], the state holds \[1, 3, 5, 7\]"):
        share_of(share_of(WHOLE, 1, 2), 0, 3)


def test_a_process_alone_is_rank_0_of_1() -> None:
    assert place_in(None) == (0, 1)
