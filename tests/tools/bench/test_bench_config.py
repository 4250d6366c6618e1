from typing import Any

import pytest

from bridge_data.errors import ConfigError
from bridge_data.tools.bench import BenchConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seconds": 0}, "seconds=0: expected more than 0"),
        ({"seconds": float("nan")}, "seconds=nan: expected more than 0"),
        ({"num_batches": 0}, "num_batches=0: expected at least 1"),
        ({"step_s": -1}, "step_s=-1: expected 0 or more"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchConfig(path="somewhere", **settings)
