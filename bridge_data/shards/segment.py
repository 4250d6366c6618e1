"""A segment: where every part of every sample of one shard lies, as arrays that are used in place.

Enters: the members of a shard (when it is prepared) or a piece of a memory map (when it is read). Leaves: key and
parts of sample number i, by arithmetic, in about a microsecond.

Layout, in native byte order (the file around it says which): four counts (u64), then sample offsets (u64, one more
than samples: the row is that of `.tar.idx`), part offsets and sizes (u64), then per sample the end of its parts and of
its key (u32), per part its name (u32), then the part names as a JSON list, then the keys, one after the other.
"""

import array
import json
import operator
import struct
from collections.abc import Iterator, Sequence
from itertools import chain, count, pairwise, repeat

_COUNTS = struct.Struct("=QQQQ")

Part = tuple[str, int, int]
"""Name, offset of the content in the shard, its size."""


def build_segment(
    keys: Sequence[str], offsets: Sequence[int], part_ends: Sequence[int], parts: Sequence[Part]
) -> bytes:
    """The segment of samples `keys`; sample i lies at `offsets[i]` to `offsets[i + 1]`, and has the parts from
    `part_ends[i - 1]` to `part_ends[i]`."""
    numbers: dict[str, int] = {}
    name_of_part = array.array("I", (numbers.setdefault(name, len(numbers)) for name, _, _ in parts))
    encoded = [key.encode() for key in keys]
    key_ends, end = array.array("I"), 0
    for key in encoded:
        end += len(key)
        key_ends.append(end)
    names = json.dumps(list(numbers), ensure_ascii=False).encode()
    body = b"".join(
        (
            _COUNTS.pack(len(keys), len(parts), len(names), end),
            array.array("Q", offsets).tobytes(),
            array.array("Q", (offset for _, offset, _ in parts)).tobytes(),
            array.array("Q", (num_bytes for _, _, num_bytes in parts)).tobytes(),
            array.array("I", part_ends).tobytes(),
            key_ends.tobytes(),
            name_of_part.tobytes(),
            names,
            *encoded,
        )
    )
    return body + bytes(-len(body) % 8)


class Segment:
    """A segment over bytes that stay where they are."""

    __slots__ = (
        "_key_ends",
        "_keys",
        "_name_of_part",
        "_part_ends",
        "_part_offsets",
        "_part_sizes",
        "names",
        "offsets",
    )

    def __init__(self, data: memoryview | bytes) -> None:
        view = memoryview(data)
        num_samples, num_parts, names_bytes, keys_bytes = _COUNTS.unpack_from(view)
        at = _COUNTS.size

        def take(num_bytes: int) -> memoryview:
            nonlocal at
            at += num_bytes
            return view[at - num_bytes : at]

        self.offsets = take(8 * (num_samples + 1)).cast("Q")
        self._part_offsets = take(8 * num_parts).cast("Q")
        self._part_sizes = take(8 * num_parts).cast("Q")
        self._part_ends = take(4 * num_samples).cast("I")
        self._key_ends = take(4 * num_samples).cast("I")
        self._name_of_part = take(4 * num_parts).cast("I")
        self.names: list[str] = json.loads(bytes(take(names_bytes)))
        self._keys = take(keys_bytes)

    def __len__(self) -> int:
        return len(self._part_ends)

    def key(self, number: int) -> str:
        """The key of sample `number`."""
        start = self._key_ends[number - 1] if number else 0
        return str(self._keys[start : self._key_ends[number]], "utf-8")

    def keys(self) -> list[str]:
        """All keys."""
        return self._keys_of(0, len(self) - 1) if len(self) else []

    def sample(self, number: int) -> tuple[str, list[Part]]:
        """Key and parts of sample `number`."""
        if not number:
            return self.key(0), self.parts(0)
        key = str(self._keys[self._key_ends[number - 1] : self._key_ends[number]], "utf-8")
        start, end = self._part_ends[number - 1], self._part_ends[number]
        if end - start == 1:
            return key, [(self.names[self._name_of_part[start]], self._part_offsets[start], self._part_sizes[start])]
        return key, self.parts(number)

    def columns(self, first: int, last: int) -> tuple[list[str], list[int], list[int]] | None:
        """Keys, offsets and sizes of the one part of samples `first` to `last`; None if not all have one part."""
        start, stop = self._part_ends[first - 1] if first else 0, self._part_ends[last]
        if len(self.names) > 1 or stop - start != last + 1 - first:
            return None
        return (
            self._keys_of(first, last),
            self._part_offsets[start:stop].tolist(),
            self._part_sizes[start:stop].tolist(),
        )

    def _keys_of(self, first: int, last: int) -> list[str]:
        ends = [self._key_ends[first - 1] if first else 0, *self._key_ends[first : last + 1].tolist()]
        start = ends[0]
        text = str(self._keys[start : ends[-1]], "utf-8")
        if len(text) < ends[-1] - start:  # bytes are not characters
            return [self.key(number) for number in range(first, last + 1)]
        return [text[begin - start : end - start] for begin, end in pairwise(ends)]

    def parts(self, number: int) -> list[Part]:
        """The parts of sample `number`, as they lie in the shard."""
        start, end = self._part_ends[number - 1] if number else 0, self._part_ends[number]
        names, name_of = self.names, self._name_of_part
        offsets, sizes = self._part_offsets, self._part_sizes
        return [(names[name_of[i]], offsets[i], sizes[i]) for i in range(start, end)]

    def rows(self) -> Iterator[tuple[int, str, int, int]]:
        """All parts: the number of the sample, name, offset and size of each."""
        ends = self._part_ends.tolist()
        numbers = chain.from_iterable(map(repeat, count(), map(operator.sub, ends, chain((0,), ends))))
        names = map(self.names.__getitem__, self._name_of_part)
        return zip(numbers, names, self._part_offsets, self._part_sizes, strict=True)
