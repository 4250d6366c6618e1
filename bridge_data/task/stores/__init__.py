"""Auxiliary data at run time: file stores, cache pools and lazies."""

from typing import TYPE_CHECKING

from bridge_data.later import names_of
from bridge_data.task.stores.file_store import (
    CachePool,
    DecodeFileStore,
    DirectLazy,
    FileStore,
    FileStoreDecoder,
    Lazy,
    MockLazy,
    NoCachePool,
    PrimaryFileStore,
    add_source,
)

if TYPE_CHECKING:
    from bridge_data.task.stores.cache_pool import CacheFileLazy as CacheFileLazy
    from bridge_data.task.stores.cache_pool import FileCacheLazy as FileCacheLazy
    from bridge_data.task.stores.cache_pool import FileStoreCachePool as FileStoreCachePool
    from bridge_data.task.stores.dataset_store import JsonlFileStore as JsonlFileStore
    from bridge_data.task.stores.dataset_store import SystemFileStore as SystemFileStore
    from bridge_data.task.stores.dataset_store import WebdatasetFileStore as WebdatasetFileStore
    from bridge_data.task.stores.dataset_store import open_aux as open_aux
    from bridge_data.task.stores.dataset_store import open_primary as open_primary


__all__ = [
    "CacheFileLazy",
    "CachePool",
    "DecodeFileStore",
    "DirectLazy",
    "FileCacheLazy",
    "FileStore",
    "FileStoreCachePool",
    "FileStoreDecoder",
    "JsonlFileStore",
    "Lazy",
    "MockLazy",
    "NoCachePool",
    "PrimaryFileStore",
    "SystemFileStore",
    "WebdatasetFileStore",
    "add_source",
    "open_aux",
    "open_primary",
]

if not TYPE_CHECKING:
    __getattr__, _ = names_of(__name__)
