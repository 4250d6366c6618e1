"""Data whose samples can be forgotten: where their lists are, and which samples have a key.

Enters: a prepared folder, tables or a JSONL file on a disk; keys as users know them. Leaves: the file of each list, the
shards in it, and positions in these. Guarantee: nothing is written, and data that differ from their lists are opened.
"""

import abc
import collections
import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bridge_data.errors import ConfigError
from bridge_data.plan.formats import format_of
from bridge_data.prepare.commit import preparing_alone, temporary_files
from bridge_data.shards.jsonl_file import JsonlLines
from bridge_data.shards.key_index import KeyIndex
from bridge_data.shards.metadata import FORGOTTEN_BRIDGE, FORGOTTEN_JSONL, INFO_JSON, INFO_YAML, META_FOLDER
from bridge_data.shards.prepared import PreparedDataset
from bridge_data.shards.table_records import TableRecords, open_records
from bridge_data.shards.tombstones import ShardStamp, Tombstones


class KeyMatch(NamedTuple):
    """A sample with a key that was asked for: the number of its list, its shard there, its position, its key."""

    list_number: int
    shard: str
    position: int
    key: str


@dataclasses.dataclass(frozen=True)
class ListFile:
    """A list that is there or can be written: its file, and names and stamps of the shards of this data. One that
    `is_shared` may have the shards of other data, too."""

    path: Path
    names: Collection[str]
    stamp_of: Callable[[str], ShardStamp]
    is_shared: bool = True

    def read(self, root: Path) -> Tombstones | None:
        """The list, for the data at `root`; None if there is none."""
        return Tombstones.read(self.path, root)


class Forgettable(abc.ABC):
    """The data at `root`, with their `lists`."""

    root: Path
    lists: Sequence[ListFile]
    are_tars = False

    @abc.abstractmethod
    def find(self, names: Iterable[str]) -> dict[str, list[KeyMatch]]:
        """The samples that each name (`KEY`, `SHARD:KEY` or `SHARD/KEY`) may stand for."""

    def find_moved(self, keys: Collection[str]) -> Iterator[KeyMatch]:
        """The samples with one of `keys`, in all shards; none if shards number their samples."""
        return iter(())

    def shard_name(self, list_number: int, shard: str) -> str:
        """What users call a shard of a list."""
        return shard


@contextlib.contextmanager
def changing(root: Path) -> Iterator[Forgettable]:
    """The data at `root`, whose lists no other process changes meanwhile.

    Raises:
        ConfigError: if they can have no list. DatasetError: if they are damaged, or another process holds them.
    """
    data = open_forgettable(root)
    with contextlib.ExitStack() as stack:
        for file in data.lists:
            folder = file.path.parent
            folder = folder.parent if folder.name == META_FOLDER else folder
            remove = stack.enter_context(preparing_alone(folder, doing="preparing or changing"))
            remove(temporary_files(file.path))  # of killed processes
        yield open_forgettable(root)


def open_forgettable(root: Path) -> Forgettable:
    """The data at `root`."""
    found = format_of(str(root))
    if found.name == "tables":
        return _Tables(root.absolute())
    if found.name == "jsonl":
        return _Lines(root.absolute())
    if found.name == "folder":
        return _Prepared(root)
    raise ConfigError(
        f"a list of forgotten samples is for prepared folders, tables and JSONL files, but {root} "
        f"{found.describe(str(root))} first, or leave the samples out with `where: __key__ not in ('KEY', 'KEY')`"
    )


def _home(root: Path, real_root: Path, shard: str, prepared_above: Callable[[Path], Path | None]) -> tuple[Path, str]:
    """(the list that a shard belongs on, its name there): that of the prepared folder that its file is really in, which
    is another one for a link, or of the folder next to the file if no folder above is prepared."""
    path = Path(os.path.realpath(root / shard))
    folder = prepared_above(path.parent)
    if folder is None:
        return path.with_name(FORGOTTEN_BRIDGE), path.name
    home = root if folder == real_root else folder
    return home / META_FOLDER / FORGOTTEN_JSONL, path.relative_to(folder).as_posix()


def _prepared_above(real_root: Path, folder: Path) -> Path | None:
    """The first prepared folder at or above `folder`; None if there is none."""
    for above in (folder, *folder.parents):
        if above == real_root or any((above / META_FOLDER / name).is_file() for name in (INFO_JSON, INFO_YAML)):
            return above
    return None


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """The shards and keys that a name may consist of: a key may have slashes and colons itself."""
    return ((name[:at], name[at + 1 :]) for at, character in enumerate(name) if character in ":/")


