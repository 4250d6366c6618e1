from bridge_data.samples import SourceInfo
from bridge_data.shards import RawSample


def test_a_raw_sample_says_where_it_was_read() -> None:
    sample = RawSample("images/0001", "a.tar", 7, {"jpg": b"", "seg.png": b""}, "/data/a")
    assert sample.full_key == "a.tar/images/0001"
    assert sample.source_info() == SourceInfo(
        dataset_path="/data/a", index=7, shard_name="a.tar", file_names=("images/0001.jpg", "images/0001.seg.png")
    )
