import io
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.errors import DatasetError
from bridge_data.shards.paged_file import (
    HEADER_BYTES,
    DamagedIndexError,
    PagedFile,
    PageWriter,
    begin_index,
    finish_index,
)

MAGIC = b"TESTTEST"


def write(path: Path, data: bytes = b"some data") -> list[int]:
    """An index file of these data, in pages of 4 bytes; their checksums."""
    with open(path, "wb") as file:
        begin_index(file)
        pages = PageWriter(file, 4)
        pages.write(memoryview(data))
        finish_index(file, MAGIC, {"pages": pages.finish()})
    opened = PagedFile.open(path, MAGIC)
    assert opened is not None
    found: list[int] = opened[1]["pages"]
    return found


def test_pages_are_read_back(tmp_path: Path) -> None:
    checksums = write(tmp_path / "i")
    opened = PagedFile.open(tmp_path / "i", MAGIC)
    assert opened is not None
    read = [opened[0].read(HEADER_BYTES + 4 * n, size, checksums[n]) for n, size in enumerate((4, 4, 1))]
    assert read == [b"some", b" dat", b"a"]


@given(st.lists(st.binary(max_size=20), max_size=6), st.integers(1, 9))
def test_checksums_are_those_of_the_pages(pieces: list[bytes], page_bytes: int) -> None:
    file = io.BytesIO()
    pages = PageWriter(file, page_bytes)
    for piece in pieces:
        pages.write(memoryview(piece))
    data = b"".join(pieces)
    assert file.getvalue() == data
    assert pages.finish() == [zlib.crc32(data[at : at + page_bytes]) for at in range(0, len(data), page_bytes)]


def test_what_cannot_be_used_is_told_and_taken_for_absent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "i"
    assert PagedFile.open(path, MAGIC) is None
    assert caplog.messages == []
    write(path)
    data = path.read_bytes()
    older = data[:12] + struct.pack("=I", 1) + data[16:]
    for content, why in (
        (older, "is of version 1, not 2, and is not used"),
        (data[:-1], "is damaged, and is not used"),
        (data + b"x", "is damaged, and is not used"),
        (data[:20], "is damaged, and is not used"),
        (b"", "is damaged, and is not used"),
        (bytes(HEADER_BYTES) + data[HEADER_BYTES:], "is damaged, and is not used"),  # it was not finished
        (data.replace(b"pages", b"sages"), "is damaged, and is not used"),
    ):
        path.write_bytes(content)
        caplog.clear()
        assert PagedFile.open(path, MAGIC) is None
        (message,) = caplog.messages
        assert message.startswith(f"{path}: {why}") and "run `bridge-data prepare`" in message


def test_a_table_of_another_kind_is_damage(tmp_path: Path) -> None:
    with open(tmp_path / "i", "wb") as file:
        begin_index(file)
        finish_index(file, MAGIC, [1, 2])  # type: ignore[arg-type]
    assert PagedFile.open(tmp_path / "i", MAGIC) is None


def test_a_range_that_was_changed_cut_off_or_replaced_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "i"
    checksums = write(path)
    opened = PagedFile.open(path, MAGIC)
    assert opened is not None
    file, data = opened[0], path.read_bytes()
    path.write_bytes(data.replace(b"some", b"same"))
    with pytest.raises(DamagedIndexError, match=rf"{path}: is damaged: bytes 40 to 44 are not as written"):
        file.read(HEADER_BYTES, 4, checksums[0])
    for content in (data[:42], b""):
        path.write_bytes(content)
        with pytest.raises(DatasetError, match=r"is damaged|was replaced or removed while it was in use"):
            file.read(HEADER_BYTES, 4, checksums[0])
    write(path, b"other data")
    with pytest.raises(DatasetError, match="was replaced or removed while it was in use"):
        file.read(HEADER_BYTES, 4, checksums[0])
