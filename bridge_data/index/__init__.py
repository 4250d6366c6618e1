"""Where every sample of a prepared data set lies, and how to read it by its number."""

from bridge_data.index.dataset import PreparedDataset, open_shards
from bridge_data.index.reader import RawSample, ShardReader
from bridge_data.index.shards import ShardSet

__all__ = ["PreparedDataset", "RawSample", "ShardReader", "ShardSet", "open_shards"]
