"""A file that holds samples behind a table of their offsets, as MosaicML streaming and litData write them.

Reads a file of, in little-endian order: the number of samples (u32); the offset of each, and of the end (u32); perhaps
a header; the samples. A sample holds the size (u32) of each field without a fixed size, then the fields. A derived
class says what the fields are. Opening reads the end of the offsets; a block of samples is one read, and of large
samples only the wanted fields are read. A file that was compressed as a whole is unpacked for each block, and the
process keeps the one it unpacked last.

Raises `DatasetError`, naming the file, the sample and its first byte, if sizes and offsets do not fit each other, and
if the file was replaced since it was opened. Nothing is unpickled.
"""

import abc
import functools
import gzip
import importlib
import io
import itertools
import operator
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from bridge_data import storage
from bridge_data.data.sample_offsets import DIGESTED_BYTES
from bridge_data.errors import BridgeDataError, ConfigError, DatasetError
from bridge_data.later import Image, numpy
from bridge_data.limits import DEFAULT_LIMITS
from bridge_data.plan.folder_contents import INDEX
from bridge_data.plugins.tables.table_columns import MAX_READ_BYTES, MAX_UNIT_BYTES, Column, TableFile, pyarrow_for

_HEAD = struct.Struct("<II")

_CODECS = {"bz2": "bz2", "zstd": "zstd", "br": "brotli"}
"""pyarrow's names of the ways to compress files, by the endings of these."""


def is_file_name(name: str, ending: str) -> bool:
    """Whether `name` can be that of a file with this ending in a folder, or below it."""
    folders = os.path.normpath(name).split("/")
    try:
        is_short = max(len(os.fsencode(folder)) for folder in folders) < 256
    except UnicodeEncodeError:
        return False
    return is_short and name.endswith(ending) and not os.path.isabs(name) and ".." not in folders


class BinaryField(NamedTuple):
    """A field of each sample: its name, its size if that is fixed, what makes its value of its bytes, and the name of
    the Arrow type of the value; None if it has none."""

    name: str
    num_bytes: int | None
    decode: Callable[[bytes], Any]
    type: str | None = None


