"""The list of the samples that are forgotten: its versions.

The list of a prepared data set is its `.nv-meta/forgotten.jsonl`. Tables and JSONL files have the list of the folder
that they are in, the file `_forgotten.bridge` there, in which each of them is a shard.

Enters: the bytes of the file. Leaves: for each version, the positions that are forgotten, by shard. Guarantee: the file
is whole, and no version was changed since it was written; no key is looked up.

Each line is one version, and changes the one before: `{"version", "date", "reason", "action", "shards", "digest"}`.
`shards` has for each shard its size in bytes, its number of samples, `[position, key]` of the samples that are
forgotten (with the action `restore`: no longer forgotten), and perhaps a digest of the shard's index or footer, which
older lists lack; with `renew` they replace all earlier ones. `digest` is a hash of the line without it and of the
previous version's digest: number and digest identify a version.
"""

import dataclasses
import functools
import json
import os
import reprlib
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bridge_data import storage
from bridge_data.errors import DatasetError, bridge_command
from bridge_data.shards.metadata import FORGOTTEN_BRIDGE
from bridge_data.storage import Location, is_remote, location

ACTIONS = ("forget", "restore", "renew")

MAX_READING = 16
"""Maximum lists that are read at the same time."""

_FIELDS = {"version": int, "date": str, "reason": str, "action": str, "shards": dict, "digest": str}


class ShardStamp(NamedTuple):
    """What is known of a shard on opening, to notice that it was rewritten: size, number of samples, and a digest; None
    if none is at hand. The kind of a digest stands before a colon, if there are several."""

    num_bytes: int
    num_samples: int
    digest: str | None

    def agrees(self, other: "ShardStamp") -> bool:
        """Whether both may be of the same shard. Digests are compared if both have one, of the same kind."""
        kinds = [None if one.digest is None else one.digest.rpartition(":")[0] for one in (self, other)]
        is_known = None not in kinds and kinds[0] == kinds[1]
        return self[:2] == other[:2] and (not is_known or self.digest == other.digest)


@dataclasses.dataclass(frozen=True, slots=True)
class ShardTombstones:
    """The samples of a version in one shard, which had this stamp."""

    stamp: ShardStamp
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

    def check_shards(self, names: Container[str], stamp_of: Callable[[str], ShardStamp]) -> None:
        """Check that the shards are those that the list was written for.

        Raises:
            DatasetError: if one has changed.
        """
        listed = [name for name in self.samples(len(self.versions)) if name in names]
        changed = [name for name in listed if not self.shards[name].stamp.agrees(stamp_of(name))]
        if changed:
            more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
            raise DatasetError(
                f"{self.root}: shard {changed[0]}{more} has changed since samples in it were forgotten, and their "
                f"positions may be those of others now; run `{self._renewing}`, which looks them up again by their keys"
            )

    def renamed(self, names: Collection[str], stamp_of: Callable[[str], ShardStamp]) -> dict[str, list[str]]:
        """The files with forgotten samples that are no longer in the folder of the list, if others have their sizes and
        numbers of samples: the names of these."""
        listed = self.samples(len(self.versions))
        others: dict[tuple[int, int], list[str]] = {}
        for name in sorted(set(names) - listed.keys()):
            others.setdefault(stamp_of(name)[:2], []).append(name)
        found = {name: others.get(self.shards[name].stamp[:2], []) for name in listed.keys() - set(names)}
        return {name: new for name, new in found.items() if new and not storage.is_file(self.file.parent / name)}

    def check_files(self, names: Collection[str], stamp_of: Callable[[str], ShardStamp]) -> None:
        """Check that these files in the folder of the list are those that it was written for.

        Raises:
            DatasetError: if one has changed, or may have another name now.
        """
        self.check_shards(names, stamp_of)
        for name, (new, *_) in self.renamed(names, stamp_of).items():
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


def newest_numbers(lists: Iterable[Tombstones | None]) -> list[int]:
    """The number of the newest version of each list; 0 stands for no list."""
    return [0 if own is None else own.newest.number for own in lists]


def read_lists(root: Location, files: Iterable[tuple[str, ShardStamp, range]]) -> dict[str, Any]:
    """The fields of a `ListedFiles`, for the data set at `root`: of each of its files the path, the stamp, and the
    numbers of its samples; there are no lists if none names one of the files.

    Raises:
        DatasetError: if a list is damaged, or files have changed since.
    """
    folders: dict[str, dict[str, range]] = {}
    stamps: dict[str, dict[str, ShardStamp]] = {}
    for path, stamp, numbers in files:
        folder, name = os.path.split(path)
        folders.setdefault(folder, {})[name] = numbers
        stamps.setdefault(folder, {})[name] = stamp
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
            own.check_files(own_files, stamps[folder].__getitem__)
        lists.append(own if own is not None and own.shards.keys() & own_files.keys() else None)
    return {"folders": tuple(folders.values()), "tombstones": tuple(lists) if any(lists) else ()}


def digest_of(version: TombstoneVersion, before: str) -> str:
    """The digest of a version that comes after one with the digest `before`."""
    import hashlib  # here: a command that reads no list does not wait for it

    text = before + json.dumps(_content(version), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _content(version: TombstoneVersion) -> dict[str, Any]:
    shards: dict[str, list[Any]] = {}
    for name, shard in version.shards.items():
        num_bytes, num_samples, digest = shard.stamp
        shards[name] = [num_bytes, num_samples, [list(sample) for sample in shard.samples]]
        shards[name] += [] if digest is None else [digest]
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


def _shard(
    num_bytes: int, num_samples: int, samples: Sequence[tuple[int, str]], digest: str | None = None
) -> ShardTombstones:
    stamp = ShardStamp(num_bytes, num_samples, None if digest is None else str(digest))
    return ShardTombstones(stamp, tuple((int(position), str(key)) for position, key in samples))


def _damaged(file: Location, line: int, what: str) -> DatasetError:
    return DatasetError(
        f"{file}:{line}: the list of forgotten samples is damaged: {what}. Put back a copy of it; without the file, "
        "its samples would come again"
    )
