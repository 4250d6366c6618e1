from pathlib import Path

import pytest

from tests.prepared import write_pair


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A blend of 300 and 90 texts, 3 to 1."""
    return write_pair(tmp_path_factory.mktemp("data"), 300, 90)
