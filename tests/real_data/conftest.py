"""Where the packages of real data are."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.real_data.fetch import CACHE


@pytest.fixture(scope="session")
def package() -> Callable[[str], Path]:
    """The folder that a package is unpacked in; a test that asks for one that was not fetched is skipped."""

    def find(name: str) -> Path:
        folder = CACHE / name
        if not folder.is_dir():
            pytest.skip(f"{name} is not there; `make test-data` fetches it")
        return folder

    return find
