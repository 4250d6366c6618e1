"""Auxiliary data at run time: file stores, cache pools and lazies."""

from bridge_data.task.stores.dataset_store import (
    JsonlFileStore,
    SystemFileStore,
    WebdatasetFileStore,
    open_aux,
    open_primary,
)
from bridge_data.task.stores.disk_pool import CacheFileLazy, FileCacheLazy, FileStoreCachePool
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
