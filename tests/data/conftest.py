from pathlib import Path

import pytest

from tests.data.tars import prepare_by_ratio, write_shards


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four shards of five samples each: two for training, one for validation, one for tests."""
    write_shards(tmp_path, num_shards=4, samples_per_shard=5)
    prepare_by_ratio(tmp_path, "2,1,1")
    return tmp_path
