from pathlib import Path

import pytest

from bridge_data import storage
from bridge_data.shards.tar_bytes import SMALL_STEP_BYTES, FileTar, MemoryTar


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The (start, size) of every read of the storage."""
    done: list[tuple[int, int]] = []
    read = storage.read

    def watched(path: str, start: int, num_bytes: int) -> bytes:
        done.append((start, num_bytes))
        return read(path, start, num_bytes)

    monkeypatch.setattr("bridge_data.shards.tar_bytes.storage.read", watched)
    return done


def test_memory_and_file_give_the_same_bytes(tmp_path: Path) -> None:
    content = bytes(number % 251 for number in range(300_000))
    path = tmp_path / "file"
    path.write_bytes(content)
    tar = FileTar(str(path), len(content))
    memory = MemoryTar(content, 0)
    for start, num_bytes in [(0, 512), (512, 512), (200_000, 512), (200_100, 70_000), (100, 5), (299_900, 512)]:
        assert tar.read(start, num_bytes) == memory.read(start, num_bytes) == content[start : start + num_bytes]
    assert tar.read(400_000, 10) == b""


def test_near_headers_come_together_and_far_contents_are_passed_over(
    tmp_path: Path, reads: list[tuple[int, int]]
) -> None:
    num_bytes = 4_000_000
    path = tmp_path / "file"
    path.write_bytes(bytes(num_bytes))
    tar = FileTar(str(path), num_bytes)
    for start in range(0, 60_000, 1024):
        tar.read(start, 512)
    assert len(reads) <= 2
    reads.clear()
    for start in range(1_000_000, num_bytes, 500_000):
        tar.read(start, 512)
    assert sum(size for _, size in reads) < 20_000
    assert all(size <= SMALL_STEP_BYTES for _, size in reads)
