import array
import struct
from pathlib import Path

import pytest

from bridge_data.errors import DatasetError
from bridge_data.shards.tar_samples import encode_offsets, read_offsets


def test_is_a_row_of_little_endian_u64(tmp_path: Path) -> None:
    data = encode_offsets(array.array("Q", [0, 1024, 2**40]))
    assert data == struct.pack("<QQQ", 0, 1024, 2**40)
    (tmp_path / "a.tar.idx").write_bytes(data)
    assert read_offsets(tmp_path / "a.tar", 2).tolist() == [0, 1024, 2**40]


def test_a_missing_file_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"a\.tar\.idx: no such file.*--tar-index-only"):
        read_offsets(tmp_path / "a.tar", 2)


@pytest.mark.parametrize("num_bytes", [0, 8, 23, 32])
def test_a_file_of_another_shard_is_an_error(tmp_path: Path, num_bytes: int) -> None:
    (tmp_path / "a.tar.idx").write_bytes(bytes(num_bytes))
    with pytest.raises(DatasetError, match=rf"has {num_bytes} bytes, but 2 samples.*take 24"):
        read_offsets(tmp_path / "a.tar", 2)
