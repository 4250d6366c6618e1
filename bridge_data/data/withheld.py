"""Samples that are in the data and may not be read any more, and the files by which lists of such samples find them.

Reads records. Returns which of their samples are withheld: none, unless a plug-in keeps lists of them (the extensions
`records` and `files` of the kind `withheld`). They keep their numbers, so that the order of all others stays. Lanes
drop them; everyone else reads through `reader_of`, which refuses them.

A class of records whose samples are in files registers `files_of`.
"""

import functools
import os
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from bridge_data import storage
from bridge_data.data.metadata import META_FOLDER
from bridge_data.data.records import Block, ByteRange, RawSample, RecordReader, Records, derivation_of
from bridge_data.errors import ForgottenSampleError
from bridge_data.extensions import Seam
from bridge_data.storage import Location, location

SampleKey = tuple[str, str]
"""(shard, key)."""

FORGOTTEN_JSONL = "forgotten.jsonl"
"""The list of a prepared data set, in its `.nv-meta`."""

FORGOTTEN_BRIDGE = "_forgotten.bridge"
"""The list of the folder that it is in."""


class ShardStamp(NamedTuple):
    """What is known of a shard on opening, to notice that it was rewritten: size, number of samples, and a digest; None
    if none is at hand. The kind of a digest stands before a colon, if there are several."""

    num_bytes: int
    num_samples: int
    digest: str | None

    @property
    def kind(self) -> str | None:
        """The kind of the digest; None if there is none."""
        return None if self.digest is None else self.digest.rpartition(":")[0]

    def agrees(self, other: "ShardStamp") -> bool:
        """Whether both may be of the same shard. Digests are compared if both have one, of the same kind."""
        is_known = self.kind is not None and self.kind == other.kind
        return self[:2] == other[:2] and (not is_known or self.digest == other.digest)


class StoredFiles(NamedTuple):
    """The files of the data set at `root`: by number their `names` there, their `paths` and stamps, and the number of
    the sample at a position in one, None for one that the records leave out. `has_same` says whether the file at a path
    has the same sample at a position as the file with a number; None: it is not known."""

    root: Location
    names: Sequence[str]
    paths: Sequence[str]
    stamp: Callable[[int], ShardStamp]
    number_in: Callable[[int, int], int | None]
    are_tars: bool = False
    has_same: Callable[[str, int, int], bool] | None = None


@functools.singledispatch
def files_of(records: Records) -> StoredFiles | None:
    """The files that samples are in; None if they are in none that a list could name."""
    return None


class Withheld(Protocol):
    """The samples of records that may not be read; true if there are lists of such."""

    def __contains__(self, index: Any, /) -> bool: ...
    def __bool__(self) -> bool: ...

    @property
    def keys(self) -> Collection[SampleKey]:
        """(shard, key) of all withheld samples of the data set, also of other split parts."""

    def facts(self) -> dict[str, Any] | None:
        """What `bridge-data info` shows of them; None if there is nothing."""


class Nothing:
    """No sample is withheld."""

    keys: Collection[SampleKey] = ()

    def __contains__(self, index: Any, /) -> bool:
        return False

    def __bool__(self) -> bool:
        return False

    def facts(self) -> None:
        """Nothing."""


_LISTS = Seam[Callable[[Any], Any]]("withheld")
"""`records`: their `Withheld`. `files`: what `withheld_in` returns of `StoredFiles`."""


@functools.cache
def _finder(name: str) -> Callable[[Any], Any] | None:
    return _LISTS.find(name)


def withheld(records: Records) -> Withheld:
    """The samples of `records` that may not be read, as of the first call for these records in this process.

    Raises:
        DatasetError: if a list is damaged, or files have changed since it was written.
        ConfigError: if there is a list, and nothing installed that reads it.
    """
    find = _finder("records")
    if find is None:
        _refuse_lists(records)
        return Nothing()
    found: Withheld = find(records)
    return found


def _refuse_lists(records: Records) -> None:
    """Refuse data with a list that nobody can read: its samples would be read without a word."""
    if (derivation := derivation_of(records)) is not None:
        for member in derivation.members:
            _refuse_lists(member)
    elif (files := files_of(records)) is not None:
        _refuse_lists_of(files)


def _refuse_lists_of(files: StoredFiles) -> None:
    """The same, of files: with a list beside one, or in a folder above it, also where a link leads to."""
    folders: dict[Location, None] = {}
    for path in (str(files.root / "."), *files.paths):
        for known in (path,) if storage.is_remote(path) else (path, os.path.realpath(path)):
            folder = location(known).parent
            while folder not in folders:
                folders[folder] = None
                folder = folder.parent
    for folder in folders:
        for name in (f"{META_FOLDER}/{FORGOTTEN_JSONL}", FORGOTTEN_BRIDGE):
            if storage.is_file(folder / name):
                _LISTS.get("records", needed_by=f"{folder / name}, a list of samples not to be read,")


def withheld_in(files: StoredFiles) -> Sequence[tuple[int, int, str]]:
    """(number of the file, position, key) of the samples in `files` that may not be read, as of now.

    Raises:
        DatasetError: if a list is damaged, or files have changed since it was written.
        ConfigError: if there is a list, and nothing installed that reads it.
    """
    find = _finder("files")
    if find is None:
        _refuse_lists_of(files)
        return []
    found: Iterable[tuple[int, int, str]] = find(files)
    return list(found)


def keys_in(files: StoredFiles) -> frozenset[SampleKey]:
    """(shard, key) of the samples in `files` that may not be read; see `withheld_in`."""
    return frozenset((files.names[file], key) for file, _, key in withheld_in(files))


def digest_of_keys(keys: Collection[SampleKey]) -> str:
    """A digest of what is withheld; empty if nothing is."""
    import hashlib  # here: few data have a list

    names = "\0".join(sorted("\0".join(name) for name in keys))
    return hashlib.blake2b(names.encode(errors="surrogatepass"), digest_size=8).hexdigest() if names else ""


def reader_of(records: Records, gone: Container[int] | None = None) -> RecordReader:
    """A reader for all who do not draw samples from lanes, which drop withheld ones: of these, it reads only keys.
    `gone` are the withheld ones, if they are known already."""
    gone = withheld(records) if gone is None else gone
    return _Withholding(records, gone) if gone else records.reader()


class _Withholding(RecordReader):
    """A reader of `records` that has no parts of the samples numbered `gone`."""

    def __init__(self, records: Records, gone: Container[int]) -> None:
        self._records, self._gone, self._reader = records, gone, records.reader()
        self.dataset_path, self.sample_class = self._reader.dataset_path, self._reader.sample_class
        self.has_blocks = self._reader.has_blocks

    def read(self, index: int, parts: Container[str] | None = None) -> RawSample:
        if parts != () and index in self._gone:
            raise ForgottenSampleError.of(f"{self._records.root}: {self._reader.read(index, ()).full_key}")
        return self._reader.read(index, parts)

    def byte_ranges(self, block: range, parts: Container[str] | None = None) -> Sequence[ByteRange]:
        return self._reader.byte_ranges(block, parts)

    def part_names(self, shard: int) -> Collection[str] | None:
        return self._reader.part_names(shard)

    def read_block(self, block: range, parts: Container[str] | None) -> Block | None:
        found = self._reader.read_block(block, parts)
        if found is not None:
            for at, index in enumerate(block):
                if index in self._gone:
                    found.keys[at] = found.contents[at] = None  # it is read singly, which reports it
        return found