class BinaryShard(TableFile):
    """The shard at `path`, in `version` (None: the current one), compressed by `packing` ("" for not); unpacked, it may
    have `max_unpacked_bytes`."""

    group_name: ClassVar[str] = "shard"
    is_bare = False
    """Whether a sample is its only field, whose size is not stored."""

    def __init__(
        self,
        path: str,
        version: storage.Version | None = None,
        packing: str = "",
        max_unpacked_bytes: int = MAX_UNIT_BYTES,
    ) -> None:
        self._packing = packing
        self._first = self._end = 0
        self._last: tuple[tuple[int, int], tuple[Callable[[int, int], bytes], list[list[int]]]] | None = None
        """The samples that were read last, and what `_samples` says of them."""
        super().__init__(path, version)
        with self.as_dataset_error(f"cannot be read as {self.kind}"):
            count, self._first = _HEAD.unpack(self._read(0, _HEAD.size))
            self._offsets_end = 4 + 4 * (count + 1)
            if not self._offsets_end <= self._first <= (max_unpacked_bytes if packing else self.version.num_bytes):
                raise ValueError(f"it has {count} samples, of which the first is at byte {self._first}")
            start = max(4, self._offsets_end - DIGESTED_BYTES)
            self._head = self._read(start, self._first - start)
            header = self._offsets_end - start
            (self._end,) = struct.unpack_from("<I", self._head, header - 4)
            if packing and self._end > max_unpacked_bytes:
                raise ConfigError(
                    f"{self.path}: has {self._end} bytes when unpacked, more than the {max_unpacked_bytes} allowed: "
                    "unpack it beside this file"
                )
            self.check_end(self._end)
            self.fields = self.found_fields(self._head[header:])
        self.counts, self.reads_rows = [count], not packing
        self._num_sizes = sum(field.num_bytes is None for field in self.fields)
        self._places = {field.name: place for place, field in enumerate(self.fields)}
        self.without_types = frozenset(field.name for field in self.fields if field.type is None)

    @abc.abstractmethod
    def found_fields(self, header: bytes) -> Sequence[BinaryField]:
        """The fields of the samples; `header` is what is between the offsets and the first sample.

        Raises:
            ConfigError: for fields that are not read.
            ValueError: if they are not as they should be.
        """

    def check_end(self, end: int) -> None:
        """Check the offset after the last sample."""
        if not self._packing and end != self.version.num_bytes:
            raise ValueError(f"its samples end at byte {end}, and it has {self.version.num_bytes} bytes")

    @functools.cached_property
    def schema(self) -> Any:
        pyarrow = pyarrow_for(self.path)
        types = [(field.name, pyarrow.type_for_alias(field.type or "null")) for field in self.fields]
        return pyarrow.schema(types)

    def identity(self) -> bytes:
        """The number of samples, the end of their offsets, and the header."""
        return struct.pack("<I", self.counts[0]) + self._head

    def column_bytes(self, group: int, column: Column) -> int:
        """An estimate: all samples are as the first, and columns of a compressed file have the same size."""
        if self._packing:
            return (self._end - self._first) // len(self.fields)
        (_, cuts), place = self._samples(0, 1), self._places[column.name]
        return (self._end - self._first) * (cuts[place + 1][0] - cuts[place][0]) // max(1, cuts[-1][0] - cuts[0][0])

    def unit_bytes(self, group: int, column: Column) -> int:
        """The mean size of a sample, or that of the unpacked file."""
        return self._end if self._packing else (self._end - self._first) // max(1, self.counts[0])

    def values(self, column: Column, group: int, first: int, end: int) -> list[Any]:
        if column.name not in self._places:
            raise DatasetError(f"{self.path}: there is no column {column.name!r}")
        place = self._places[column.name]
        decode = self.fields[place].decode
        read, cuts = self._samples(first, end)
        found: list[Any] = []
        for start, stop in zip(cuts[place], cuts[place + 1], strict=True):
            try:
                found.append(decode(read(start, stop - start)))
            except BridgeDataError:
                raise
            except Exception as error:  # damaged bytes may raise any
                raise DatasetError(
                    f"{self.path}: sample {first + len(found)}, column {column.name!r}, at byte {start}: cannot be "
                    f"decoded: {type(error).__name__}: {error}"
                ) from error
        return found

    def _samples(self, first: int, end: int) -> tuple[Callable[[int, int], bytes], list[list[int]]]:
        """What reads bytes of these samples; and where each field begins in them, and where they end. If they have few
        bytes, they are read once for all columns."""
        if self._last is not None and self._last[0] == (first, end):
            return self._last[1]
        if not 0 <= first <= end <= self.counts[0]:
            raise IndexError(f"{self.path}: samples {first} to {end - 1} of {self.counts[0]}")
        num_offsets = end - first + 1
        offsets = struct.unpack(f"<{num_offsets}I", self._read(4 + 4 * first, 4 * num_offsets))
        bounds = [self._first, *offsets, self._end]
        if bounds != sorted(bounds):
            at = next(at for at, (one, other) in enumerate(itertools.pairwise(bounds)) if one > other)
            number = first + max(at - 1, 0)
            raise DatasetError(
                f"{self.path}: sample {number}: the offsets from byte {4 + 4 * number} on do not ascend from "
                f"{bounds[at]}, but {bounds[at + 1]} follows: the file is damaged"
            )
        read, base, num_bytes = self._read, offsets[0], offsets[-1] - offsets[0]
        if not self._packing and num_bytes <= MAX_READ_BYTES:
            data = self._read(base, num_bytes)

            def read(start: int, num_bytes: int) -> bytes:
                return data[start - base : start - base + num_bytes]

        self._last = (first, end), (read, self._cuts(first, offsets, read))
        return self._last[1]

    def _cuts(self, first: int, offsets: Sequence[int], read: Callable[[int, int], bytes]) -> list[list[int]]:
        """The cuts of the samples from number `first` on, see `_samples`."""
        starts, ends = list(offsets[:-1]), list(offsets[1:])
        if self.is_bare:
            return [starts, ends]
        sizes_bytes = 4 * self._num_sizes
        cuts = [[start + sizes_bytes for start in starts]]
        wrong = [at for at, (start, end) in enumerate(zip(cuts[0], ends, strict=True)) if start > end]
        if not wrong:
            data = b"".join([read(start, sizes_bytes) for start in starts])
            sizes, sized = struct.unpack(f"<{len(data) // 4}I", data), 0
            for field in self.fields:
                if field.num_bytes is None:
                    cuts.append([*map(operator.add, cuts[-1], sizes[sized :: self._num_sizes])])
                    sized += 1
                else:
                    cuts.append([cut + field.num_bytes for cut in cuts[-1]])
            if cuts[-1] != ends:
                wrong = [at for at, end in enumerate(ends) if cuts[-1][at] != end]
        for at in wrong[:1]:
            raise DatasetError(
                f"{self.path}: sample {first + at}, at byte {starts[at]}: has {ends[at] - starts[at]} bytes, but its "
                f"columns and their sizes take {cuts[-1][at] - starts[at]}: the file is damaged"
            )
        return cuts

    def _read(self, start: int, num_bytes: int) -> bytes:
        if not self._packing:
            return self.read_bytes(start, num_bytes)
        if not self._end:
            data = _unpacked(self.file, self._packing, start + num_bytes)
        else:
            self.file.check(self.found_version())
            data = _unpacked_whole(self.path, self.version, self._packing, self._end)
        if len(data) < start + num_bytes:
            raise DatasetError(f"{self.path}: ends at byte {len(data)} when unpacked: it is damaged, or cut off")
        return data[start : start + num_bytes]


