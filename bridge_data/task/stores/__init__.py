"""Auxiliary data at run time: file stores, what a cache pool is, and lazies. Names are imported on first use."""

from typing import TYPE_CHECKING

from bridge_data.later import names_of

if TYPE_CHECKING:
    from bridge_data.task.stores.dataset_store import JsonlFileStore as JsonlFileStore
    from bridge_data.task.stores.dataset_store import SystemFileStore as SystemFileStore
    from bridge_data.task.stores.dataset_store import WebdatasetFileStore as WebdatasetFileStore
    from bridge_data.task.stores.dataset_store import open_aux as open_aux
    from bridge_data.task.stores.dataset_store import open_primary as open_primary
    from bridge_data.task.stores.file_store import CachePool as CachePool
    from bridge_data.task.stores.file_store import DecodeFileStore as DecodeFileStore
    from bridge_data.task.stores.file_store import DirectLazy as DirectLazy
    from bridge_data.task.stores.file_store import FileStore as FileStore
    from bridge_data.task.stores.file_store import FileStoreDecoder as FileStoreDecoder
    from bridge_data.task.stores.file_store import Lazy as Lazy
    from bridge_data.task.stores.file_store import MockLazy as MockLazy
    from bridge_data.task.stores.file_store import NoCachePool as NoCachePool
    from bridge_data.task.stores.file_store import PrimaryFileStore as PrimaryFileStore


_find, __all__ = names_of(__name__)
if not TYPE_CHECKING:
    __getattr__ = _find
