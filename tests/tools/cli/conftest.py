from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.tools.cli.runner import pack_pictures, run_command, write_pictures

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """A function that runs `bridge-data` with arguments and what is typed."""
    return run_command


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A folder of twelve pictures with captions."""
    return write_pictures(tmp_path / "raw")


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """The pictures, packed into six shards."""
    return pack_pictures(tmp_path / "packed", tmp_path / "tars")
