from pathlib import Path

import pytest

from tests.prepared import write_blend, write_texts


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A blend of 300 and 90 texts, 3 to 1."""
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "a", 300)
    write_texts(folder / "b", 90)
    return write_blend(folder / "blend.yaml", {"a": 3, "b": 1})
