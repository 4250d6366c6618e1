"""Samples that are in the data and may not be read any more, and the files by which lists of such samples find them.

Reads records. Returns which of their samples are withheld: none, unless there is a list of them beside the files. This
is the one place where lists are found; a plug-in understands them (the extensions `records` and `files` of the kind
`withheld`), and is imported only where there is one. Withheld samples keep their numbers, so that the order of all
others stays. Lanes drop them; whoever hands out or shows samples reads through `reader_of`, which refuses them.

A class of records whose samples are in files registers `files_of`.
"""

import dataclasses
import functools
import itertools
import os
import weakref
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from bridge_data import storage
from bridge_data.data.blocks import Block, ByteRange, RawSample, RecordReader
from bridge_data.data.metadata import META_FOLDER
from bridge_data.data.records import Records, derivation_of
from bridge_data.errors import ForgottenSampleError
from bridge_data.extensions import Seam
from bridge_data.storage import Location, location

SampleKey = tuple[str, str]
"""(shard, key)."""

FORGOTTEN_JSONL = "forgotten.jsonl"
"""The list of a prepared data set, in its `.nv-meta`."""

FORGOTTEN_BRIDGE = "_forgotten.bridge"
"""The list of the folder that it is in."""

MAX_READING = 16
"""Maximum lists that are read at the same time."""

MAX_ASKED = 16
"""Files in a folder up to which each is asked whether it is a link."""

MAX_LINKS = 40
"""Links that a path may lead along, as in Linux."""


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
"""`records`: the `Withheld` of records with a list. `files`: what `withheld_in` returns of `StoredFiles` with one."""

_BESIDE: "weakref.WeakKeyDictionary[Records, str | None]" = weakref.WeakKeyDictionary()
"""A list beside the files of records, as of the first look in this process."""


def withheld(records: Records) -> Withheld:
    """The samples of `records` that may not be read, as of the first call for these records in this process.

    Raises:
        DatasetError: if a list is damaged, or files have changed since it was written.
        ConfigError: if there is a list, and nothing installed that reads it.
    """
    if (beside := _list_of(records)) is None:
        return Nothing()
    found: Withheld = _LISTS.get("records", needed_by=beside)(records)
    return found


def withheld_in(files: StoredFiles) -> Sequence[tuple[int, int, str]]:
    """(number of the file, position, key) of the samples in `files` that may not be read, as of now. Errors as of
    `withheld`."""
    if (beside := _list_beside(files)) is None:
        return []
    found: Iterable[tuple[int, int, str]] = _LISTS.get("files", needed_by=beside)(files)
    return list(found)


def _list_of(records: Records) -> str | None:
    """What messages call a list beside the files of `records`, or of those that their samples are made of."""
    if (derivation := derivation_of(records)) is not None:
        return next(filter(None, map(_list_of, derivation.members)), None)
    if (files := files_of(records)) is None:
        return None
    if records not in _BESIDE:
        _BESIDE[records] = _list_beside(files)
    return _BESIDE[records]


def _list_beside(files: StoredFiles) -> str | None:
    lists = lists_beside(files, FilePaths.of(files))
    return f"{lists[0].file}, a list of samples not to be read," if lists else None


class FoundList(NamedTuple):
    """A list: the folder that its names are relative to, its file, and the content of this."""

    base: str
    file: Location
    data: bytes


def lists_beside(files: StoredFiles, paths: "FilePaths") -> list[FoundList]:
    """The lists that may name these files, as of now: next to a file, and for tars in the `.nv-meta` of any folder
    above; on a disk also along links. One to which several ways lead comes several times.

    Raises:
        DatasetError: if one cannot be read.
    """
    own_name = f"{META_FOLDER}/{FORGOTTEN_JSONL}" if files.are_tars else FORGOTTEN_BRIDGE
    if storage.is_remote(str(files.root)):
        places = {(folder, own_name): None for folder in ([str(files.root)] if files.are_tars else paths.numbers)}
    else:
        folders = paths.folders()
        places = {(folder, FORGOTTEN_BRIDGE): None for folder in folders}
        for folder in folders if files.are_tars else ():
            while (folder, own_name) not in places:
                places[folder, own_name] = None
                folder = os.path.dirname(folder)
    names = [f"{base.rstrip('/')}/{name}" for base, name in places]
    if len(names) > 1 and storage.is_remote(str(files.root)):
        from concurrent.futures import ThreadPoolExecutor  # here: it is slow to import

        with ThreadPoolExecutor(MAX_READING) as threads:
            contents = list(threads.map(storage.read_if_there, names))
    else:
        contents = list(map(storage.read_if_there, names))
    return [
        FoundList(base, location(name), data)
        for (base, _), name, data in zip(places, names, contents, strict=True)
        if data is not None
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class FilePaths:
    """By which paths the files of a data set are known: the numbers of those in each folder, the names of it, and by
    the number of a file those along its links."""

    numbers: Mapping[str, Sequence[int]]
    ways: Mapping[str, Sequence[str]]
    links: Mapping[int, Sequence[str]]

    @classmethod
    def of(cls, files: StoredFiles) -> "FilePaths":
        """Of the files in a store as given; of those on a disk also along links to the real one."""
        by_folder: dict[str, list[int]] = {}
        for number, path in enumerate(files.paths):
            by_folder.setdefault(path.rpartition("/")[0], []).append(number)
        if storage.is_remote(str(files.root)):
            return cls(by_folder, {folder: (folder,) for folder in by_folder}, {})
        ways, links = {}, {}
        for folder, numbers in by_folder.items():
            given, real = os.path.abspath(folder), os.path.realpath(folder)
            ways[folder] = tuple(dict.fromkeys((given, real)))
            named = {files.paths[number].rpartition("/")[2]: number for number in numbers}
            for name in _links(real, named):
                if name in named:
                    links[named[name]] = [*_targets(real, name)]
        return cls(by_folder, ways, links)

    def folders(self) -> dict[str, None]:
        """The folders of all these paths."""
        ways = itertools.chain.from_iterable(self.ways.values())
        along = itertools.chain.from_iterable(self.links.values())
        return dict.fromkeys((*ways, *map(os.path.dirname, along)))

    def known(self, files: Sequence[str]) -> dict[str, list[int]]:
        """The numbers of the files by path."""
        found: dict[str, list[int]] = {}
        for folder, numbers in self.numbers.items():
            for number in numbers:
                name = files[number].rpartition("/")[2]
                for path in (*(f"{way}/{name}" for way in self.ways[folder]), *self.links.get(number, ())):
                    found.setdefault(path, []).append(number)
        return found


def _links(folder: str, names: Collection[str]) -> Collection[str]:
    """Those of the files `names` in a folder that are links; if there are many, all links in it, without asking for
    each."""
    if len(names) <= MAX_ASKED:
        return [name for name in names if os.path.islink(os.path.join(folder, name))]
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_symlink()]
    except OSError:  # reading the files reports why
        return ()


def _targets(folder: str, name: str) -> Iterator[str]:
    """The paths that a link leads along."""
    path = os.path.join(folder, name)
    for _ in range(MAX_LINKS):
        if not os.path.islink(path):
            return
        target = os.path.join(os.path.dirname(path), os.readlink(path))
        path = os.path.join(os.path.realpath(os.path.dirname(target)), os.path.basename(target))
        yield path


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
