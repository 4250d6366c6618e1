"""MDS shards as a source: every encoding as MosaicML's own writer (mosaicml-streaming 0.13.0) has it."""

from pathlib import Path

import numpy as np

from bridge_data.prepare.converters.mds_shards import MdsShards
from bridge_data.prepare.converters.source_records import BrokenRecord, SourceRecord
from tests.prepare.converters.originals import NUM, caption, captioned_mds, picture
from tests.tables import opened

THEIRS = Path(__file__).parent / "mds_written_by_mosaicml"


def test_records_are_the_samples_as_they_are_read_in_place_with_arrays_as_lists() -> None:
    reader = opened(THEIRS).records.reader()
    for number, record in enumerate(MdsShards(THEIRS).read(range(3))):
        assert isinstance(record, SourceRecord)
        parts = {name.partition(".")[0]: value for name, value in reader.read(number).parts.items()}
        arrays = [name for name, value in parts.items() if isinstance(value, np.ndarray)]
        assert arrays == ["a", "d"]
        assert dict(record.values) == parts | {name: parts[name].tolist() for name in arrays}


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
    assert isinstance(broken, BrokenRecord) and "has 3 samples, but index.json says 10" in broken.reason
