"""Bytes by location: whole or not at all."""

from bridge_data.storage.local import read, read_all, size_bytes

__all__ = ["read", "read_all", "size_bytes"]
