"""The list of the samples that are forgotten: its versions.

The list of a prepared data set is its `.nv-meta/forgotten.jsonl`. Tables and JSONL files have the list of the folder
that they are in, the file `_forgotten.bridge` there, in which each of them is a shard.

Enters: the bytes of the file. Leaves: for each version, the positions that are forgotten, by shard. Guarantee: the file
is whole, and no version was changed since it was written; no key is looked up.

Each line is one version, and changes the one before: `{"version", "date", "reason", "action", "shards", "digest"}`.
`shards` has for each shard its size in bytes, its number of samples, and `[position, key]` of the samples that are
forgotten (with the action `restore`: no longer forgotten); with `renew` they replace all earlier ones. `digest` is a
hash of the line without it and of the previous version's digest: number and digest identify a version.
"""

import dataclasses
import functools
import json
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bridge_data import storage
from bridge_data.errors import DatasetError, bridge_command
from bridge_data.shards.metadata import FORGOTTEN_BRIDGE
from bridge_data.storage import Location, is_remote, location

ACTIONS = ("forget", "restore", "renew")

MAX_READING = 16
"""Maximum lists that are read at the same time."""

_FIELDS = {"version": int, "date": str, "reason": str, "action": str, "shards": dict, "digest": str}


@dataclasses.dataclass(frozen=True, slots=True)
class ShardTombstones:
    """The samples of a version in one shard, which had this size and this many samples."""

    num_bytes: int
    num_samples: int
    samples: tuple[tuple[int, str], ...]
    """(position, key)."""


@dataclasses.dataclass(frozen=True, slots=True)
class TombstoneVersion:
    """One version: what it changed, when and why."""

    number: int
    date: str
    reason: str
    action: str
    shards: Mapping[str, ShardTombstones]
    digest: str

    def line(self) -> str:
        """The version as a line of the file."""
        return json.dumps({**_content(self), "digest": self.digest}, ensure_ascii=False) + "\n"

    @property
    def num_samples(self) -> int:
        """The samples in it."""
        return sum(len(shard.samples) for shard in self.shards.values())


