"""Reading the samples of a prepared data set, by number or by key."""

from bridge_data.shards.prepared import PreparedDataset, ShardSet, open_shards
from bridge_data.shards.reader import ShardReader
from bridge_data.shards.records import Place, RawSample, RecordReader, Records
from bridge_data.shards.subset import Subset, SubsetRange

__all__ = [
    "Place",
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
