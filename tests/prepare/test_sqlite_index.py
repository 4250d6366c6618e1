import sqlite3
from pathlib import Path

import pytest

from bridge_data.prepare.sqlite_index import SeenFile, SqliteIndexWriter
from bridge_data.shards.index_file import Segment, build_segment
from tests.memory import growth_bytes


def segment(*keys: str) -> Segment:
    parts = [("txt", 512 + 1024 * number, 3) for number in range(len(keys))]
    return Segment.of(build_segment(keys, [1024 * n for n in range(len(keys) + 1)], range(1, len(keys) + 1), parts))


def write(path: Path, *segments: Segment) -> None:
    """Write a database of shards with these segments."""
    writer = SqliteIndexWriter(path)
    for number, one in enumerate(segments):
        writer.add(number, SeenFile(f"{number}.tar", 1, 1), one)
    assert writer.finish(sum(map(len, segments))) is None


def test_has_a_row_for_every_sample_and_part(tmp_path: Path) -> None:
    write(tmp_path / "i", segment("a", "b"), segment("c"))
    db = sqlite3.connect(tmp_path / "i")
    assert db.execute("SELECT * FROM samples").fetchall() == [
        (0, "a", 0, 0, 1024),
        (0, "b", 1, 1024, 1024),
        (1, "c", 0, 0, 1024),
    ]
    assert db.execute("SELECT * FROM sample_parts").fetchall() == [
        (0, 0, "txt", 512, 3),
        (0, 1, "txt", 1536, 3),
        (1, 0, "txt", 512, 3),
    ]


def test_every_row_of_a_large_shard_is_there(tmp_path: Path) -> None:
    keys = [f"{number:04d}" for number in range(4567)]
    write(tmp_path / "i", segment(*keys))
    db = sqlite3.connect(tmp_path / "i")
    assert [key for (key,) in db.execute("SELECT sample_key FROM samples ORDER BY rowid")] == keys
    assert db.execute("SELECT COUNT(*), MAX(sample_index) FROM sample_parts").fetchone() == (4567, 4566)


@pytest.mark.processes
def test_the_memory_of_writing_does_not_depend_on_the_number_of_samples(tmp_path: Path) -> None:
    shards = [segment(*(f"{shard:03d}{number:013d}" for number in range(2000))) for shard in range(160)]
    assert growth_bytes(lambda: write(tmp_path / "i", *shards)) < 16 << 20
    assert (tmp_path / "i").stat().st_size > 32 << 20
