"""Reading samples where they are stored, by number or by key, whatever form they are stored in.

    records             `Records` and `RecordReader`, which every kind of data implements, and `Selection`, some of them
    prepared            prepared folders of tars: `PreparedDataset`, the `ShardSet` of a split part, its reader
    shard_table         the samples of one tar, on a disk, compressed or in a store, by an index or by its headers
    tar_files, tar_scan members and bytes of tars; which samples a tar holds, and whether it is damaged
    index_file          `index.bridge`, in the container of `paged_file`, as are joins and choices
    cached_index        tars without an index of ours: one is made when they are first opened on a machine
    jsonl_file          JSON lines
    table_records       rows of tables; `table_columns` is what a format of tables implements: `parquet_table` with
                        `parquet_pages`, `arrow_table`, `lance_table`; and `mds_table` and `litdata_table`, by
                        `binary_shard`
    recently_used       tables and open files that are kept, up to a number of bytes
    joins               indexes of joins, those of Energon in `energon_joins`; `joined_records` reads joins
    subset, where       a range of samples, or those that a predicate chooses
    blocks              neighbours that are read at once, and held until each is taken
    costs               what an encoder makes of each sample, in tokens and other numbers, as `measure` stored it
    tombstones          the lists of forgotten samples
    sample_lookup       a sample by the key that a user typed; `key_index` is `index.sqlite`, for files by name
    metadata            names and content of `.nv-meta`; `plain_data` parses JSON and YAML of others within limits
    media_kinds         which files are media; `named_media`, how rows name them; `media_metadata`, sizes and durations

To add a kind of data, implement `Records` in a module, or `TableFile` for rows, and name it in `plan.formats`.
"""

from bridge_data.data.prepared import PreparedDataset, ShardReader, ShardSet, open_shards
from bridge_data.data.records import ByteRange, RawSample, RecordReader, Records
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
