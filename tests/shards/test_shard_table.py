import array
import struct
from pathlib import Path

import pytest

from bridge_data.errors import DatasetError
from bridge_data.shards.shard_table import encode_offsets, first_samples, read_offsets
from tests.shards.tars import write_tar


def test_offsets_are_a_row_of_little_endian_u64_and_those_of_another_shard_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"a\.tar\.idx: no such file.*--tar-index-only"):
        read_offsets(tmp_path / "a.tar", 2)
    data = encode_offsets(array.array("Q", [0, 1024, 2**40]))
    assert data == struct.pack("<QQQ", 0, 1024, 2**40)
    (tmp_path / "a.tar.idx").write_bytes(data)
    assert read_offsets(tmp_path / "a.tar", 2).tolist() == [0, 1024, 2**40]
    for num_bytes in (0, 8, 23, 32):
        (tmp_path / "a.tar.idx").write_bytes(bytes(num_bytes))
        with pytest.raises(DatasetError, match=rf"has {num_bytes} bytes, but 2 samples.*take 24"):
            read_offsets(tmp_path / "a.tar", 2)


def test_first_samples_look_no_further(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.png": b"p", "1.txt": b"t", "2.png": b"q", "3.png": b"r", "4.png": b"s"})
    (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:4300])
    assert first_samples(tmp_path, "a.tar", 2) == {"1": [("png", 512, 1), ("txt", 1536, 1)], "2": [("png", 2560, 1)]}
