"""The list of the samples that are forgotten: its versions.

The list of a prepared data set is its `.nv-meta/forgotten.jsonl`. Tables and JSONL files have the list of the folder
that they are in, the file `_forgotten.bridge` there, in which each of them is a shard.

Reads the file. Returns for each version the positions that are forgotten, by shard; no key is looked up. Raises
`DatasetError` if the file is not whole, or a version was changed since it was written.

Each line is one version, and changes the one before: `{"version", "date", "reason", "action", "shards", "digest"}`.
`shards` has for each shard its size in bytes, its number of samples, `[position, key]` of the samples that are
forgotten (with the action `restore`: no longer forgotten), and perhaps a digest of the shard's index or footer, which
older lists lack; with `renew` they replace all earlier ones. `digest` is a hash of the line without it and of the
previous version's digest: number and digest identify a version.
"""

import dataclasses
import functools
import itertools
import json
import os
import reprlib
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from bridge_data import storage
from bridge_data.data.withheld import (
    FORGOTTEN_BRIDGE,
    FORGOTTEN_JSONL,
    FilePaths,
    FoundList,
    ShardStamp,
    StoredFiles,
    lists_beside,
)
from bridge_data.errors import DatasetError, bridge_command, listed
from bridge_data.storage import Location, is_remote, location

ACTIONS = ("forget", "restore", "renew")

COMPARED_BYTES = 1 << 14
"""Bytes at three places of two files that are compared to find copies."""

_FIELDS = {"version": int, "date": str, "reason": str, "action": str, "shards": dict, "digest": str}


IsCopy: TypeAlias = Callable[[str, str, int], bool]
"""Whether the file at a path has the same sample at a position as the file of a name, with the same stamp and
content digest."""


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


@dataclasses.dataclass(frozen=True, eq=False)
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

    @functools.cached_property
    def forgetting(self) -> frozenset[str]:
        """The shards that have forgotten samples under the newest version."""
        return frozenset(self.samples(len(self.versions)))

    @functools.cached_property
    def base(self) -> Location:
        """The folder that the names of shards are relative to."""
        folder = self.file.parent
        return folder.parent if self.file.name == FORGOTTEN_JSONL else folder

    def check_shards(self, names: Container[str], stamp_of: Callable[[str], ShardStamp]) -> None:
        """Check that the shards are those that the list was written for.

        Raises:
            DatasetError: if one has changed.
        """
        listed = [name for name in self.shards if name in self.forgetting and name in names]
        changed = [name for name in listed if not self.shards[name].stamp.agrees(stamp_of(name))]
        if changed:
            more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
            raise DatasetError(
                f"{self.root}: shard {changed[0]}{more} has changed since samples in it were forgotten, and their "
                f"positions may be those of others now; run `{self._renewing}`, which looks them up again by their keys"
            )

    def renamed(
        self, names: Collection[str], stamp_of: Callable[[str], ShardStamp], *, are_tars: bool
    ) -> dict[str, list[str]]:
        """The files with forgotten samples that are no longer below `base`, if others have their sizes and numbers of
        samples, and for tars digests that agree: the names of these.

        Raises:
            DatasetError: if several tars may be the same one.
        """
        gone = self.forgetting - set(names)
        if not gone:
            return {}
        alike = _Alike(sorted(set(names) - self.forgetting), stamp_of)
        found: dict[str, list[str]] = {}
        for name in sorted(gone):
            stamp = self.shards[name].stamp
            new = alike.of(stamp if are_tars else stamp._replace(digest=None))
            if not new or storage.is_file(self.base / name):
                continue
            found[name] = new
            if are_tars and len(new) > 1:
                raise DatasetError(
                    f"{self.root}: {name}, in which samples were forgotten, is gone, and each of {listed(new)} may be "
                    f"the same tar under a new name. Give it back its name; if it was removed, put an empty tar there. "
                    f"Then run `{bridge_command('prepare', self.root)}`, and after an empty tar `{self._renewing}`"
                )
        return found

    def check_files(self, names: Collection[str], stamp_of: Callable[[str], ShardStamp], *, are_tars: bool) -> None:
        """Check that these files are those that the list was written for, under their names of then.

        Raises:
            DatasetError: if one has changed, or may have another name now.
        """
        self.check_shards(names, stamp_of)
        for name, (new, *_) in self.renamed(names, stamp_of, are_tars=are_tars).items():
            raise self._unknown_name(name, new)

    def names_now(
        self,
        names: Collection[str],
        stamp_of: Callable[[str], ShardStamp],
        content_of: Callable[[str], bytes],
        is_copy: "IsCopy",
        *,
        are_tars: bool,
    ) -> dict[str, list[str]]:
        """By the names of the files with forgotten samples, those that they have among `names`: their own, those of
        copies, and of a tar that got another name, that one, if a single tar has its digest, which is also of its keys.

        Raises:
            DatasetError: if one has changed, or may have another name now that is not certain.
        """
        if not self.forgetting:
            return {}
        stamp_of, content_of = functools.cache(stamp_of), functools.cache(content_of)
        self.check_shards(names, stamp_of)
        found = {name: [name] for name in self.forgetting if name in names}
        for name, others in self.renamed(names, stamp_of, are_tars=are_tars).items():
            stamp = self.shards[name].stamp
            same = [other for other in others if stamp.digest is not None and stamp_of(other) == stamp]
            if len(same) != 1 or not are_tars:
                raise self._unknown_name(name, others[0])
            found[name] = same
        alike, samples = _Alike(names, stamp_of), self.samples(len(self.versions))
        by_content: dict[ShardStamp, dict[bytes, list[str]]] = {}
        for name in sorted(self.forgetting):
            stamp, now = self.shards[name].stamp, found.get(name, [])
            seen = stamp_of(name) if name in names else stamp  # an older list has no digests
            path = self.base / name
            agreeing = alike.of(seen)
            if len(agreeing) <= len(now) or not storage.is_file(path):
                continue
            if storage.size_bytes(path) != stamp.num_bytes:  # another tar has this name now
                others = alike.of(stamp) if are_tars and stamp.digest is not None else []
                copies = [one for one in others if one not in (name, *now) and stamp_of(one) == stamp]
            else:
                if seen not in by_content:  # each file is read once
                    by_content[seen] = groups = dict[bytes, list[str]]()
                    for one in agreeing:
                        groups.setdefault(content_of(one), []).append(one)
                own = content_of(name) if name in names else content_digest(str(path), stamp.num_bytes)
                others = [one for one in by_content[seen].get(own, ()) if one not in (name, *now)]
                copies = [one for one in others if is_copy(str(path), one, next(iter(samples[name])))]
            if copies:
                found[name] = [*now, *copies]
        return found

    def _unknown_name(self, name: str, new: str) -> DatasetError:
        return DatasetError(
            f"{self.root}: {name}, in which samples were forgotten, is gone, and {new} may be the same file under "
            "a new name, with which they would come again; give it back its name, or run "
            f"`{self._renewing}`, which looks them up in {new} by their keys"
        )