@dataclasses.dataclass(frozen=True)
class Tombstones:
    """The versions of the list in `file`, at least one, from version 1 on; it is read for the data set at `root`."""

    file: Location
    root: Location
    versions: tuple[TombstoneVersion, ...]

    @classmethod
    def read(cls, file: Location, root: Location) -> "Tombstones | None":
        """The list in `file`; None if there is no such file.

        Raises:
            DatasetError: if it is damaged.
        """
        data = storage.read_if_there(file)
        return None if data is None else cls.parse(data, file, root)

    @classmethod
    def parse(cls, data: bytes, file: Location, root: Location) -> "Tombstones":
        """The list with the content `data`.

        Raises:
            DatasetError: if it is damaged.
        """
        versions: list[TombstoneVersion] = []
        for number, line in enumerate(data.splitlines(), start=1):
            try:
                version = _parsed(json.loads(line))
            except (ValueError, TypeError, RecursionError) as error:
                raise _damaged(file, number, str(error)) from None
            before = versions[-1].digest if versions else ""
            if version.number != number or version.digest != digest_of(version, before):
                raise _damaged(file, number, "the version was changed, or one before it is missing")
            versions.append(version)
        if not versions or not data.endswith(b"\n"):
            raise _damaged(file, len(versions), "the end is missing")
        return cls(file, root, tuple(versions))

    @property
    def newest(self) -> TombstoneVersion:
        """The last version."""
        return self.versions[-1]

    def names(self, number: int) -> tuple[int, str]:
        """(number, digest) of a version; 0 stands for a data set without a list."""
        return (number, self.versions[number - 1].digest) if number else (0, "")

    def samples(self, number: int) -> dict[str, dict[int, str]]:
        """The forgotten samples under a version: by shard, their keys by position."""
        found: dict[str, dict[int, str]] = {}
        for version in self.versions[:number]:
            if version.action == "renew":
                found = {}
            for name, shard in version.shards.items():
                own = found.setdefault(name, {})
                for position, key in shard.samples:
                    if version.action == "restore":
                        own.pop(position, None)
                    else:
                        own[position] = key
        return {name: samples for name, samples in found.items() if samples}

    @functools.cached_property
    def shards(self) -> dict[str, ShardTombstones]:
        """The shards of the list, as of the last version that names them."""
        return {name: shard for version in self.versions for name, shard in version.shards.items()}

    @property
    def _renewing(self) -> str:
        return bridge_command("forget", self.root, "--renew", "--reason", "WHY")

    def changed_shards(self, shard_counts: Mapping[str, int], num_bytes: Callable[[str], int]) -> list[str]:
        """The shards with forgotten samples whose size or number of samples has changed."""
        return [
            name
            for name in self.samples(len(self.versions))
            if name in shard_counts
            and (self.shards[name].num_samples, self.shards[name].num_bytes) != (shard_counts[name], num_bytes(name))
        ]

    def check_shards(self, shard_counts: Mapping[str, int], num_bytes: Callable[[str], int]) -> None:
        """Check that the shards are those that the list was written for.

        Raises:
            DatasetError: if one has changed.
        """
        changed = self.changed_shards(shard_counts, num_bytes)
        if changed:
            more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
            raise DatasetError(
                f"{self.root}: shard {changed[0]}{more} has changed since samples in it were forgotten, and their "
                f"positions may be those of others now; run `{self._renewing}`, which looks them up again by their keys"
            )

    def renamed(self, file_counts: Mapping[str, int], num_bytes: Callable[[str], int]) -> dict[str, list[str]]:
        """The files with forgotten samples that are no longer in the folder of the list, if others have their sizes and
        numbers of samples: the names of these."""
        listed = self.samples(len(self.versions))
        others: dict[tuple[int, int], list[str]] = {}
        for name in sorted(file_counts.keys() - listed.keys()):
            others.setdefault((file_counts[name], num_bytes(name)), []).append(name)
        found = {
            name: others.get((self.shards[name].num_samples, self.shards[name].num_bytes), [])
            for name in listed.keys() - file_counts.keys()
        }
        return {name: new for name, new in found.items() if new and not storage.is_file(self.file.parent / name)}

    def check_files(self, file_counts: Mapping[str, int], num_bytes: Callable[[str], int]) -> None:
        """Check that these files in the folder of the list are those that it was written for.

        Raises:
            DatasetError: if one has changed, or may have another name now.
        """
        self.check_shards(file_counts, num_bytes)
        for name, (new, *_) in self.renamed(file_counts, num_bytes).items():
            raise DatasetError(
                f"{self.root}: {name}, in which samples were forgotten, is gone, and {new} may be the same file under "
                "a new name, with which they would come again; give it back its name, or run "
                f"`{self._renewing}`, which looks them up in {new} by their keys"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ListedFiles:
    """Records in files of several folders, each of which may have a list: `tombstones` has those of `folders`, in this
    order, without lists that name none of the files; it is empty if there are none. Of each folder, the names of the
    files and the numbers of their samples."""

    folders: tuple[Mapping[str, range], ...] = ()
    tombstones: tuple[Tombstones | None, ...] = ()

    def forgotten(self, versions: Sequence[int]) -> frozenset[int]:
        """The numbers of the samples forgotten under these versions of the lists; version 0: none are."""
        return frozenset(
            files[name][position]
            for files, own, version in zip(self.folders[: len(versions)], self.tombstones, versions, strict=True)
            for name, samples in (own.samples(version) if own else {}).items()
            if name in files
            for position in samples
        )


def read_lists(root: Location, files: Iterable[tuple[str, int, range]]) -> dict[str, Any]:
    """The fields of a `ListedFiles`, for the data set at `root`: of each of its files the path, the number of bytes,
    and the numbers of its samples; there are no lists if none names one of the files.

    Raises:
        DatasetError: if a list is damaged, or files have changed since.
    """
    folders: dict[str, dict[str, range]] = {}
    sizes: dict[str, dict[str, int]] = {}
    for path, num_bytes, numbers in files:
        folder, name = os.path.split(path)
        folders.setdefault(folder, {})[name] = numbers
        sizes.setdefault(folder, {})[name] = num_bytes
    paths = [location(folder) / FORGOTTEN_BRIDGE for folder in folders]
    if len(paths) > 1 and is_remote(str(root)):
        from concurrent.futures import ThreadPoolExecutor  # here: it is slow to import

        with ThreadPoolExecutor(MAX_READING) as threads:
            found = list(threads.map(lambda file: Tombstones.read(file, root), paths))
    else:
        found = [Tombstones.read(file, root) for file in paths]
    lists: list[Tombstones | None] = []
    for (folder, own_files), own in zip(folders.items(), found, strict=True):
        if own is not None:
            own.check_files({name: len(numbers) for name, numbers in own_files.items()}, sizes[folder].__getitem__)
        lists.append(own if own is not None and own.shards.keys() & own_files.keys() else None)
    return {"folders": tuple(folders.values()), "tombstones": tuple(lists) if any(lists) else ()}


def digest_of(version: TombstoneVersion, before: str) -> str:
    """The digest of a version that comes after one with the digest `before`."""
    import hashlib  # here: a command that reads no list does not wait for it

    text = before + json.dumps(_content(version), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _content(version: TombstoneVersion) -> dict[str, Any]:
    shards = {
        name: [shard.num_bytes, shard.num_samples, [list(sample) for sample in shard.samples]]
        for name, shard in version.shards.items()
    }
    return {
        "version": version.number,
        "date": version.date,
        "reason": version.reason,
        "action": version.action,
        "shards": shards,
    }


def _parsed(line: Any) -> TombstoneVersion:
    if not isinstance(line, dict) or {name: type(value) for name, value in line.items()} != _FIELDS:
        raise ValueError(f"expected {', '.join(_FIELDS)}, got {reprlib.repr(line)}")
    if line["action"] not in ACTIONS:
        raise ValueError(f"unknown action {line['action']!r}, this release knows {', '.join(ACTIONS)}")
    shards = {name: _shard(*shard) for name, shard in line["shards"].items()}
    return TombstoneVersion(line["version"], line["date"], line["reason"], line["action"], shards, line["digest"])


def _shard(num_bytes: int, num_samples: int, samples: Sequence[tuple[int, str]]) -> ShardTombstones:
    return ShardTombstones(num_bytes, num_samples, tuple((int(position), str(key)) for position, key in samples))


def _damaged(file: Location, line: int, what: str) -> DatasetError:
    return DatasetError(
        f"{file}:{line}: the list of forgotten samples is damaged: {what}. Put back a copy of it; without the file, "
        "its samples would come again"
    )
