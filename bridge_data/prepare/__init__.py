"""Preparing data sets: samples are written, shards scanned, indexed and split.

tars                a folder of tars becomes a data set: scanned, split (`splits`), indexed (`sqlite_index`)
tar_scan            which samples a tar holds, and whether it is damaged
index_writing       our index: the samples of each shard
scan_results        what is known about each shard; `shard_work`, work over shards that can be resumed
executors           who does the work: this process, forked ones, or the executor of a plug-in
shard_writer        samples from Python become shards, encoded by `part_encoding`; `parallel_writing`, by a function
record_source       records of other forms of data, which plug-ins read
jsonl_lines         JSON lines
sample_columns      what is known of samples without reading them: `where:` chooses by it
sample_definitions  the content of a `dataset.yaml`
commit              files that appear together, and one preparation at a time
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.prepare.executors import Executor as Executor
    from bridge_data.prepare.executors import LocalProcesses as LocalProcesses
    from bridge_data.prepare.parallel_writing import write as write
    from bridge_data.prepare.shard_writer import ShardWriter as ShardWriter

_find, __all__ = names_of(__name__)
if not TYPE_CHECKING:
    __getattr__ = _find
