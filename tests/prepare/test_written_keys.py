"""The keys that a writer has stored: what is in memory and what is in the file are found alike."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.errors import DatasetError
from bridge_data.prepare import shard_writer
from bridge_data.prepare.shard_writer import WrittenKeys
from tests.memory import growth_bytes

KEYS = st.sets(st.text("ab\u00e4\udcff\udcfe0/ ", max_size=3), max_size=40)


@given(keys=KEYS, others=KEYS, recent=st.integers(1, 50))
def test_a_key_is_there_with_its_shard_if_it_was_added(
    keys: set[str], others: set[str], recent: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_writer, "MAX_RECENT", recent)
        written = WrittenKeys(folder)
        for number, key in enumerate(keys):
            assert key not in written
            written.add(key, number % 3)
            assert key in written
        assert [written.shard(key) for key in keys] == [number % 3 for number in range(len(keys))]
        assert {key for key in others if key in written} == keys & others
        written.close()
        with pytest.raises(DatasetError, match="gone: cannot be written to"):
            gone = WrittenKeys(folder / "gone")
            for number in range(recent):
                gone.add(str(number), 0)


@pytest.mark.processes
def test_memory_does_not_depend_on_the_number_of_keys(tmp_path: Path) -> None:
    def add() -> None:
        written = WrittenKeys(tmp_path)
        for number in range(600_000):
            key = f"{number * 7_919 % 600_000:016d}"
            assert key not in written
            written.add(key, number // 10_000)
        assert written.shard(f"{7_919:016d}") == 0

    assert growth_bytes(add) < 40 << 20
