import math

import pytest

from bridge_data.errors import ConfigError
from bridge_data.task.stateless import declared, stateless


def test_plain_stateless_spares_the_seeding() -> None:
    @stateless
    def hook(sample: int) -> int:
        return sample + 1

    assert hook(1) == 2
    assert not declared(hook).seeded


def test_arguments_are_kept() -> None:
    @stateless(restore_seeds=True, failure_tolerance=7)
    def hook(sample: int) -> int:
        return sample

    assert declared(hook).seeded
    assert declared(hook).failure_tolerance == 7


def test_an_undeclared_hook_is_seeded() -> None:
    assert declared(lambda sample: sample).seeded


@pytest.mark.parametrize("tolerance", [-1, math.nan, "many"])
def test_a_wrong_tolerance_is_an_error_where_it_is_declared(tolerance: float) -> None:
    with pytest.raises(ConfigError, match=r"stateless\(failure_tolerance=.*expected a number of failures"):
        stateless(failure_tolerance=tolerance)
