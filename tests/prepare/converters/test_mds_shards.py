"""MDS shards: every encoding as MosaicML's own writer (mosaicml-streaming 0.13.0) has it, and what is refused."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bridge_data.errors import ConfigError
from bridge_data.prepare.converters.mds_shards import MdsShards
from bridge_data.prepare.converters.source_records import BrokenRecord, SourceRecord
from tests.prepare.converters.originals import NUM, caption, captioned_mds, picture, write_mds

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


def changed(folder: Path, **entries: Any) -> Path:
    """The index of a data set with other entries for its second shard."""
    index = json.loads((captioned_mds(folder) / "index.json").read_text())
    index["shards"][1] |= entries
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"column_encodings": ["str", "pkl", "int"]}, "'image' holds pickles, which are never read"),
        ({"column_encodings": ["str", "opus", "int"]}, "has the encoding 'opus', which is not known"),
        ({"raw_data": {"basename": "../../x.mds", "bytes": 900}}, "which is not in its folder"),
        ({"format": "json"}, "has the format 'json'; expected mds"),
        ({"samples": 10**9}, "its sizes are impossible"),
        ({"column_sizes": [None, -1, 8]}, "its sizes are impossible"),
        ({"samples": None}, "is not valid MDS"),
    ],
)
def test_an_index_that_cannot_be_is_refused(entries: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        MdsShards(changed(tmp_path, **entries))


def test_a_damaged_shard_breaks_its_records_and_no_others(tmp_path: Path) -> None:
    captioned_mds(tmp_path)
    path = tmp_path / "shard.00001.mds"
    path.write_bytes(path.read_bytes()[:-7])
    (tmp_path / "shard.00002.mds").unlink()
    read = list(MdsShards(tmp_path).read(range(NUM)))
    assert [isinstance(record, BrokenRecord) for record in read] == [False] * 10 + [True] * (NUM - 10)
    reasons = [record.reason for record in read if isinstance(record, BrokenRecord)]
    assert "bytes; index.json says" in reasons[0] and "No such file" in reasons[-1]


def test_columns_that_go_beyond_a_sample_are_broken(tmp_path: Path) -> None:
    write_mds(tmp_path, [{"text": b"one"}, {"text": b"two"}], {"text": "str"})
    path = tmp_path / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    data[data.index(b"one") - 4] = 9  # its size
    path.write_bytes(data)
    first, second = MdsShards(tmp_path).read(range(2))
    assert isinstance(first, BrokenRecord) and "goes beyond its end" in first.reason
    assert isinstance(second, SourceRecord) and second.values == {"text": "two"}
