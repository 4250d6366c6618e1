"""Bytes by location: whole or not at all."""

from bridge_data.storage.local import close_files, read, read_all, size_bytes

__all__ = ["close_files", "read", "read_all", "size_bytes"]
