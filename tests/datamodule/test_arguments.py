from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
import torch

from bridge_data import WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.datamodule import settings
from bridge_data.datamodule.arguments import FurtherArguments
from bridge_data.datamodule.settings import FurtherSettings

HINTS = get_type_hints(FurtherArguments)


def test_they_are_all_the_settings_that_are_taken() -> None:
    assert HINTS.keys() == {*settings._MODULE, *settings._DATASET, *settings._WORKERS, *settings._LOADER}
    assert FurtherArguments.__required_keys__ == set()


@pytest.mark.parametrize("function", [get_train_dataset, get_savable_loader, FurtherSettings, WorkerConfig.__init__])
def test_their_types_are_those_of_where_they_go(function: Callable[..., Any]) -> None:
    hints = get_type_hints(function, localns={"torch": torch})
    common = {name: hint for name, hint in hints.items() if name in HINTS}
    assert common
    assert common == {name: HINTS[name] for name in common}
