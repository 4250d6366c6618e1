"""Data and its stream for the tests of the DataModule."""

from pathlib import Path

import pytest

from tests.datamodule.parts import draw, make_module, write_numbers


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numbered text samples, which nobody changes."""
    return write_numbers(tmp_path_factory.mktemp("numbers"))


@pytest.fixture(scope="session")
def expected(path: Path) -> list[list[int]]:
    """The first micro-batches of training."""
    return draw(make_module(path).train_dataloader(), 60)
