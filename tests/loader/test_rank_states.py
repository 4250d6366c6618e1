import pytest

from bridge_data.errors import StateError
from bridge_data.order.state import merge_states
from tests.loader.conftest import in_turn
from tests.loader.test_loader import here, some


def test_the_global_state_of_one_rank_needs_no_process_group() -> None:
    loader = here()
    some(loader, 5)
    state = loader.save_state_global()
    assert state == [loader.save_state_rank()]  # a list of the states of the ranks, as Energon's loader gives it
    for given in (state, merge_states(state)):
        other = here()
        other.restore_state_global(given)
        assert some(other, 3) == in_turn(3, start=5)
    with pytest.raises(StateError, match="src_rank"):
        loader.restore_state_global(None)
