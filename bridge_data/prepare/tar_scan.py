"""Scanning shards: which samples a tar holds, and whether it is damaged.

Reads a tar: headers, and no contents. Returns its segment for our index, by which an accepted shard can be read. Raises
`DatasetError`, which names file and key, if the parts of a sample are not consecutive, or have the same name, or a key
comes twice. No member with the name of a part is silently left out: links are errors, and members without data are
counted.
"""

import array
import collections
import dataclasses
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from bridge_data import storage
from bridge_data.data.index_file import Part, is_meta_member, split_name
from bridge_data.data.tar_files import (
    FILE,
    FOLDER,
    LINKS,
    CompressedTar,
    Fields,
    FileTar,
    head_checksum,
    is_gzip,
    open_tar,
    walk_runs,
)
from bridge_data.errors import DatasetError
from bridge_data.prepare.index_writing import build_segment
from bridge_data.storage import Location

MAX_ZERO_BYTES = 1 << 20
"""Zeros at the end of a tar up to this are not noted: tars are padded to records of some size."""

_MAX_FAULTS = 10
"""Shards that a message names."""

LEFT_OUT, SPECIAL, NOT_UTF8, NO_SAMPLES, ZEROS = (
    "nameless-member",
    "special-member",
    "name-not-utf8",
    "empty-shard",
    "zero-tail",
)
LINK = "linked-member"
"""What is odd about a shard, by the codes of `bridge-data check`."""

_NOTES = {
    LEFT_OUT: "left out, as they have no part name (0001.jpg): {count} members, such as {example}",
    SPECIAL: "left out, as they hold no data: {count} members, such as {example}",
    NOT_UTF8: "names that are not UTF-8: {count} members, such as {example}; their keys have surrogates (PEP 383)",
    NO_SAMPLES: "without samples: {count} shards, such as {example}",
    ZEROS: f"more than {MAX_ZERO_BYTES:,} zeros at the end, as when a copy was cut off: {{count}} shards, such as "
    "{example}",
}

_REFUSED = {
    "duplicate-part": ": its parts cannot be told apart. Write the shard again with each name once.",
    "duplicate-key": ". Write the shard again with different keys.",
    "scattered-sample": ". Write the shard again, sorted by name (tar --sort=name).",
}


class ScanNotes:
    """Remarks on shards, counted by kind, with an example of each; `plain` is the content of another one."""

    def __init__(self, plain: Mapping[str, tuple[int, str]] | None = None) -> None:
        self._counts = collections.Counter({kind: count for kind, (count, _) in (plain or {}).items()})
        self._examples = {kind: example for kind, (_, example) in (plain or {}).items()}

    def plain(self) -> dict[str, tuple[int, str]]:
        """(count, example) of each kind."""
        return {kind: (count, self._examples[kind]) for kind, count in self._counts.items()}

    def add(self, kind: str, example: str) -> None:
        """Count a remark of a kind, such as `LEFT_OUT`."""
        self._counts[kind] += 1
        self._examples.setdefault(kind, example)

    def merge(self, other: "ScanNotes") -> None:
        """Add the counts of another one."""
        self._counts.update(other._counts)
        self._examples = other._examples | self._examples

    def example(self, kind: str) -> str | None:
        """The example of a kind; None if there is no such remark."""
        return self._examples.get(kind)

    def messages(self) -> list[str]:
        """A line for each kind."""
        return [
            text.format(count=f"{self._counts[kind]:,}", example=self._examples[kind])
            for kind, text in _NOTES.items()
            if kind in self._counts
        ]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShardScan:
    """The contents of shard `name`, and remarks on it. `tar` is what was read, `offsets` are for its `.tar.idx`, `head`
    is its `head_checksum`."""

    name: str
    num_bytes: int
    mtime_ns: int
    segment: bytes
    head: int
    offsets: "array.array[int]"
    tar: FileTar | CompressedTar
    notes: ScanNotes = dataclasses.field(default_factory=ScanNotes)


class TarSamples:
    """The samples of a shard: their keys, offsets and parts, in order, grouped from its members. `report` is called
    with what is odd: its code, the cause, key and part; it may raise an error."""

    def __init__(self, report: Callable[[str, str, str, str], object]) -> None:
        self._report = report
        self._first: dict[str, int] = {}
        """The number of the first sample with a key."""
        self._names: set[str] = set()
        self.keys: list[str] = []
        self.offsets = array.array("Q")
        self._starts = array.array("I")
        self.parts: list[Part] = []
        self.num_members = 0

    @property
    def part_ends(self) -> "array.array[int]":
        """For each sample, the number of the part after its last."""
        return self._starts[1:] + array.array("I", (len(self.parts),)) if self._starts else self._starts

    def parts_of(self, number: int) -> list[Part]:
        """The parts of a sample."""
        end = self._starts[number + 1] if number + 1 < len(self._starts) else len(self.parts)
        return self.parts[self._starts[number] : end]

    def extend(self, members: Iterable[Fields]) -> None:
        """Add the next members."""
        keys, parts, last = self.keys, self.parts, self.keys[-1] if self.keys else None
        for name, offset, content_offset, num_bytes, kind, _ in members:
            self.num_members += 1
            split = split_name(name)
            if split is None or kind != FILE:
                self._leave_out(name, kind, offset, is_part=split is not None)
                continue
            key, part = split
            if not name.isascii() and has_surrogates(name):
                self._report(NOT_UTF8, f"{name!r} at byte {offset}", key, "")
            if key != last:
                if self._first.setdefault(key, len(keys)) < len(keys):
                    self._report(*self._repeated(key, part), key, "")
                last, self._names = key, {part}
                keys.append(key)
                self.offsets.append(offset)
                self._starts.append(len(parts))
            elif part in self._names:
                self._report("duplicate-part", f"sample {key!r} has two members {key}.{part}", key, part)
            else:
                self._names.add(part)
            parts.append((part, content_offset, num_bytes))

    def _leave_out(self, name: str, kind: str, offset: int, *, is_part: bool) -> None:
        """Report a member that is not a part of a sample."""
        if is_part and kind in LINKS:
            self._report(LINK, f"member {name!r} at byte {offset} is a {kind}", "", "")
        elif is_part and kind != FOLDER:
            self._report(SPECIAL, f"{name!r}, a {kind}, at byte {offset}", "", "")
        elif kind == FILE and not is_meta_member(name):
            self._report(LEFT_OUT, f"{name!r}", "", "")

    def _repeated(self, key: str, part: str) -> tuple[str, str]:
        """The code and the cause of a key that comes again, with this part."""
        number = self._first[key]
        before = [name for name, _, _ in self.parts_of(number)]
        if part in before:
            again = f"sample number {number} has it, and another one later, with part {part!r} again"
            return "duplicate-key", f"duplicate key {key!r}: {again}"
        order = f"{key}.{before[0]} comes first, then other samples, then {key}.{part}"
        return "scattered-sample", f"the parts of sample {key!r} are not next to each other: {order}"


