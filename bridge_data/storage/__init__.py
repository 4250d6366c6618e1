"""Bytes by location, local or in an object store: whole or not at all."""

from bridge_data.storage.copies import local_copy
from bridge_data.storage.local import close_files
from bridge_data.storage.location import (
    Location,
    RemotePath,
    by_request,
    is_file,
    is_folder,
    location,
    on_disk,
    prefetch,
    read,
    read_all,
    read_if_there,
    size_bytes,
)
from bridge_data.storage.object_stores import is_remote, of_dataset_service
from bridge_data.storage.prefetching import MAX_AHEAD_BYTES
from bridge_data.storage.remote import list_sizes

__all__ = [
    "MAX_AHEAD_BYTES",
    "Location",
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
