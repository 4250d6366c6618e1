"""Tars: which members they have, and random access to their bytes, in memory, on disk or compressed (`.tgz`,
`.tar.gz`).

Reads the path of a tar, or some of its bytes and the offset of a header in them. Returns name, offset and size of each
member, and bytes by their offset in the tar: those that gzip would give. Raises `DatasetError` if the tar is damaged,
or continues behind its end mark; the members are those that `tarfile` finds, at the same offsets. Bytes of names that
are not UTF-8 become surrogates (PEP 383), as in `tarfile`.

Plain headers are read here, in 1 µs each, and so are GNU long names and pax headers that only rename, resize or date;
anything rarer (base-256 sizes, global headers, links) is left to `tarfile`. Compressed files are read by a plug-in, a
`CompressedTar`.

Source: POSIX.1-1988 ustar, POSIX.1-2001 pax and GNU tar header layouts, as documented with GNU tar and Python's
`tarfile`
"""

import functools
import itertools
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias
from zlib import adler32, crc32

from bridge_data import storage
from bridge_data.errors import HEAD_BYTES, DatasetError, why_pointer
from bridge_data.extensions import Feature
from bridge_data.storage import RangeFile

TAR_UNIT = 512
"""Bytes: headers are of this size, and contents are padded to it. (Tar itself calls it a block.)"""

FILE, FOLDER, HARD_LINK, SYMBOLIC_LINK = "file", "folder", "hard link", "symbolic link"
"""Kinds of members."""

LINKS = frozenset({HARD_LINK, SYMBOLIC_LINK, "part of a file on several volumes"})
"""Kinds with content stored elsewhere."""

_KINDS = {
    b"1": HARD_LINK,
    b"2": SYMBOLIC_LINK,
    b"3": "device",
    b"4": "device",
    b"5": FOLDER,
    b"6": "FIFO",
    b"D": FOLDER,
    b"M": "part of a file on several volumes",
    b"V": "volume label",
}

_ZEROS = bytes(TAR_UNIT)
_TAIL_BYTES = 1 << 16
_FIELDS = struct.Struct("=100s24x12s12x8s356s")
"""Name, size, checksum, and what follows."""

_HEAD_BYTES = 4096
_NOT_OF_A_COPY = (slice(0, 108), slice(124, 136), slice(156, 265), slice(329, TAR_UNIT))
"""A header without owner, time of change, checksum, and names of owners."""

_TIME_IN_GZIP = slice(4, 8)

