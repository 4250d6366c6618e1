"""Preparing data sets: samples are written, shards scanned, indexed and split, joins indexed, media measured, fields
of JSON parts stored as columns."""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.prepare.column_writing import ColumnsPreparation, prepare_columns
    from bridge_data.prepare.executors import Executor, LocalProcesses, RayTasks
    from bridge_data.prepare.media import MediaPreparation, prepare_media
    from bridge_data.prepare.media_rule import MediaRule
    from bridge_data.prepare.parallel_writing import write
    from bridge_data.prepare.shard_writer import ShardWriter

_NAMES_BY_MODULE = {
    "bridge_data.prepare.column_writing": "ColumnsPreparation prepare_columns",
    "bridge_data.prepare.executors": "Executor LocalProcesses RayTasks",
    "bridge_data.prepare.media": "MediaPreparation prepare_media",
    "bridge_data.prepare.media_rule": "MediaRule",
    "bridge_data.prepare.parallel_writing": "write",
    "bridge_data.prepare.shard_writer": "ShardWriter",
}
"""The module of each public name: the same as the imports above, which only type checkers read."""

__all__ = [
    "ColumnsPreparation",
    "Executor",
    "LocalProcesses",
    "MediaPreparation",
    "MediaRule",
    "RayTasks",
    "ShardWriter",
    "prepare_columns",
    "prepare_media",
    "write",
]

if not TYPE_CHECKING:
    __getattr__ = names_of(__name__, _NAMES_BY_MODULE)
