"""Auxiliary data at run time: file stores, cache pools and lazies."""

from bridge_data.cache.dataset import JsonlFileStore, WebdatasetFileStore
from bridge_data.cache.disk_pool import CacheFileLazy, FileCacheLazy, FileStoreCachePool
from bridge_data.cache.file_store import (
    DecodeFileStore,
    FileStore,
    FileStoreDecoder,
    PrimaryFileStore,
    add_source,
)
from bridge_data.cache.folder import SystemFileStore
from bridge_data.cache.opening import open_aux, open_primary
from bridge_data.cache.pool import CachePool, DirectLazy, Lazy, MockLazy, NoCachePool

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
