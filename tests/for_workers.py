"""What the process that starts the workers of tests imports first: else each worker that needs it would, by itself."""

import contextlib
from typing import Any

import PIL.Image  # noqa: F401
import pyarrow.parquet  # noqa: F401

from tests.loader import streams

with contextlib.suppress(ModuleNotFoundError):  # where tests of the core run without plug-ins
    from bridge_data.plugins.tables import table_records  # noqa: F401


def expected(lane: int, number: int, size: int) -> Any:
    """A batch of `Streams`, which workers make by this module."""
    return streams.expected(lane, number, size)
