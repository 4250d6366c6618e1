import pickle
from pathlib import Path

import pytest

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.shards.index_file import BridgeIndex, BridgeIndexWriter, build_segment


def write(path: Path, uuid: str = "u", keys: tuple[str, ...] = ("a", "b")) -> None:
    with open(path, "wb") as file:
        writer = BridgeIndexWriter(file)
        for number, key in enumerate(keys):
            segment = build_segment([key], [0, 1024], [1], [("txt", 512, number)])
            writer.add(f"{key}.tar", 10240, 7, segment)
        writer.finish(uuid)


def opened(path: Path) -> BridgeIndex:
    index = BridgeIndex.open(path)
    assert index is not None
    return index


def test_segments_are_found_by_shard(tmp_path: Path) -> None:
    write(tmp_path / "i")
    index = opened(tmp_path / "i")
    assert list(index.entries) == ["a.tar", "b.tar"]
    assert index.segment("b.tar").parts(0) == [("txt", 512, 1)]
    assert (index.entries["a.tar"].num_bytes, index.entries["a.tar"].mtime_ns, index.entries["a.tar"].count) == (
        10240,
        7,
        1,
    )


def test_entries_are_those_of_the_table(tmp_path: Path) -> None:
    write(tmp_path / "i")
    index = pickle.loads(pickle.dumps(opened(tmp_path / "i")))
    assert "a.tar" in index.entries
    assert "c.tar" not in index.entries
    assert index.entries.get("c.tar") is None
    assert [entry.name for entry in index.entries.values()] == ["a.tar", "b.tar"]
    assert index.sizes_bytes(["b.tar", "b.tar"]) == [10240, 10240]
    assert index.segment("a.tar").key(0) == "a"


def test_belongs_to_one_preparation(tmp_path: Path) -> None:
    write(tmp_path / "i")
    index = opened(tmp_path / "i")
    assert index.describes({"a.tar": 1, "b.tar": 1}, "u")
    assert index.describes({"a.tar": 1, "b.tar": 1}, None)
    assert not index.describes({"a.tar": 1, "b.tar": 1}, "v")
    assert not index.describes({"a.tar": 1, "b.tar": 2}, "u")
    assert not index.describes({"a.tar": 1}, "u")


def test_a_replacement_under_a_running_job_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "i"
    write(path)
    early, late = opened(path), opened(path)
    assert early.segment("a.tar").key(0) == "a"
    write(tmp_path / "new", uuid="v", keys=("c", "b", "a"))
    (tmp_path / "new").replace(path)
    assert early.segment("b.tar").key(0) == "b"  # the file as it was is still open
    storage.close_files()
    with pytest.raises(DatasetError, match="prepared again"):
        late.segment("a.tar")
    path.unlink()
    storage.close_files()
    with pytest.raises(DatasetError, match="replaced or removed"):
        pickle.loads(pickle.dumps(early)).segment("a.tar")
