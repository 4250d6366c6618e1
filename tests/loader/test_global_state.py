import pytest

from bridge_data.errors import StateError
from tests.loader.conftest import in_turn
from tests.loader.test_loader import here, some


def test_the_global_state_of_one_rank_needs_no_process_group() -> None:
    loader = here()
    some(loader, 5)
    state = loader.save_state_global()
    assert state is not None
    for given in (state, [loader.save_state_rank()]):
        other = here()
        other.restore_state_global(given)
        assert some(other, 3) == in_turn(3, start=5)
    with pytest.raises(StateError, match="src_rank"):
        loader.restore_state_global(None)
