"""Families try an image processor when they are made. Here, one with the same settings is tried once for all tests."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bridge_data.encoders.families import ProcessedFamily
from bridge_data.encoders.pixel_table import table_of

Trial = Callable[[Any], bool]

trial: Trial = ProcessedFamily._has_table
"""What tries an image processor each time."""

_found: dict[Any, tuple[bool, bool]] = {}


def tried_once(family: Any) -> bool:
    """What `trial` says, and sets, of a family: at once if a processor of transformers has been tried like this."""
    processor = family.image_processor
    if not type(processor).__module__.startswith("transformers."):
        return trial(family)
    others = {name: value for name, value in vars(family).items() if name != "image_processor"}
    settings = json.dumps([processor.to_dict(), others], sort_keys=True, default=repr)
    key = type(family), type(processor), settings
    if key not in _found:
        _found[key] = trial(family), family._resizes
        return _found[key][0]
    has_table, resizes = _found[key]
    object.__setattr__(family, "_table", table_of(processor) if has_table else None)
    object.__setattr__(family, "_resizes", resizes)
    return has_table


@pytest.fixture(scope="module", autouse=True)
def _processors_are_tried_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessedFamily, "_has_table", tried_once)
        yield
