"""The samples of a tar: where they begin, by its `.tar.idx`, and their keys and parts, by the headers of its members.

Enters: a shard, or the headers of its members in their order. Leaves: keys, offsets and parts. Guarantee: the parts of
a sample follow each other and have different names, and no key comes twice; else the error names file and key.

`<shard>.tar.idx` is Energon's format, byte for byte: one u64, little-endian, for each sample, the offset of its first
header, and one more for the end of the last sample.
"""

import array
import itertools
import sys
from collections.abc import Iterable

from bridge_data import storage
from bridge_data.errors import DatasetError
from bridge_data.shards.bridge_index import Part
from bridge_data.shards.metadata import is_meta_member, split_name, tar_index_path
from bridge_data.shards.tar_bytes import open_tar
from bridge_data.shards.tar_headers import Fields, walk
from bridge_data.storage import Location, location


class SampleCollector:
    """Groups members into samples. `left_out` counts files that are no part of a sample; `example` is one of them."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._key: str | None = None
        self._names: set[str] = set()
        self.keys: dict[str, int] = {}
        self.offsets = array.array("Q")
        self._starts = array.array("I")
        self.parts: list[Part] = []
        self.left_out, self.example = 0, ""

    @property
    def part_ends(self) -> "array.array[int]":
        """For each sample, the number of the part after its last."""
        return self._starts[1:] + array.array("I", (len(self.parts),)) if self._starts else self._starts

    def extend(self, members: Iterable[Fields]) -> None:
        """Add the next members."""
        keys, parts = self.keys, self.parts
        for name, offset, content_offset, num_bytes, is_file, _ in members:
            split = split_name(name) if is_file else None
            if split is None:
                if is_file and not is_meta_member(name):
                    self.left_out, self.example = self.left_out + 1, self.example or name
                continue
            key, part = split
            if key != self._key:
                if key in keys:
                    raise DatasetError(self._complaint(key, part, keys[key]))
                self._key, self._names = key, {part}
                keys[key] = len(keys)
                self.offsets.append(offset)
                self._starts.append(len(parts))
            elif part in self._names:
                raise DatasetError(
                    f"{self._file}: sample {key!r} has two members {key}.{part}: its parts cannot be told apart. "
                    "Write the shard again with each name once."
                )
            else:
                self._names.add(part)
            parts.append((part, content_offset, num_bytes))

    def _complaint(self, key: str, part: str, number: int) -> str:
        before = [name for name, _, _ in self.parts[self._starts[number] : self._starts[number + 1]]]
        if part in before:
            return (
                f"{self._file}: duplicate key {key!r}: sample number {number} has it, and another one later, with part "
                f"{part!r} again. Write the shard again with different keys."
            )
        return (
            f"{self._file}: the parts of sample {key!r} are not next to each other: {key}.{before[0]} comes first, "
            f"then other samples, then {key}.{part}. Write the shard again, sorted by name (tar --sort=name)."
        )


def first_samples(root: Location, name: str, limit: int) -> dict[str, list[Part]]:
    """Keys and parts of the first samples of shard `name`, at most `limit` of them; the rest is not read.

    Raises:
        DatasetError: if their headers cannot be read.
    """
    file = str(root / name)
    samples = SampleCollector(file)
    tar = open_tar(file)
    for member in walk(tar, 0, tar.end, file=file):
        split = split_name(member.name) if member.is_file else None
        if split is not None and len(samples.keys) == limit and split[0] not in samples.keys:
            break
        samples.extend((member,))
    bounds = itertools.pairwise([0, *samples.part_ends])
    return {key: samples.parts[start:end] for key, (start, end) in zip(samples.keys, bounds, strict=True)}


def encode_offsets(offsets: "array.array[int]") -> bytes:
    """The content of the file for these offsets (type code `Q`)."""
    return _little_endian(offsets).tobytes()


def read_offsets(shard: str | Location, count: int) -> "array.array[int]":
    """The `count` + 1 offsets of the shard at the path `shard`.

    Raises:
        DatasetError: if the file is missing, or is not that of a shard of `count` samples.
    """
    path = tar_index_path(location(shard))
    data = storage.read_if_there(path)
    if data is None:
        raise DatasetError(
            f"{path}: no such file, so the samples of the shard cannot be found; "
            "run `bridge-data prepare --tar-index-only` on the data set"
        )
    offsets = array.array("Q")
    if len(data) != 8 * (count + 1):
        raise DatasetError(
            f"{path}: has {len(data)} bytes, but {count} samples, as .nv-meta says, take {8 * (count + 1)}. Shard and "
            "metadata are not of one preparation: run `bridge-data prepare` again."
        )
    offsets.frombytes(data)
    return _little_endian(offsets)


def _little_endian(offsets: "array.array[int]") -> "array.array[int]":
    if sys.byteorder == "big":
        offsets = offsets[:]
        offsets.byteswap()
    return offsets
