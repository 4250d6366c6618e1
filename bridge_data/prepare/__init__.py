"""Preparing data sets: samples are written, shards scanned, indexed and split, joins indexed, media measured, fields
of JSON parts stored as columns."""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.prepare.column_writing import ColumnsPreparation as ColumnsPreparation
    from bridge_data.prepare.column_writing import prepare_columns as prepare_columns
    from bridge_data.prepare.executors import Executor as Executor
    from bridge_data.prepare.executors import LocalProcesses as LocalProcesses
    from bridge_data.prepare.executors import RayTasks as RayTasks
    from bridge_data.prepare.media import MediaPreparation as MediaPreparation
    from bridge_data.prepare.media import MediaRule as MediaRule
    from bridge_data.prepare.media import prepare_media as prepare_media
    from bridge_data.prepare.parallel_writing import write as write
    from bridge_data.prepare.shard_writer import ShardWriter as ShardWriter

_find, __all__ = names_of(__name__)
if not TYPE_CHECKING:
    __getattr__ = _find