@functools.lru_cache(maxsize=1)
def _unpacked_whole(path: str, version: storage.Version, packing: str, num_bytes: int) -> bytes:
    """All `num_bytes` bytes of the unpacked file, which the process keeps."""
    data = _unpacked(storage.PinnedFile(path, version), packing, num_bytes + 1)
    if len(data) > num_bytes:
        raise DatasetError(f"{path}: has more than {num_bytes} bytes when unpacked, where its samples end")
    return data


def _unpacked(packed: storage.PinnedFile, packing: str, num_bytes: int) -> bytes:
    """The first `num_bytes` bytes of the unpacked file, or all if it has fewer."""
    path, size = packed.path, storage.size_bytes(packed.path)
    file: Any = io.BufferedReader(storage.RangeFile(packed.read, 0, size), MAX_READ_BYTES)
    try:
        if packing == "gz":  # pyarrow takes no zeros after the end
            return gzip.GzipFile(fileobj=file).read(num_bytes)
        name = _CODECS.get(packing)
        if name is None:
            raise ConfigError(f"{path}: {packing} is none of gz, {', '.join(_CODECS)}: unpack the file beside it")
        pyarrow_for(path)
        data: bytes = importlib.import_module("pyarrow").CompressedInputStream(file, name).read(num_bytes)
        return data
    except BridgeDataError:
        raise
    except Exception as error:  # each of them raises its own
        raise DatasetError(f"{path}: cannot be unpacked: {error}") from error


def check_count(shard: TableFile, name: str, counts: Mapping[str, int]) -> None:
    """Check the number of samples of a shard; `counts` are those that the index beside it says, by names of shards.

    Raises:
        DatasetError: if it is another.
    """
    (count,), known = shard.counts, counts.get(name)
    if known not in (None, count):
        raise DatasetError(
            f"{shard.path}: has {count} samples, but {INDEX} says {known}: one of the two was replaced, or not copied; "
            "restore it"
        )


def number_of(kind: str, data: bytes) -> Any:
    """The number of this type of NumPy."""
    (value,) = numpy.frombuffer(data, numpy.dtype(kind).newbyteorder("<"))
    return value.item()


def png_of_pixels(data: bytes) -> bytes:
    """The PNG of an image that is stored as width, height and length of its mode (u32), mode and pixels."""
    width, height, mode_bytes = struct.unpack_from("<3I", data)
    mode = data[12 : 12 + mode_bytes].decode()
    if width * height > DEFAULT_LIMITS.max_image_pixels:
        raise ValueError(f"has {width} x {height} pixels, more than are allowed (Limits(max_image_pixels))")
    stream = io.BytesIO()
    Image.frombytes(mode, (width, height), data[12 + mode_bytes :]).save(stream, "PNG")
    return stream.getvalue()


def list_of(decode: Callable[[bytes], Any], start: int, data: bytes) -> list[Any]:
    """Values of bytes, whose count and sizes (u32) are at byte `start`."""
    (count,) = struct.unpack_from("<I", data, start)
    sizes = struct.unpack_from(f"<{min(count, len(data))}I", data, start + 4)
    ends = list(itertools.accumulate(sizes, initial=start + 4 + 4 * count))
    if ends[-1] != len(data):
        raise ValueError(f"a list has {len(data)} bytes; expected {ends[-1]}")
    return [decode(data[begin:end]) for begin, end in itertools.pairwise(ends)]
