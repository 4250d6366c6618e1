"""Reading samples where they are stored, by number or by key, whatever form they are stored in.

    records             `Records` and `RecordReader`, which every kind of data implements, and `Selection`, some of them
    sample_keys         from a number to a key, and back
    sample_columns      what is known of samples without reading them
    withheld            samples that may not be read any more, and the files by which lists of them find them
    prepared            prepared folders of tars: `PreparedDataset`, the `ShardSet` of a split part, its reader
    shard_columns       their columns, with those of `stored_columns`
    shard_table         the samples of one tar, on a disk, compressed or in a store, by an index or by its headers
    tar_files, tar_scan members and bytes of tars; which samples a tar holds, and whether it is damaged
    index_file          `index.bridge`, in the container of `paged_file`
    jsonl_file          JSON lines
    recently_used       tables and open files that are kept, up to a number of bytes
    subset              a range of samples
    blocks              neighbours that are read at once, and held until each is taken
    sample_lookup       a sample by the key that a user typed; `key_index` is `index.sqlite`, for files by name,
                        opened as a `read_only_database`
    metadata            names and content of `.nv-meta`; `plain_data` parses JSON and YAML of others within limits
    media_kinds         which files are media; `named_media`, how rows name them; `media_metadata`, sizes and durations

To add a kind of data, implement `Records` and a `plan.formats.Format`: see there.
"""

from bridge_data.data import shard_columns  # noqa: F401  which registers the columns of tars
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
