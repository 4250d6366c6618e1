"""Groups that no run can use. More is in `tests/task/test_grouping.py`."""

from pathlib import Path
from typing import Any

import pytest

from bridge_data import ConfigError, DefaultTaskEncoder, TextSample
from tests.lanes.conftest import first_lane


class KeyedByObject(DefaultTaskEncoder[Any, Any, Any, Any]):
    def batch_group_criterion(self, sample: TextSample) -> Any:
        return object(), None


def test_a_group_key_that_differs_between_processes_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"returned the key <object object at 0x.*cannot be saved; return numbers"):
        first_lane(folder, KeyedByObject()).next()
