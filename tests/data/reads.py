"""Recording what is read of shards and JSONL files."""

import pytest

from bridge_data import storage
from bridge_data.storage import content

Reads = list[tuple[str, int, int]]
"""Path or URL, offset and number of bytes of each read."""


def record_reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """What is read from now on, each call of the storage; not of `index.bridge` and `.jsonl.idx`."""
    seen: Reads = []
    read_with_version = content.read_with_version

    def recorded(path: object, start: int, num_bytes: int) -> tuple[bytes, storage.Version]:
        if not str(path).endswith(("index.bridge", ".jsonl.idx")):
            seen.append((str(path), start, num_bytes))
        return read_with_version(str(path), start, num_bytes)

    monkeypatch.setattr(content, "read_with_version", recorded)
    return seen
