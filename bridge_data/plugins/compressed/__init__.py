"""Compressed shards (`.tgz`, `.tar.gz`), read at any offset, with `indexed_gzip`."""