_PAX_RECORD = re.compile(rb"(\d{1,20}) ([^=\n]+)=")
_EXTENDED = frozenset(b"xgXLK")
_MAX_EXTENDED = 17
_MAX_EXTENDED_BYTES = 1 << 20
_PAX_HARMLESS = frozenset({b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname", b"comment"})


class Member(NamedTuple):
    """A member of a tar. `offset` is where its first header begins (an extended one, if it has any). `kind` is `FILE`
    for all with their own content."""

    name: str
    offset: int
    content_offset: int
    num_bytes: int
    kind: str
    next_offset: int

    @property
    def is_file(self) -> bool:
        """Whether it has its own content."""
        return self.kind == FILE


Fields: TypeAlias = tuple[str, int, int, int, str, int]
"""The fields of a `Member`."""


class TarBytes(Protocol):
    """Random access to a tar, or to consecutive members of it."""

    def read(self, offset: int, num_bytes: int) -> bytes:
        """The bytes of this range, fewer at the end."""

    def window(self, offset: int) -> tuple[bytes, int]:
        """Bytes in memory, and where in them the header at `offset` begins; other headers may follow."""


class CompressedTar(TarBytes, Protocol):
    """The tar in a compressed file. Any thread may read it."""

    end: int
    """Its size, or an upper bound until it has been read."""
    held_bytes: int
    """About how much memory it takes."""

    def read_exactly(self, offset: int, num_bytes: int) -> bytes:
        """The bytes of this range of the tar.

        Raises:
            DatasetError: if it ends before that.
        """

    def warn_if_slow(self) -> None:
        """Warn, once for each folder, if it must be read from its beginning, as no points in it are known."""

    def index(self) -> None:
        """Read the whole file, check it, and find its points."""

    def export_index(self, path: Path) -> None:
        """Write the points to the file `path`."""


COMPRESSED = Feature[Callable[[str], CompressedTar]]("compressed_tars")
"""The tar in the compressed file at a path."""


def walk(tar: TarBytes, offset: int, end: int, *, file: str) -> Iterator[Member]:
    """The members whose headers begin at `offset` or later and before `end`, where the file or the range ends.

    `file` is named in errors. An end-of-archive block (zeros) ends the walk, if nothing but zeros follows; so does
    `end`, if a member ends there.

    Raises:
        DatasetError: naming the previous member, if the tar is damaged, truncated, or continues behind its end mark.
    """
    for run in walk_runs(tar, offset, end, file=file):
        yield from map(Member._make, run)


def walk_runs(tar: TarBytes, offset: int, end: int, *, file: str) -> Iterator[Sequence[Fields]]:
    """The members that `walk` returns, in lists of those whose headers are in memory together: faster if all are
    needed."""
    last = ""
    while offset < end:
        run: Sequence[Fields] = _plain_run(*tar.window(offset), offset, end)
        if not run:
            after = f"after member {last!r}" if last else "at the beginning"
            member = read_member(tar, offset, file=file, after=after)
            if member is None:
                _check_tail(tar, offset, end, file=file, after=after)
                return
            if member.next_offset > end:
                raise DatasetError(
                    f"{file}: member {member.name!r} takes bytes {member.offset} to {member.next_offset}, but there "
                    f"are none from {end} on. The tar is truncated or damaged: write or copy it again."
                )
            run = (member,)
        yield run
        last, offset = run[-1][0], run[-1][-1]


def _check_tail(tar: TarBytes, offset: int, end: int, *, file: str, after: str) -> None:
    """Ensure that only zeros follow the end-of-archive block at `offset`."""
    at = offset
    while at < end and (data := tar.read(at, min(_TAIL_BYTES, end - at))):
        rest = data.lstrip(b"\0")
        if not rest:
            at += len(data)
            continue
        at += (len(data) - len(rest)) // TAR_UNIT * TAR_UNIT  # data begin at a unit
        try:
            member = read_member(tar, at, file=file)
        except DatasetError:
            member = None
        what = "bytes that are no zeros follow" if member is None else f"member {member.name!r} follows"
        raise DatasetError(
            f"{file}: a block of zeros at byte {offset}, {after}, ends the tar, but {what} at byte {at}, and would be "
            "lost. Tars cannot be joined by `cat`, and a copy may have holes: copy the tar again, or unpack it with "
            "`tar -x --ignore-zeros` and write it again."
        )


def _plain_run(data: bytes, start: int, offset: int, end: int) -> list[Fields]:
    """The members with consecutive headers in `data`, from the one at `start`, which is `offset` in the tar; up to one
    that is not plain, is damaged, is not whole in `data`, or reaches beyond `end`.

    The bytes after the checksum are nearly always those of the header before; then they are not parsed again.
    """
    members: list[Fields] = []
    known, tail_sum, folder, last = b"", 0, b"", len(data) - TAR_UNIT
    while start <= last:
        name, size, checksum, tail = _FIELDS.unpack_from(data, start)
        if tail != known:
            found = _plain_tail(tail)
            if found is None:
                break
            known, (tail_sum, folder) = tail, found
        name = name.partition(b"\0")[0]
        try:
            num_bytes = int(size.rstrip(b"\0 "), 8)
            wanted = _checksum(checksum)
            text = (folder + name if folder else name).decode("utf-8", "surrogateescape")
        except ValueError:
            break
        if wanted != (adler32(data[start : start + 148]) & 0xFFFF) + tail_sum or num_bytes < 0:
            break
        content_offset = offset + TAR_UNIT
        next_offset = content_offset + (num_bytes + TAR_UNIT - 1) // TAR_UNIT * TAR_UNIT
        if next_offset > end or not name or name[-1] == 0x2F:
            break
        members.append((text, offset, content_offset, num_bytes, FILE, next_offset))
        start += next_offset - offset
        offset = next_offset
    return members


@functools.lru_cache(maxsize=256)
def _plain_tail(tail: bytes) -> tuple[int, bytes] | None:
    """For the bytes after the checksum in a header: their sum, plus 8 spaces for the checksum, minus the initial value
    of Adler-32; and the folder before the name. None if the header is not plain."""
    if tail[0] not in b"0\0" or tail[101:106] != b"ustar":
        return None
    folder = tail[189:344].partition(b"\0")[0]
    if folder and tail[106]:  # GNU tar stores other fields there
        return None
    return sum(tail) + 8 * 32 - 1, folder + b"/" if folder else b""


@functools.lru_cache(maxsize=4096)
def _checksum(field: bytes) -> int:
    return int(field.rstrip(b"\0 ") or b"0", 8)


def read_member(tar: TarBytes, offset: int, *, file: str, after: str = "where the index has one") -> Member | None:
    """The member whose first header is at `offset`; None at the end of the archive. `after` says in errors where that
    is."""
    header = tar.read(offset, TAR_UNIT)
    if header == _ZEROS:
        return None
    if len(header) == TAR_UNIT:
        member = _plain(header, offset)
        if member is None and header[156] in b"xL" and header_is_intact(header):
            member = _renamed(tar, header, offset)
        if member is not None:
            return member
    return _by_tarfile(tar, offset, file=file, after=after)


def header_is_intact(header: bytes) -> bool:
    """Whether the header's checksum is right: of unsigned bytes, or of signed ones as some old tars wrote it."""
    try:
        wanted = _checksum(header[148:156])
    except ValueError:
        return False
    if header.isascii():  # then the sum of all is small enough for `_sum`
        return wanted == _sum(header) - _sum(header[148:156]) + 8 * 32
    total = _sum(header[:148]) + 8 * 32 + _sum(header[156:334]) + _sum(header[334:])
    if wanted == total:
        return True
    return wanted == total - 256 * sum(byte > 127 for byte in header[:148] + header[156:])


def _sum(data: bytes) -> int:
    """The sum of up to 256 bytes, or of 515 of ASCII: the low half of their Adler-32, minus its initial 1; ten times as
    fast as `sum`."""
    return (adler32(data) & 0xFFFF) - 1


def _plain(header: bytes, offset: int) -> Member | None:
    """The member of a plain header, which needs no other header; None if it is not plain."""
    run = _plain_run(header, 0, offset, sys.maxsize)
    return Member._make(run[0]) if run else None


def _member(header: bytes, name: bytes, offset: int, content_offset: int, num_bytes: int = -1) -> Member | None:
    """The regular file that `header` describes, unless a part of it is unusual."""
    if not name or name[-1] == 0x2F:
        return None
    text = name.decode("utf-8", "surrogateescape")
    try:
        if num_bytes < 0:
            num_bytes = int(header[124:136].rstrip(b"\0 "), 8)
    except ValueError:  # base-256
        return None
    if num_bytes < 0 or not header_is_intact(header):
        return None
    return Member(text, offset, content_offset, num_bytes, FILE, content_offset + -(-num_bytes // TAR_UNIT) * TAR_UNIT)


def _renamed(tar: TarBytes, header: bytes, offset: int) -> Member | None:
    """The member after one pax header or GNU long name."""
    try:
        extra_bytes = int(header[124:136].rstrip(b"\0 "), 8)
    except ValueError:
        return None
    at = offset + TAR_UNIT + -(-extra_bytes // TAR_UNIT) * TAR_UNIT
    if extra_bytes > 1 << 20:
        return None
    extra, header = tar.read(offset + TAR_UNIT, extra_bytes), header[156:157] + tar.read(at, TAR_UNIT)
    kind, header = header[:1], header[1:]
    if len(extra) != extra_bytes or len(header) != TAR_UNIT or header[156] not in b"0\0":
        return None
    records = {b"path": extra.partition(b"\0")[0]} if kind == b"L" else _pax_records(extra)
    if records is None:
        return None
    name = records.get(b"path")
    if name is None:
        plain = _plain(header, at)
        name = plain.name.encode("utf-8", "surrogateescape") if plain is not None else b""
    size = records.get(b"size", b"-1")
    return _member(header, name, offset, at + TAR_UNIT, int(size)) if re.fullmatch(rb"-1|\d+", size) else None


def _pax_records(data: bytes) -> dict[bytes, bytes] | None:
    """The records of a pax header; None if one of them needs `tarfile`."""
    records = {}
    position = 0
    while position < len(data) and data[position]:
        match = _PAX_RECORD.match(data, position)
        if match is None:
            return None
        end = position + int(match[1])
        if end > len(data) or end <= match.end() or data[end - 1] != 0x0A:
            return None
        if match[2] not in _PAX_HARMLESS:
            if match[2] not in (b"path", b"size"):
                return None
            records[match[2]] = data[match.end() : end - 1]
        position = end
    return records


def _check_extended(tar: TarBytes, offset: int) -> None:
    """Check the number and the size of the extended headers (pax, GNU long names) from `offset` on: `tarfile` reads
    them whole, and calls itself for each.

    Raises:
        ValueError: if there are too many, or they are too large.
    """
    total = 0
    for _ in range(_MAX_EXTENDED):
        header = tar.read(offset, TAR_UNIT)
        if len(header) < TAR_UNIT or header[156] not in _EXTENDED:
            return
        first = header[124]  # 0x80 begins a number in base 256
        size = int.from_bytes(header[125:136]) if first == 0x80 else int(header[124:136].rstrip(b"\0 ") or b"0", 8)
        total += size
        if size < 0 or total > _MAX_EXTENDED_BYTES:
            raise ValueError(f"its extended headers have more than the {_MAX_EXTENDED_BYTES} bytes allowed")
        offset += TAR_UNIT + -(-size // TAR_UNIT) * TAR_UNIT
    raise ValueError(f"more than the {_MAX_EXTENDED - 1} extended headers allowed for a member")


def _by_tarfile(tar: TarBytes, offset: int, *, file: str, after: str) -> Member | None:
    import tarfile  # imported here: few tars need it

    view = RangeFile(tar.read, offset, sys.maxsize)
    try:
        _check_extended(tar, offset)
        with tarfile.TarFile(fileobj=view, mode="r", ignore_zeros=False, encoding="utf-8") as archive:
            info = archive.next()
            if info is None:
                if tar.read(offset, 6)[:6] in (b"\x1f\x8b\x08", b"BZh", b"\xfd7zXZ\0"):
                    raise tarfile.ReadError("it is compressed")
                return None
            if info.issparse():
                raise DatasetError(
                    f"{file}: member {info.name!r} is stored as a sparse file, which has no plain content to read; "
                    "write the tar without --sparse."
                )
            return Member(
                info.name,
                offset + info.offset,
                offset + info.offset_data,
                info.size if info.isreg() else 0,
                FILE if info.isreg() else _KINDS.get(info.type, f"member of type {info.type.decode('latin-1')!r}"),
                offset + archive.offset,
            )
    except (tarfile.TarError, ValueError) as error:
        if (complaint := why_pointer(tar.read(0, HEAD_BYTES))) is not None:
            raise DatasetError(f"{file}: {complaint}") from None
        raise DatasetError(
            f"{file}: no readable tar header at byte {offset}, {after}: {error}. The tar is damaged, truncated "
            "or compressed: write it again, uncompressed."
        ) from None


SMALL_STEP_BYTES = 1 << 16
"""Headers at most this far apart are read together with the bytes between them."""

_HEADERS_BYTES = 2048

_STORE_STEP_BYTES, _STORE_READ_BYTES, _STORE_HEADERS_BYTES = 1 << 20, 4 << 20, 1 << 16
"""The same in a store, where a request costs as much time as a MiB or more: nearby headers are read in long runs."""

GZIP_SUFFIXES = (".tgz", ".tar.gz")


class MemoryTar:
    """Bytes in memory that begin at `offset` of a tar."""

    def __init__(self, data: bytes, offset: int) -> None:
        self._data, self._offset = data, offset

    def read(self, offset: int, num_bytes: int) -> bytes:
        """The bytes of this range, fewer at the end."""
        start = offset - self._offset
        return self._data[start : start + num_bytes]

    def window(self, offset: int) -> tuple[bytes, int]:
        """All bytes, and the position of `offset` in them."""
        return self._data, offset - self._offset


class FileTar:
    """A tar of `num_bytes` bytes. Headers are read through a window: small if members are large, to skip contents, and
    large if they are small, so that one read has many headers. With `walks_store`, it is in a store, and many headers
    are needed."""

    def __init__(self, path: str, num_bytes: int, *, walks_store: bool = False) -> None:
        self._path, self.end = path, num_bytes
        self._window, self._base = b"", 0
        self._step_bytes, self._near_bytes, self._far_bytes = (
            (_STORE_STEP_BYTES, _STORE_READ_BYTES, _STORE_HEADERS_BYTES)
            if walks_store
            else (SMALL_STEP_BYTES, SMALL_STEP_BYTES, _HEADERS_BYTES)
        )

    def read(self, offset: int, num_bytes: int) -> bytes:
        """The bytes of this range, fewer at the end."""
        start = self._reach(offset, num_bytes)
        return self._window[start : start + num_bytes]

    def window(self, offset: int) -> tuple[bytes, int]:
        """The window with the header at `offset`, and where in it that begins."""
        start = self._reach(offset, TAR_UNIT)
        return self._window, start

    def _reach(self, offset: int, num_bytes: int) -> int:
        """Move the window to these bytes, as far as they exist; the offset in it where they begin."""
        start = offset - self._base
        if start < 0 or start + num_bytes > len(self._window):
            near = 0 <= start <= len(self._window) + self._step_bytes
            wanted = max(num_bytes, self._near_bytes if near else self._far_bytes)
            available = max(0, self.end - offset)
            self._window = storage.read(self._path, offset, min(wanted, available))
            self._base, start = offset, 0
        return start


def open_compressed(path: str) -> CompressedTar:
    """The tar in the compressed file `path`.

    Raises:
        ConfigError: if what reads it is not installed.
        DatasetError: if it is in a store, or is not compressed.
    """
    return COMPRESSED.get(needed_by=f"{path}: reading compressed shards")(path)


def open_tar(path: str) -> FileTar | CompressedTar:
    """The tar at `path`, or in the compressed file there, for walking all of it; its `end` is where to stop."""
    if is_gzip(path):
        return open_compressed(path)
    return FileTar(path, storage.size_bytes(path), walks_store=storage.is_remote(path))


def head_checksum(path: str, num_bytes: int) -> int:
    """The CRC-32 of the first bytes of a tar of `num_bytes`, compressed or not: of the names, sizes and contents of its
    first members, not of times and owners, which differ if the same samples are written again.

    Raises:
        DatasetError: if it is shorter.
    """
    storage.close_file(path)  # perhaps of an earlier file at this path
    head = storage.read(path, 0, min(_HEAD_BYTES, num_bytes))
    if is_gzip(path):
        head = head[: _TIME_IN_GZIP.start] + head[_TIME_IN_GZIP.stop :]
    total = start = 0
    while header_is_intact(header := head[start : start + TAR_UNIT]):
        octal = header[124:136].strip(b" \0")
        size = int(octal, 8) if octal and not octal.strip(b"01234567") else 0
        content = head[start + TAR_UNIT : start + TAR_UNIT + size]
        if header[156:157] != b"x":
            total = crc32(b"".join(header[field] for field in _NOT_OF_A_COPY), total)
        elif (records := _pax_records(content)) is not None:
            content = repr(sorted(records.items())).encode()
        total = crc32(content, total)
        start += TAR_UNIT + -(-size // TAR_UNIT) * TAR_UNIT
    return crc32(head[start:], total)


def is_gzip(shard: str | Path) -> bool:
    """Whether a shard is compressed, by its name."""
    return str(shard).endswith(GZIP_SUFFIXES)


def any_gzip(shards: Iterable[str]) -> bool:
    """Whether any of these shards is compressed."""
    return any(map(str.endswith, shards, itertools.repeat(GZIP_SUFFIXES)))


def seek_index_path(shard: str | Path) -> Path:
    """Where the points of `shard` are kept, from which it can be decompressed."""
    return Path(f"{shard}.gzidx")
