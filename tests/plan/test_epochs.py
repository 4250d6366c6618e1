import hypothesis.strategies as st
import pytest
from hypothesis import given

from bridge_data.errors import ConfigError
from bridge_data.plan.epochs import MANY_EPOCHS, check_epochs, multiplied, together

EPOCHS = st.sampled_from([None, -1, 1, 2, 3, 8])


@given(EPOCHS, EPOCHS, EPOCHS)
def test_levels_may_be_joined_in_any_sequence(a, b, c):
    assert multiplied(a, b) == multiplied(b, a)
    assert multiplied(a, multiplied(b, c)) == multiplied(multiplied(a, b), c)
    assert multiplied(1, a) == a


def test_no_shuffling_comes_before_replacement_and_that_before_the_product():
    assert multiplied(2, 3) == 6
    assert multiplied(-1, 3) == -1
    assert multiplied(-1, -1) == -1
    assert multiplied(None, -1) is None


def test_replacement_is_many_epochs_at_once():
    assert [together(epochs) for epochs in (None, 1, 5, -1)] == [None, 1, 5, MANY_EPOCHS]


@pytest.mark.parametrize("wrong", [0, -2, 1.5, "2", True])
def test_anything_else_is_refused(wrong):
    with pytest.raises(ConfigError, match="expected a number of epochs from 1 on"):
        check_epochs(wrong)
