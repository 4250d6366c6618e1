from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.runner import run_command, write_picture_tars, write_pictures

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
    """The pictures in six shards, not prepared."""
    return write_picture_tars(tmp_path / "in tars", tmp_path / "tars")