def scan_tar(root: Location, name: str, *, digest: bool = False) -> ShardScan:
    """Scan shard `name` of the data set at `root`; with `digest`, read every part, too.

    Raises:
        DatasetError: if it cannot be read, is damaged, or its members do not make samples.
    """
    path = root / name
    file = str(path)
    version = storage.version(path)
    notes, links = ScanNotes(), []

    def report(code: str, cause: str, key: str, part: str) -> None:
        if code in _REFUSED:
            raise DatasetError(f"{file}: {cause}{_REFUSED[code]}")
        if code == LINK:
            links.append(cause)
        else:
            notes.add(code, f"{cause} of {name}")

    samples = TarSamples(report)
    tar = open_tar(file)
    if not isinstance(tar, FileTar):
        tar.index()
    end = 0
    for run in walk_runs(tar, 0, tar.end, file=file):
        samples.extend(run)
        end = run[-1][-1]
    if links:
        more = f", and so {'is' if len(links) == 2 else 'are'} {len(links) - 1} more" if len(links) > 1 else ""
        raise DatasetError(
            f"{file}: {links[0]}{more}: it has no content of its own, so samples would lack parts. Write the shard "
            "again with copies of the files: tar --dereference --hard-dereference."
        )
    if not samples.keys:
        unnamed = notes.example(LEFT_OUT)
        if unnamed is not None:
            raise DatasetError(
                f"{file}: holds no samples: its files, such as {unnamed}, have no part name (0001.jpg). Write it "
                "again, remove it, or leave it out with --exclude."
            )
        notes.add(NO_SAMPLES, f"{name} with {samples.num_members} members")
    if tar.end - end > MAX_ZERO_BYTES:
        notes.add(ZEROS, f"{name}, from byte {end} on")
    check_end_mark(tar, end, file=file, after=f"sample {samples.keys[-1]!r}" if samples.keys else "")
    if storage.is_remote(path) and storage.version(path) != version:
        raise DatasetError(f"{file}: was replaced while its headers were read. Prepare again when it is complete.")
    samples.offsets.append(end)
    digests = [zlib.crc32(tar.read(offset, size)) for _, offset, size in samples.parts] if digest else None
    segment = build_segment(samples.keys, samples.offsets, samples.part_ends, samples.parts, digests)
    return ShardScan(
        name=name,
        num_bytes=version.num_bytes,
        mtime_ns=version.stamp,
        segment=segment,
        head=head_checksum(file, version.num_bytes),
        offsets=samples.offsets,
        tar=tar,
        notes=notes,
    )


def raise_faults(errors: Sequence[str], num_shards: int) -> None:
    """Raise an error of these faults, each of one of `num_shards` shards, if there are any."""
    if len(errors) == 1:
        raise DatasetError(errors[0])
    if errors:
        more = len(errors) - _MAX_FAULTS
        raise DatasetError(
            f"{len(errors)} of {num_shards} shards cannot be used:\n  "
            + "\n  ".join(errors[:_MAX_FAULTS])
            + (f"\n  and {more} more" if more > 0 else "")
        )


def check_end_mark(tar: FileTar | CompressedTar, end: int, *, file: str, after: str = "") -> None:
    """Ensure that the end mark of a tar is at `end`, where its members end; `after` names the last one.

    Raises:
        DatasetError: if the file ends there: more members may have been lost, or all.
    """
    if end < tar.end:
        return
    if not tar.end:
        raise DatasetError(
            f"{file}: is empty, with 0 bytes in it, as when it was never written, or the disk was full. Write or copy "
            "it again, remove it, or leave it out with --exclude."
        )
    fix = (
        "Write it again." if is_gzip(file) else f"If it is known to be complete, add the mark: truncate -s +1024 {file}"
    )
    raise DatasetError(
        f"{file}: ends at byte {end} without the end mark of a tar, {f'after {after}, ' if after else ''}so it was cut "
        f"off while it was written or copied. {fix}"
    )


def has_surrogates(name: str) -> bool:
    """Whether `name` stands for bytes that are not UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in name)
