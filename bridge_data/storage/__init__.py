"""Bytes by location, local or in an object store: whole or not at all."""

from bridge_data.storage.prefetching import MAX_AHEAD_BYTES
from bridge_data.storage.range_file import RangeFile
from bridge_data.storage.reading import (
    AnyLocation,
    Location,
    Version,
    by_request,
    close_file,
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
    read_with_version,
    size_bytes,
    version,
    walk,
)
from bridge_data.storage.remote import list_sizes
from bridge_data.storage.remote_path import RemotePath
from bridge_data.storage.writes import delete_below, make_folder, write

__all__ = [
    "MAX_AHEAD_BYTES",
    "AnyLocation",
    "Location",
    "RangeFile",
    "RemotePath",
    "Version",
    "by_request",
    "close_file",
    "close_files",
    "delete_below",
    "is_file",
    "is_folder",
    "is_remote",
    "list_sizes",
    "local_copy",
    "location",
    "make_folder",
    "of_dataset_service",
    "on_disk",
    "prefetch",
    "read",
    "read_all",
    "read_if_there",
    "read_with_version",
    "size_bytes",
    "version",
    "walk",
    "write",
]
