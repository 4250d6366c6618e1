"""Bytes by location, local or in an object store: whole or not at all."""

from bridge_data.storage.prefetching import MAX_AHEAD_BYTES
from bridge_data.storage.reading import (
    AnyLocation,
    Location,
    RangeFile,
    by_request,
    close_files,
    is_file,
    is_folder,
    is_remote,
    local_copy,
    location,
    of_dataset_service,
    on_disk,
    prefetch,
    read,
    read_all,
    read_if_there,
    size_bytes,
)
from bridge_data.storage.remote import RemotePath, list_sizes

__all__ = [
    "MAX_AHEAD_BYTES",
    "AnyLocation",
    "Location",
    "RangeFile",
    "RemotePath",
    "by_request",
    "close_files",
    "is_file",
    "is_folder",
    "is_remote",
    "list_sizes",
    "local_copy",
    "location",
    "of_dataset_service",
    "on_disk",
    "prefetch",
    "read",
    "read_all",
    "read_if_there",
    "size_bytes",
]