class _Alike:
    """Files by their stamps."""

    def __init__(self, names: Iterable[str], stamp_of: Callable[[str], ShardStamp]) -> None:
        self._groups: dict[tuple[int, int], dict[str | None, dict[str | None, list[str]]]] = {}
        for name in names:
            stamp = stamp_of(name)
            kinds = self._groups.setdefault(stamp[:2], {})
            kinds.setdefault(stamp.kind, {}).setdefault(stamp.digest, []).append(name)

    def of(self, stamp: ShardStamp) -> list[str]:
        """The files whose stamps agree with `stamp`."""
        found: list[str] = []
        for kind, by_digest in self._groups.get(stamp[:2], {}).items():
            is_known = kind is not None and kind == stamp.kind
            found += by_digest.get(stamp.digest, []) if is_known else itertools.chain(*by_digest.values())
        return found


Version: TypeAlias = tuple[int, str]
"""(number, digest) of a version of lists that are one: the sum of the numbers of their newest versions, and the digests
of these, with `+` between them; (0, "") without a list. With one list, number and digest of its newest version."""

NO_VERSION: Version = (0, "")


def counts_at(version: Sequence[Any], lists: Sequence[Sequence[str]]) -> list[int] | None:
    """The number of the newest version of each list at `version`, 0 for one that joined later; None if the lists, whose
    versions have these digests, do not have it."""
    number, digest = version
    wanted = set(filter(None, digest.split("+")))
    counts = [max((at for at, one in enumerate(own, start=1) if one in wanted), default=0) for own in lists]
    return counts if wanted <= {one for own in lists for one in own} and sum(counts) >= number else None


@dataclasses.dataclass(frozen=True)
class ForgetList:
    """The lists that name files of one data set, or of one folder, as one: `files` has for each of `lists` the numbers
    of the files that its names stand for."""

    lists: tuple[Tombstones, ...]
    files: tuple[Mapping[str, Sequence[int]], ...]

    @property
    def digests(self) -> list[list[str]]:
        """The digests of the versions of each list, from version 1 on."""
        return [[version.digest for version in own.versions] for own in self.lists]

    @property
    def newest(self) -> Version:
        """The newest version."""
        digests = sorted(own.newest.digest for own in self.lists)
        return sum(len(own.versions) for own in self.lists), "+".join(digests)

    def samples(self, version: Version) -> Iterator[tuple[int, int, str]]:
        """(number of the file, position, key) of the samples that are forgotten under a version that the lists have."""
        counts = counts_at(version, self.digests) or [0] * len(self.lists)
        for own, count, files in zip(self.lists, counts, self.files, strict=True):
            for name, samples in own.samples(count).items():
                for file in files.get(name, ()):
                    yield from ((file, position, key) for position, key in samples.items())


