"""Reading samples where they are stored, by number or by key, whatever form they are stored in.

    blocks          stored samples, and their `RecordReader`, which every kind of data has; neighbours that are read at
                    once, and held until each is taken
    records         `Records`, which every kind of data implements, and `Selection`, some of them
    subset          a range of samples
    prepared        prepared folders of tars: `PreparedDataset`; `metadata`, names and content of `.nv-meta`
    shard_set       the shards of a split part, and their samples, by our index: `index_file`, in a `paged_file`; of
                    tars themselves: `tar_files`, and Energon's `sample_offsets`
    jsonl_file      JSON lines
    withheld        samples that may not be read any more, and the files by which lists of them find them
    sample_keys     from a number to a key, and back, also by `key_index`, which is `index.sqlite`
    plain_data      JSON and YAML of others, parsed within limits; values with file and line, for errors

To add a kind of data, implement `Records` and a `plan.formats.Format`: see there.
"""

from bridge_data.data.blocks import ByteRange, RawSample, RecordReader
from bridge_data.data.prepared import PreparedDataset, open_shards
from bridge_data.data.records import Records
from bridge_data.data.shard_set import ShardReader, ShardSet
from bridge_data.data.subset import Subset, SubsetRange

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
