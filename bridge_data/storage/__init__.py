"""Bytes by location, local or in an object store: whole or not at all.

locations      naming, reading and writing what is at a path or URL; `PinnedFile` holds a file to one version
remote         objects whole, in ranges, listed, written, and copied to this machine
prefetching    ranges of objects that will be read
object_stores  URLs, requests, time limits, retries and errors of all stores
clients        the client of each store; `hf_store`, that of the Hugging Face hub
atomic         files that appear whole, and locks
"""

from typing import TYPE_CHECKING

from bridge_data.later import names_of
from bridge_data.plugins.stores.prefetching import MAX_AHEAD_BYTES, REQUEST_BYTES
from bridge_data.storage.locations import (
    COPY_IT,
    OF_THE_MACHINE,
    AnyLocation,
    Location,
    PinnedFile,
    RangeFile,
    RemotePath,
    Version,
    by_request,
    close_file,
    close_files,
    delete,
    delete_below,
    is_file,
    is_folder,
    is_remote,
    local_copy,
    location,
    make_folder,
    of_dataset_service,
    on_disk,
    output,
    output_on_disk,
    prefetch,
    read,
    read_all,
    read_if_there,
    release,
    size_bytes,
    version,
    versions,
    walk,
    with_variables,
    without_scheme,
    write,
)

if TYPE_CHECKING:
    from bridge_data.storage.remote import list_sizes as list_sizes

__all__ = [
    "COPY_IT",
    "MAX_AHEAD_BYTES",
    "OF_THE_MACHINE",
    "REQUEST_BYTES",
    "AnyLocation",
    "Location",
    "PinnedFile",
    "RangeFile",
    "RemotePath",
    "Version",
    "by_request",
    "close_file",
    "close_files",
    "delete",
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
    "output",
    "output_on_disk",
    "prefetch",
    "read",
    "read_all",
    "read_if_there",
    "release",
    "size_bytes",
    "version",
    "versions",
    "walk",
    "with_variables",
    "without_scheme",
    "write",
]

if not TYPE_CHECKING:
    __getattr__, _ = names_of(__name__)
