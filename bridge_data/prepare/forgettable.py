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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bridge_data.errors import ConfigError
from bridge_data.plan.formats import format_of
from bridge_data.prepare.commit import preparing_alone
from bridge_data.shards.jsonl_file import JsonlLines
from bridge_data.shards.metadata import FORGOTTEN_BRIDGE, FORGOTTEN_JSONL, INFO_JSON, INFO_YAML, META_FOLDER
from bridge_data.shards.prepared import PreparedDataset, ShardSet
from bridge_data.shards.sample_lookup import meanings
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

    def find(self, names: Iterable[str]) -> dict[str, list[KeyMatch]]:
        """The samples that each name (`KEY`, `SHARD:KEY` or `SHARD/KEY`) may stand for."""
        found: dict[str, dict[KeyMatch, None]] = {name: {} for name in names}
        wanted: dict[str, list[tuple[str | None, str]]] = {}  # by key: the shard (None: any) and the name
        for name in found:
            for shard, key in meanings(name):
                if shard is None or self.is_shard(shard):
                    wanted.setdefault(key, []).append((shard, name))
        for own_shard, match in self.find_keys(wanted):
            for shard, name in wanted[match.key]:
                if shard in (None, own_shard):
                    found[name][match] = None
        return {name: [*matches] for name, matches in found.items()}

    @abc.abstractmethod
    def is_shard(self, name: str) -> bool:
        """Whether users call a shard so."""

    @abc.abstractmethod
    def find_keys(self, keys: Collection[str]) -> Iterator[tuple[str, KeyMatch]]:
        """(shard as users call it, sample) of all samples with one of `keys`."""

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
            remove([file.path])  # what killed processes left
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

    def is_shard(self, name: str) -> bool:
        return name in self._dataset.shard_counts

    def find_keys(self, keys: Collection[str]) -> Iterator[tuple[str, KeyMatch]]:
        data, names = self._dataset, tuple(self._dataset.shard_counts)
        counts = tuple(data.shard_counts.values())
        shards = ShardSet(root=self.root, split_part="", names=names, stored_counts=counts, index=data.index)
        for number, key in shards.find(keys):
            shard, position = shards.locate(number)
            yield names[shard], KeyMatch(*self._homes[names[shard]], position, key)


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

    def is_shard(self, name: str) -> bool:
        return name in self._files

    def find_keys(self, keys: Collection[str]) -> Iterator[tuple[str, KeyMatch]]:
        return itertools.chain.from_iterable(self._rows(records, keys) for records in self._parts)

    def _rows(self, records: TableRecords, keys: Collection[str]) -> Iterator[tuple[str, KeyMatch]]:
        for number, key in records.find(keys):
            file, row = records.file_of(number)
            name = records.files[file].name
            yield name, KeyMatch(*self._files[name], row, key)

    def find_moved(self, keys: Collection[str]) -> Iterator[KeyMatch]:
        for records in self._parts:
            if records.has_keys and keys:
                yield from (match for _, match in self._rows(records, keys))

    def shard_name(self, list_number: int, shard: str) -> str:
        return self._names[list_number, shard]


class _Lines(Forgettable):
    def __init__(self, path: Path) -> None:
        self.root, real = path, Path(os.path.realpath(path))
        self._lines = lines = JsonlLines.open(path, "")
        self._name = real.name
        self.lists = [ListFile(real.with_name(FORGOTTEN_BRIDGE), [real.name], lambda _: lines.stamp)]

    def is_shard(self, name: str) -> bool:
        return name in (self.root.name, self._name)

    def find_keys(self, keys: Collection[str]) -> Iterator[tuple[str, KeyMatch]]:
        for number, key in self._lines.find(keys):
            yield from ((name, KeyMatch(0, self._name, number, key)) for name in {self.root.name, self._name})
