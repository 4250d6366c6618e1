"""MDS shards as a source: every encoding as MosaicML's own writer (mosaicml-streaming 0.13.0) has it."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bridge_data.prepare.converters.mds_shards import MdsShards
from bridge_data.prepare.converters.source_records import BrokenRecord, SourceRecord
from tests.prepare.converters.originals import NUM, caption, captioned_mds, picture

THEIRS = Path(__file__).parent / "mds_written_by_mosaicml"


def pixels(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)))


def test_every_encoding_of_their_own_writer() -> None:
    source = MdsShards(THEIRS)
    records = list(source.read(range(3)))
    for number, record in enumerate(records):
        assert isinstance(record, SourceRecord)
        values = dict(record.values)
        expected = np.random.default_rng(number).integers(0, 255, (2, 3, 3), dtype=np.uint8)
        for name in ("img", "p"):
            assert (pixels(values.pop(name)) == expected).all()
        for name in ("l", "da"):
            images = values.pop(name)
            assert [pixels(image).shape for image in images] == [(2, 3, 3)] * 2
        assert values == {
            "a": (np.arange(6).reshape(2, 3) + number).tolist(),
            "d": (np.arange(4).reshape(2, 2) + number).tolist(),
            "f": number / 4,
            "h": float(number),
            "j": {"x": [number]},
            "n": number - 3,
            "sd": "1.50",
            "sf": 1.5,
            "si": 10**20,
            "t": f"text {number} ö",
            "u": number,
        }


def test_records_come_by_their_numbers_in_any_order(tmp_path: Path) -> None:
    source = MdsShards(captioned_mds(tmp_path))
    assert [(block.start, block.stop) for block in source.blocks()] == [(0, 10), (10, 20), (20, NUM)]
    for record in source.read([23, 0, 11]):
        assert isinstance(record, SourceRecord)
        assert record.values == {
            "caption": caption(record.number),
            "image": picture(record.number),
            "number": record.number - 5,
        }


def test_a_damaged_shard_breaks_its_records_and_no_others(tmp_path: Path) -> None:
    captioned_mds(tmp_path)
    path = tmp_path / "shard.00001.mds"
    path.write_bytes(path.read_bytes()[:-7])
    (tmp_path / "shard.00002.mds").unlink()
    read = list(MdsShards(tmp_path).read(range(NUM)))
    assert [isinstance(record, BrokenRecord) for record in read] == [False] * 10 + [True] * (NUM - 10)
    reasons = [record.reason for record in read if isinstance(record, BrokenRecord)]
    assert "shard.00001.mds: cannot be read as an MDS shard" in reasons[0] and "no such file" in reasons[-1]
    (tmp_path / "shard.00000.mds").write_bytes((captioned_mds(tmp_path / "b", 3) / "shard.00000.mds").read_bytes())
    (broken,) = MdsShards(tmp_path).read([0])
    assert isinstance(broken, BrokenRecord) and "has 3 samples; index.json says 10" in broken.reason