def newest_versions(lists: Iterable[ForgetList | None]) -> list[Version]:
    """The newest version of each list."""
    return [NO_VERSION if own is None else own.newest for own in lists]


def read_lists(files: StoredFiles) -> tuple[ForgetList | None, ...]:
    """The lists that name these files: one for a data set of tars, and else one for each folder with files, None for
    one that no list is of.

    Raises:
        DatasetError: if a list is damaged, or files have changed since.
    """
    root, paths_of, are_tars = files.root, files.paths, files.are_tars
    paths = FilePaths.of(files)
    lists = _parsed_lists(lists_beside(files, paths), root)
    num_folders = 1 if are_tars else len(paths.numbers)
    if not lists:
        return (None,) * num_folders
    known = paths.known(paths_of)
    groups = {number: 0 if are_tars else group for group, own in enumerate(paths.numbers.values()) for number in own}
    found: list[dict[Tombstones, dict[str, list[int]]]] = [{} for _ in range(num_folders)]
    whole = os.path.realpath(root) if isinstance(root, Path) else str(root)
    below = _paths_below({base.rstrip("/") for _, own_bases in lists for base in own_bases}, known)
    for own, own_bases in lists:
        named = _names_below(own_bases, below, known, is_deep=own.file.name == FORGOTTEN_JSONL)
        by_name = _ByName(named, paths_of, files.stamp, files.has_same)
        now = own.names_now(named, by_name.stamp, by_name.content, by_name.is_copy, are_tars=are_tars)
        for name in own.shards.keys() & named.keys() | now.keys():
            for file in dict.fromkeys(file for new in now.get(name, [name]) for file in named[new]):
                found[groups[file]].setdefault(own, {}).setdefault(name, []).append(file)
        if are_tars and whole in own_bases:  # all split parts have it in their states
            found[0].setdefault(own, {})
    return tuple(ForgetList(tuple(own), tuple(own.values())) if own else None for own in found)


def _parsed_lists(files: Sequence[FoundList], root: Location) -> list[tuple[Tombstones, list[str]]]:
    """The lists in `files`, each with the folders that its names are relative to; one that is found in several ways
    comes once."""
    found: dict[str, tuple[Tombstones, list[str]]] = {}
    for base, file, data in files:
        path = str(file) if is_remote(str(file)) else os.path.realpath(file)
        if path not in found:
            of = root if file.name == FORGOTTEN_BRIDGE else location(base)
            found[path] = Tombstones.parse(data, file, of), []
        found[path][1].append(base)
    return [found[path] for path in sorted(found)]


class _ByName(NamedTuple):
    """What is known of files, by the names that a list has for them."""

    numbers: Mapping[str, Sequence[int]]
    files: Sequence[str]
    stamp_of: Callable[[int], ShardStamp]
    has_same: Callable[[str, int, int], bool] | None

    def stamp(self, name: str) -> ShardStamp:
        return self.stamp_of(self.numbers[name][0])

    def content(self, name: str) -> bytes:
        return content_digest(self.files[self.numbers[name][0]], self.stamp(name).num_bytes)

    def is_copy(self, path: str, name: str, position: int) -> bool:
        return self.has_same is None or self.has_same(path, self.numbers[name][0], position)


def content_digest(path: str, num_bytes: int) -> bytes:
    """A digest of some bytes at the beginning, in the middle and at the end of a file of `num_bytes` bytes."""
    import hashlib  # here: few data have a list

    width = min(COMPARED_BYTES, num_bytes)
    starts = (0, (num_bytes - width) // 2, num_bytes - width)
    return hashlib.blake2b(b"".join(storage.read(path, start, width) for start in starts), digest_size=16).digest()


def _paths_below(bases: Container[str], paths: Iterable[str]) -> dict[str, list[str]]:
    """The paths below each of the folders `bases`."""
    found: dict[str, list[str]] = {}
    for path in paths:
        folder = path
        while "/" in folder:
            folder = folder.rpartition("/")[0]
            if folder in bases:
                found.setdefault(folder, []).append(path)
    return found


def _names_below(
    bases: Sequence[str], below: Mapping[str, Sequence[str]], known: Mapping[str, list[int]], *, is_deep: bool
) -> dict[str, list[int]]:
    """The numbers of the files by their paths relative to the folders `bases`; directly in these, unless `is_deep`."""
    named: dict[str, list[int]] = {}
    for base in (base.rstrip("/") for base in bases):
        for path in below.get(base, ()):
            name = path[len(base) + 1 :]
            if is_deep or "/" not in name:
                own = named.setdefault(name, [])
                own += [number for number in known[path] if number not in own]
    return named


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
