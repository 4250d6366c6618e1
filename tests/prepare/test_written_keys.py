"""The keys that a writer has stored: most of them are in a file, where they are found as those in memory are."""

from pathlib import Path

import pytest

from bridge_data.errors import DatasetError
from bridge_data.prepare import shard_writer
from bridge_data.prepare.shard_writer import WrittenKeys
from tests.memory import growth_bytes


@pytest.mark.processes
def test_memory_does_not_depend_on_the_number_of_keys(tmp_path: Path) -> None:
    def add() -> None:
        written = WrittenKeys(tmp_path)
        for number in range(400_000):
            key = f"{number * 7_919 % 400_000:016d}"
            assert key not in written
            written.add(key, number // 10_000)
        assert written.shard(f"{7_919:016d}") == 0

    assert growth_bytes(add) < 40 << 20


def test_names_that_are_not_utf8_are_keys_too_and_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_writer, "MAX_RECENT", 2)
    written, keys = WrittenKeys(tmp_path), ["a", "b\udcff", "b\udcfe"]
    for shard, key in enumerate(keys):
        written.add(key, shard)
    assert [written.shard(key) for key in (*keys, "b\udcfd")] == [0, 1, 2, None]
    gone = WrittenKeys(tmp_path / "gone")
    gone.add("a", 0)
    with pytest.raises(DatasetError, match="gone: cannot be written to"):
        gone.add("b", 0)
