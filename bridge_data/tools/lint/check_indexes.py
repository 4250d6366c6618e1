"""Comparing the indexes of one shard with what stands in it."""

import array
import contextlib
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.shards.bridge_index import BridgeIndex, Part
from bridge_data.shards.key_index import KeyIndex
from bridge_data.shards.metadata import BRIDGE_INDEX, INDEX_SQLITE, META_FOLDER, tar_index_path
from bridge_data.shards.tar_samples import encode_offsets
from bridge_data.tools.lint.check_shards import StoredSample
from bridge_data.tools.lint.faults import Fault


class ShardContents:
    """What stands in a shard: keys, offsets and parts of its samples, in order, gathered on the way through it."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.offsets: array.array[int] = array.array("Q")
        self.parts: list[Part] = []

    def add(self, sample: StoredSample) -> None:
        """The next sample."""
        self.keys.append(sample.key)
        self.offsets.append(sample.offset)
        self.parts += [(name, *place) for name, place in sample.parts.items()]

    def finish(self, end: int) -> None:
        """The last sample ends here."""
        self.offsets.append(end)


def check_indexes(root: Path, name: str, number: int, contents: ShardContents) -> Iterator[Fault]:
    """What is wrong with the indexes of the shard `name`, the one with this number in the metadata."""

    def outdated(file: str, cause: str) -> Fault:
        return Fault("index-outdated", f"{file} {cause}", str(root), name)

    path = tar_index_path(root / name)
    if not path.is_file():
        yield Fault("index-missing", f"there is no {path.name}", str(root), name)
    elif storage.read_all(path) != encode_offsets(contents.offsets):
        yield outdated(path.name, "has other offsets than the samples")
    index = _bridge_index(root / META_FOLDER / BRIDGE_INDEX)
    if index is not None and name in index.entries:
        segment = index.segment(name)
        if segment.keys() != contents.keys:
            yield outdated(BRIDGE_INDEX, "has other keys than the shard")
        elif segment.offsets.tolist() != contents.offsets.tolist():
            yield outdated(BRIDGE_INDEX, "has other offsets than the samples")
        elif [place for _, *place in segment.rows()] != [[*part] for part in contents.parts]:
            yield outdated(BRIDGE_INDEX, "has other parts than the samples, or in other places")
    cause = _compared_by_key(root, number, contents)
    if cause is not None:
        yield outdated(INDEX_SQLITE, cause)


def _bridge_index(path: Path) -> BridgeIndex | None:
    """Our index, if there is one."""
    return _opened(path, path.stat().st_mtime_ns) if path.is_file() else None


@functools.lru_cache(maxsize=4)
def _opened(path: Path, mtime_ns: int) -> BridgeIndex | None:
    """Opened once for all shards, as it was then: its table names them all."""
    return BridgeIndex.open(path)


def _compared_by_key(root: Path, number: int, contents: ShardContents) -> str | None:
    """How the samples differ from those that Energon's index has for the shard."""
    index = KeyIndex.find(root)
    if index is None:
        return None
    spans = zip(contents.keys, contents.offsets, itertools.islice(contents.offsets, 1, None), strict=False)
    try:
        with contextlib.closing(index.spans(number)) as indexed:
            for row, span in itertools.zip_longest(indexed, spans):
                if row is None or span is None or row != span:
                    return f"has {row!r} where the shard has {span!r} (key, first byte, end)"
    except DatasetError as error:
        if "no such" in str(error.__cause__):  # made by an older Energon, or for media alone
            return None
        return f"cannot be read: {error.__cause__}"
    return None