class _Prepared(Forgettable):
    are_tars = True

    def __init__(self, root: Path) -> None:
        self.root, self._dataset = root, PreparedDataset.open(root)
        own = root / META_FOLDER / FORGOTTEN_JSONL
        before = Tombstones.read(own, root)
        stamps: dict[Path, dict[str, ShardStamp]] = {own: {}}
        numbers, self._homes, self._names = {own: 0}, dict[str, tuple[int, str]](), dict[tuple[int, str], str]()
        real_root = Path(os.path.realpath(root))
        prepared_above = functools.cache(functools.partial(_prepared_above, real_root))
        for shard in self._dataset.shard_counts:
            has_it = before is not None and shard in before.shards
            file, name = (own, shard) if has_it else _home(root, real_root, shard, prepared_above)
            stamps.setdefault(file, {})[name] = self._dataset.stamp(shard)
            self._homes[shard] = home = numbers.setdefault(file, len(numbers)), name
            self._names[home] = shard
        self.lists = [ListFile(file, known, known.__getitem__, file != own) for file, known in stamps.items()]

    def shard_name(self, list_number: int, shard: str) -> str:
        return self._names.get((list_number, shard), shard)

    def find(self, names: Iterable[str]) -> dict[str, list[KeyMatch]]:
        index, found = KeyIndex.open(self.root), {}
        for name in names:
            samples = [KeyMatch(0, index.shard_names[shard], at, name) for shard, at in index.positions(name).items()]
            for shard, key in _splits(name):
                if shard in self._dataset.shard_counts:
                    own = {index.shard_names[number]: at for number, at in index.positions(key).items()}
                    samples += [KeyMatch(0, shard, own[shard], key)] if shard in own else []
            stored = [sample for sample in samples if self._is_stored(sample)]
            homes = [(*self._homes[sample.shard], sample.position, sample.key) for sample in stored]
            found[name] = [KeyMatch(*home) for home in dict.fromkeys(homes)]
        return found

    def _is_stored(self, sample: KeyMatch) -> bool:
        """Whether our index has the key at the same position as Energon's; without ours, Energon's is trusted."""
        dataset = self._dataset
        if sample.position >= dataset.shard_counts.get(sample.shard, 0):
            return False
        segment = None if dataset.index is None else dataset.index.segment_if_intact(sample.shard)
        return segment is None or segment.key(sample.position) == sample.key


class _Tables(Forgettable):
    def __init__(self, root: Path) -> None:
        from bridge_data.plan.table_files import files_of, table_parts  # here: few data are tables

        self.root = root
        # Split parts may have different columns, so some may have keys.
        parts = [(part, files_of(str(root), part)) for part in table_parts(str(root))]
        self._parts = [open_records(root, files, part, lambda columns: []) for part, files in parts]
        folders: dict[Path, dict[str, ShardStamp]] = collections.defaultdict(dict)
        list_numbers: dict[Path, int] = {}
        self._files: dict[str, tuple[int, str]] = {}  # by its name in the data: its list, and its name there
        for records in self._parts:
            for number, entry in enumerate(records.files):
                path = Path(os.path.realpath(entry.path))
                folders[path.parent][path.name] = records.stamp(number)
                self._files[entry.name] = list_numbers.setdefault(path.parent, len(list_numbers)), path.name
        self._names = {file: name for name, file in self._files.items()}
        self.lists = [
            ListFile(folder / FORGOTTEN_BRIDGE, stamps, stamps.__getitem__) for folder, stamps in folders.items()
        ]

    def find(self, names: Iterable[str]) -> dict[str, list[KeyMatch]]:
        found: dict[str, list[KeyMatch]] = {name: [] for name in names}
        wanted: dict[str, dict[str | None, list[str]]] = {}  # by key and shard (None: any): names
        for name in found:
            for shard, key in [(None, name), *((shard, key) for shard, key in _splits(name) if shard in self._files)]:
                wanted.setdefault(key, {}).setdefault(shard, []).append(name)
        for file, row, key in itertools.chain.from_iterable(self._rows(records, wanted) for records in self._parts):
            for name in (*wanted[key].get(None, ()), *wanted[key].get(file, ())):
                found[name].append(KeyMatch(*self._files[file], row, key))
        return found

    def _rows(
        self, records: TableRecords, wanted: Mapping[str, Collection[str | None]]
    ) -> Iterator[tuple[str, int, str]]:
        """(file, row, key) of the rows with a key that is wanted of their file, or of any."""
        if records.has_keys:
            yield from _keyed_rows(records, wanted)
            return
        counts = {entry.name: len(records.rows_of(number)) for number, entry in enumerate(records.files)}
        for key, shards in wanted.items():
            if _is_number(key):
                files = counts if None in shards else [shard for shard in shards if shard in counts]
                yield from ((file, int(key), key) for file in files if file and int(key) < counts[file])

    def find_moved(self, keys: Collection[str]) -> Iterator[KeyMatch]:
        for records in self._parts:
            if records.has_keys and keys:
                yield from (KeyMatch(*self._files[file], row, key) for file, row, key in _keyed_rows(records, keys))

    def shard_name(self, list_number: int, shard: str) -> str:
        return self._names[list_number, shard]


def _keyed_rows(records: TableRecords, keys: Collection[str]) -> Iterator[tuple[str, int, str]]:
    """(file, row, key) of the rows that have one of `keys`, out of the column of keys."""
    for file, first, run in records.key_runs():
        for index, key in enumerate(run, start=first):
            if key in keys:
                yield file, records.file_of(index)[1], key


class _Lines(Forgettable):
    def __init__(self, path: Path) -> None:
        self.root, real = path, Path(os.path.realpath(path))
        self._lines = lines = JsonlLines.open(path, "")
        self._name = real.name
        self.lists = [ListFile(real.with_name(FORGOTTEN_BRIDGE), [real.name], lambda _: lines.stamp)]

    def find(self, names: Iterable[str]) -> dict[str, list[KeyMatch]]:
        found = {}
        for name in names:
            keys = {name, *(key for shard, key in _splits(name) if shard in (self.root.name, self._name))}
            found[name] = [
                KeyMatch(0, self._name, int(key), key)
                for key in keys
                if _is_number(key) and int(key) < self._lines.num_samples
            ]
        return found


def _is_number(key: str) -> bool:
    """Whether `key` is that of a row or line without a key of its own."""
    return key.isascii() and key.isdigit() and key == str(int(key[:20]))
