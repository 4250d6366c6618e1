"""Where every sample of a prepared data set lies, and how to read it by its number."""

from bridge_data.index.dataset import PreparedDataset, open_shards
from bridge_data.index.reader import ShardReader
from bridge_data.index.records import Place, RawSample, RecordReader, Records
from bridge_data.index.shards import ShardSet
from bridge_data.index.subset import Subset, SubsetRange

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
