"""Reading the samples of a prepared data set, by number or by key."""

from bridge_data.shards.prepared import PreparedDataset, ShardReader, ShardSet, open_shards
from bridge_data.shards.records import ByteRange, RawSample, RecordReader, Records
from bridge_data.shards.subset import Subset, SubsetRange

__all__ = [
    "ByteRange",
    "PreparedDataset",
    "RawSample",
    "RecordReader",
    "Records",
    "ShardReader",
    "ShardSet",
    "Subset",
    "SubsetRange",
    "open_shards",
]
