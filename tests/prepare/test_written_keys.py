"""The keys that a writer has stored: what is in memory and what is in the file are found alike."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.errors import DatasetError
from bridge_data.prepare import shard_writer
from bridge_data.prepare.shard_writer import ItemOrigin, WrittenKeys
from tests.memory import growth_bytes


@given(keys=st.sets(st.text(max_size=3), max_size=40), others=st.sets(st.text(max_size=3)), recent=st.integers(1, 50))
def test_a_key_is_there_with_its_shard_if_it_was_added(
    keys: set[str], others: set[str], recent: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    keys, others = ({key for key in some if key.isprintable()} for some in (keys, others))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_writer, "MAX_RECENT", recent)
        written = WrittenKeys(tmp_path_factory.mktemp("keys"))
        for number, key in enumerate(keys):
            assert key not in written
            written.add(key, number % 3)
            assert key in written
        assert [written.shard(key) for key in keys] == [number % 3 for number in range(len(keys))]
        assert {key for key in others if key in written} == keys & others
        written.close()


def test_names_that_are_not_utf8_are_keys_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_writer, "MAX_RECENT", 2)
    written = WrittenKeys(tmp_path)
    for shard, key in enumerate(("a", "b\udcff", "b\udcfe")):
        written.add(key, shard)
    written.note_items([("b\udcff", ItemOrigin(7, 1))])
    assert [written.shard(key) for key in ("a", "b\udcff", "b\udcfe", "b\udcfd")] == [0, 1, 2, None]
    assert (written.item("b\udcff"), written.item("a")) == (ItemOrigin(7, 1), None)


def test_an_item_is_finished_when_all_its_samples_are_noted(tmp_path: Path) -> None:
    written = WrittenKeys(tmp_path)
    assert len(written.finished_items()) == 0
    written.note_items([("a", ItemOrigin(0, 1)), ("b", ItemOrigin(900, 2)), ("c", ItemOrigin(3, 2))])
    written.note_items([("d", ItemOrigin(900, 2))])
    finished = written.finished_items()
    assert len(finished) == 2
    assert [number for number in range(1000) if number in finished] == [0, 900]


def test_a_file_that_cannot_be_written_is_an_error_that_names_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_writer, "MAX_RECENT", 1)
    written = WrittenKeys(tmp_path / "gone")
    with pytest.raises(DatasetError, match="gone: cannot be written to"):
        written.add("a", 0)


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
