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
    from bridge_data.task.stores.cache_pool import CacheFileLazy, FileCacheLazy, FileStoreCachePool
    from bridge_data.task.stores.dataset_store import (
        JsonlFileStore,
        SystemFileStore,
        WebdatasetFileStore,
        open_aux,
        open_primary,
    )

_NAMES_BY_MODULE = {
    "bridge_data.task.stores.cache_pool": "CacheFileLazy FileCacheLazy FileStoreCachePool",
    "bridge_data.task.stores.dataset_store": (
        "JsonlFileStore SystemFileStore WebdatasetFileStore open_aux open_primary"
    ),
}
"""The module of each name that is imported on first use."""

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
    __getattr__ = names_of(__name__, _NAMES_BY_MODULE)
