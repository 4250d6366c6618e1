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
from collections.abc import Iterable, Mapping, Sequence

from bridge_data import storage
from bridge_data.data.index_file import Part, build_segment, is_meta_member, split_name
from bridge_data.data.tar_files import (
    FILE,
    FOLDER,
    LINKS,
    Fields,
    FileTar,
    GzipTar,
    head_checksum,
    is_gzip,
    open_tar,
    walk_runs,
)
from bridge_data.errors import DatasetError
from bridge_data.storage import Location

MAX_ZERO_BYTES = 1 << 20
"""Zeros at the end of a tar up to this are not noted: tars are padded to records of some size."""

_MAX_FAULTS = 10
"""Shards that a message names."""

LEFT_OUT, SPECIAL, NOT_UTF8, NO_SAMPLES, ZEROS = "left out", "special", "not UTF-8", "no samples", "zeros"

_NOTES = {
    LEFT_OUT: "left out, as they have no part name (0001.jpg): {count} members, such as {example}",
    SPECIAL: "left out, as they hold no data: {count} members, such as {example}",
    NOT_UTF8: "names that are not UTF-8: {count} members, such as {example}; their keys have surrogates (PEP 383)",
    NO_SAMPLES: "without samples: {count} shards, such as {example}",
    ZEROS: f"more than {MAX_ZERO_BYTES:,} zeros at the end, as when a copy was cut off: {{count}} shards, such as "
    "{example}",
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
    tar: FileTar | GzipTar
    notes: ScanNotes = dataclasses.field(default_factory=ScanNotes)


class SampleCollector:
    """Groups the members of the shard `name`, the path `file`, into samples; `notes` are remarks on them."""

    def __init__(self, file: str, name: str) -> None:
        self._file, self._shard = file, name
        self._key: str | None = None
        self._names: set[str] = set()
        self.keys: dict[str, int] = {}
        self.offsets = array.array("Q")
        self._starts = array.array("I")
        self.parts: list[Part] = []
        self.num_members = 0
        self.notes = ScanNotes()
        self._links: list[tuple[str, str, int]] = []

    @property
    def part_ends(self) -> "array.array[int]":
        """For each sample, the number of the part after its last."""
        return self._starts[1:] + array.array("I", (len(self.parts),)) if self._starts else self._starts

    def extend(self, members: Iterable[Fields]) -> None:
        """Add the next members."""
        keys, parts = self.keys, self.parts
        for name, offset, content_offset, num_bytes, kind, _ in members:
            self.num_members += 1
            split = split_name(name)
            if split is None or kind != FILE:
                self._leave_out(name, kind, offset, is_part=split is not None)
                continue
            if not name.isascii() and has_surrogates(name):
                self.notes.add(NOT_UTF8, f"{name!r} at byte {offset} of {self._shard}")
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

    def _leave_out(self, name: str, kind: str, offset: int, *, is_part: bool) -> None:
        """Note a member that is not a part of a sample."""
        if is_part and kind in LINKS:
            self._links.append((name, kind, offset))
        elif is_part and kind != FOLDER:
            self.notes.add(SPECIAL, f"{name!r}, a {kind}, at byte {offset} of {self._shard}")
        elif kind == FILE and not is_meta_member(name):
            self.notes.add(LEFT_OUT, f"{name!r} of {self._shard}")

    def check_links(self) -> None:
        """Ensure that no part of a sample is a link.

        Raises:
            DatasetError: naming the first.
        """
        if self._links:
            name, kind, offset = self._links[0]
            count = len(self._links)
            raise DatasetError(
                f"{self._file}: member {name!r} at byte {offset} is a {kind}"
                + (f", and so {'is' if count == 2 else 'are'} {count - 1} more" if count > 1 else "")
                + ": it has no content of its own, so samples would lack parts. Write the shard again with copies of "
                "the files: tar --dereference --hard-dereference."
            )

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


def scan_tar(root: Location, name: str, *, digest: bool = False) -> ShardScan:
    """Scan shard `name` of the data set at `root`; with `digest`, read every part, too.

    Raises:
        DatasetError: if it cannot be read, is damaged, or its members do not make samples.
    """
    path = root / name
    file = str(path)
    version = storage.version(path)
    samples = SampleCollector(file, name)
    tar = open_tar(file)
    if isinstance(tar, GzipTar):
        tar.index()
    end = 0
    for run in walk_runs(tar, 0, tar.end, file=file):
        samples.extend(run)
        end = run[-1][-1]
    samples.check_links()
    if not samples.keys:
        unnamed = samples.notes.example(LEFT_OUT)
        if unnamed is not None:
            raise DatasetError(
                f"{file}: holds no samples: its files, such as {unnamed}, have no part name (0001.jpg). Write it "
                "again, remove it, or leave it out with --exclude."
            )
        samples.notes.add(NO_SAMPLES, f"{name} with {samples.num_members} members")
    if tar.end - end > MAX_ZERO_BYTES:
        samples.notes.add(ZEROS, f"{name}, from byte {end} on")
    check_end_mark(tar, end, file=file, after=f"sample {next(reversed(samples.keys))!r}" if samples.keys else "")
    if storage.is_remote(path) and storage.version(path) != version:
        raise DatasetError(f"{file}: was replaced while its headers were read. Prepare again when it is complete.")
    samples.offsets.append(end)
    digests = [zlib.crc32(tar.read(offset, size)) for _, offset, size in samples.parts] if digest else None
    segment = build_segment(list(samples.keys), samples.offsets, samples.part_ends, samples.parts, digests)
    return ShardScan(
        name=name,
        num_bytes=version.num_bytes,
        mtime_ns=version.stamp,
        segment=segment,
        head=head_checksum(file, version.num_bytes),
        offsets=samples.offsets,
        tar=tar,
        notes=samples.notes,
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


def check_end_mark(tar: FileTar | GzipTar, end: int, *, file: str, after: str = "") -> None:
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
