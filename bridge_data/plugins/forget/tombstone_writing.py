"""Forgetting samples: keys are resolved to positions in shards, and written to lists as one more version.

Reads data on a disk: a prepared folder, tables or a JSONL file, also where they differ from their lists; keys as users
know them; a reason. Writes one more version of each list (see `shards.tombstones`), or nothing. All wrong keys are
named; a list appears whole, and earlier versions stay unchanged.
"""

import bisect
import contextlib
import dataclasses
import datetime
import functools
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bridge_data import storage
from bridge_data.data import Records
from bridge_data.data.jsonl_file import JsonlLines
from bridge_data.data.metadata import INFO_JSON, INFO_YAML, META_FOLDER
from bridge_data.data.prepared import PreparedDataset
from bridge_data.data.sample_keys import find, fix_repeated_keys
from bridge_data.data.shard_set import ShardSet
from bridge_data.data.withheld import FORGOTTEN_BRIDGE, FORGOTTEN_JSONL, ShardStamp, files_of
from bridge_data.errors import ConfigError, listed
from bridge_data.limits import DEFAULT_LIMITS
from bridge_data.plan.declared import Reference, Scope
from bridge_data.plan.formats import format_of
from bridge_data.plugins.forget.tombstones import (
    ShardTombstones,
    Tombstones,
    TombstoneVersion,
    digest_of,
)
from bridge_data.prepare.commit import preparing_alone
from bridge_data.runs.named_samples import meanings, pack_members
from bridge_data.storage.atomic import write_file, writing

MAX_NAMED = 100
"""Maximum wrong keys that an error names."""


class KeyMatch(NamedTuple):
    """A sample with a key that was asked for: the number of its list, its shard there, its position, its key."""

    list_number: int
    shard: str
    position: int
    key: str


class ForgettableShard(NamedTuple):
    """A shard or file of the data: the list that it belongs on, its name there, what users call it, and its stamp."""

    list_file: Path
    name: str
    called: Sequence[str]
    stamp: ShardStamp


class ForgettablePart(NamedTuple):
    """Records of the data, their shards, and (number of the shard, position in it) of a sample. Those that `move` have
    keys of their own, and may come into other shards when the data are written again."""

    records: Records
    shards: Sequence[ForgettableShard]
    locate: Callable[[int], tuple[int, int]]
    move: bool = False


class ListFile:
    """A list that is there or can be written: its file, and names and stamps of the shards of this data. One that
    `is_shared` may have the shards of other data, too."""

    def __init__(self, path: Path, is_shared: bool) -> None:
        self.path, self.is_shared = path, is_shared
        self.stamps: dict[str, ShardStamp] = {}

    def read(self, root: Path) -> Tombstones | None:
        """The list, for the data at `root`; None if there is none."""
        return Tombstones.read(self.path, root)


class Forgettable:
    """The data at `root`, with their `lists`. Prepared tars have a list of their own, `own`, also without shards."""

    def __init__(self, root: Path, parts: Sequence[ForgettablePart], own: Path | None = None) -> None:
        self.root, self._parts, self.are_tars = root, parts, own is not None
        files = [*([] if own is None else [own]), *(shard.list_file for part in parts for shard in part.shards)]
        self._numbers = {file: number for number, file in enumerate(dict.fromkeys(files))}
        self.lists = [ListFile(file, file != own) for file in self._numbers]
        self._called: dict[tuple[int, str], str] = {}
        self._all_called: set[str] = set()
        for part in parts:
            for shard in part.shards:
                number = self._numbers[shard.list_file]
                self.lists[number].stamps[shard.name] = shard.stamp
                self._called[number, shard.name] = shard.called[0]
                self._all_called.update(shard.called)

    def find(self, names: Iterable[str]) -> dict[str, list[KeyMatch]]:
        """The samples that each name (`KEY`, `SHARD:KEY` or `SHARD/KEY`) may stand for."""
        found: dict[str, dict[KeyMatch, None]] = {name: {} for name in names}
        wanted: dict[str, list[tuple[str | None, str]]] = {}  # by key: the shard (None: any) and the name
        for name in found:
            for shard, key in meanings(name):
                if shard is None or shard in self._all_called:
                    wanted.setdefault(key, []).append((shard, name))
        for called, match in self._find(self._parts, wanted):
            for shard, name in wanted[match.key]:
                if shard is None or shard in called:
                    found[name][match] = None
        return {name: [*matches] for name, matches in found.items()}

    def find_moved(self, keys: Collection[str]) -> Iterator[KeyMatch]:
        """The samples with one of `keys`, in all shards; none if shards number their samples."""
        return (match for _, match in self._find([part for part in self._parts if part.move and keys], keys))

    def _find(
        self, parts: Iterable[ForgettablePart], keys: Collection[str]
    ) -> Iterator[tuple[Sequence[str], KeyMatch]]:
        """(what users call the shard, sample) of all samples with one of `keys`."""
        for part in parts:
            for number, key in find(part.records, keys):
                at, position = part.locate(number)
                shard = part.shards[at]
                yield shard.called, KeyMatch(self._numbers[shard.list_file], shard.name, position, key)

    def shard_name(self, list_number: int, shard: str) -> str:
        """What users call a shard of a list."""
        return self._called.get((list_number, shard), shard)


@contextlib.contextmanager
def changing(root: Path) -> Iterator[Forgettable]:
    """The data at `root`, whose lists no other process changes meanwhile.

    Raises:
        ConfigError: if they can have no list.
        DatasetError: if they are damaged, or another process holds them.
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
        return _tables(root.absolute())
    if found.name == "jsonl":
        path, real = root.absolute(), Path(os.path.realpath(root))
        lines = JsonlLines.open(path, "")
        shard = ForgettableShard(real.with_name(FORGOTTEN_BRIDGE), real.name, (real.name, path.name), lines.stamp)
        return Forgettable(path, [ForgettablePart(lines, [shard], lambda number: (0, number))])
    if found.name == "folder":
        return _prepared(root)
    raise ConfigError(
        f"a list of forgotten samples is for prepared folders, tables and JSONL files, but {root} "
        f"{found.describe(str(root))} first, or leave the samples out with `where: __key__ not in ('KEY', 'KEY')`"
    )


def _tables(root: Path) -> Forgettable:
    found, parts = format_of(str(root)), []
    for split_part in found.splits(root, DEFAULT_LIMITS):  # they may have different columns, so some may have keys
        records = found.with_keys(Reference(path=str(root), scope=Scope(split_part=split_part)))
        files, shards, ends = files_of(records), [], list[int]()
        assert files is not None
        for number, name in enumerate(files.names):
            path, stamp = Path(os.path.realpath(files.paths[number])), files.stamp(number)
            shards.append(ForgettableShard(path.with_name(FORGOTTEN_BRIDGE), path.name, [name], stamp))
            ends.append(stamp.num_samples + (ends[-1] if ends else 0))
        has_keys = bool(fix_repeated_keys(records))
        parts.append(ForgettablePart(records, shards, functools.partial(_located, ends), has_keys))
    return Forgettable(root, parts)


def _located(ends: Sequence[int], index: int) -> tuple[int, int]:
    """(number of the file, position in it) of a sample; `ends` are the numbers of the samples after each file."""
    file = bisect.bisect_right(ends, index)
    return file, index - (ends[file - 1] if file else 0)


def _prepared(root: Path) -> Forgettable:
    data, own, real_root = (
        PreparedDataset.open(root),
        root / META_FOLDER / FORGOTTEN_JSONL,
        Path(os.path.realpath(root)),
    )
    before = Tombstones.read(own, root)

    @functools.cache
    def prepared_above(folder: Path) -> Path | None:
        """The first prepared folder at or above `folder`; None if there is none."""
        for above in (folder, *folder.parents):
            if above == real_root or any((above / META_FOLDER / name).is_file() for name in (INFO_JSON, INFO_YAML)):
                return above
        return None

    def home(shard: str) -> tuple[Path, str]:
        """(the list that a shard belongs on, its name there): the own one if it has it; else that of the prepared
        folder that its file is really in, which is another one for a link, or of the folder next to the file if no
        folder above is prepared."""
        if before is not None and shard in before.shards:
            return own, shard
        path = Path(os.path.realpath(root / shard))
        folder = prepared_above(path.parent)
        if folder is None:
            return path.with_name(FORGOTTEN_BRIDGE), path.name
        listing = root if folder == real_root else folder
        return listing / META_FOLDER / FORGOTTEN_JSONL, path.relative_to(folder).as_posix()

    names, counts = tuple(data.shard_counts), tuple(data.shard_counts.values())
    records = ShardSet(root=root, split_part="", names=names, stored_counts=counts, index=data.index)
    shards = [ForgettableShard(*home(name), [name], data.stamp(name)) for name in names]
    return Forgettable(root, [ForgettablePart(records, shards, records.locate)], own)


@dataclasses.dataclass(frozen=True, slots=True)
class ForgetReport:
    """What was written: the lists as they are now, the number of samples changed by it, of all samples of the data that
    are now forgotten, and ignored keys."""

    lists: Sequence[Tombstones]
    num_changed: int
    num_forgotten: int
    ignored: Sequence[str]


def read_tombstones(root: Path) -> list[Tombstones]:
    """The lists of the data at `root`, whether or not files have changed since."""
    return [found for file in open_forgettable(root).lists if (found := file.read(root)) is not None]


def forget_samples(
    root: Path, keys: Iterable[str], reason: str, *, restore: bool = False, ignore_unknown: bool = False
) -> ForgetReport:
    """Add the samples `keys` (`KEY`, `SHARD:KEY` or `SHARD/KEY`; of a pack, these with commas) to the list; with
    `restore`, remove them from it. All samples of a shard that share a key go together.

    Raises:
        ConfigError: naming all keys that no sample has, or samples of several shards have; nothing is written. With
            `ignore_unknown`, only the latter are an error.
        DatasetError: if the data set has no index of its keys, or is damaged.
    """
    with changing(root) as data:
        before = [file.read(data.root) for file in data.lists]
        for file, own in zip(data.lists, before, strict=True):
            if own is not None:
                own.check_files(file.stamps, file.stamps.__getitem__, are_tars=data.are_tars)
        known = [{} if own is None else own.samples(len(own.versions)) for own in before]
        found, unknown, ambiguous = _resolved(data, keys)
        if restore:
            unknown += [
                name
                for name, samples in found.items()
                if not any(one.position in known[one.list_number].get(one.shard, {}) for one in samples)
            ]
        _check(data.root, unknown if not ignore_unknown else [], ambiguous, restore=restore)
        matches = (
            one
            for samples in found.values()
            for one in samples
            if (one.position in known[one.list_number].get(one.shard, {})) == restore
        )
        return _written(data, before, matches, reason, "restore" if restore else "forget", unknown)


def renew_tombstones(root: Path, reason: str) -> ForgetReport:
    """Look up all forgotten samples again in the current shards; drop those that are gone. In tables with keys, those
    that are no longer in their file are looked up in all files.

    Raises:
        ConfigError: if there is no list.
    """
    with changing(root) as data:
        before = [file.read(data.root) for file in data.lists]
        if not any(before):
            raise ConfigError(f"{root}: no samples of it were forgotten, so there is no list to renew")
        matches: list[KeyMatch] = []
        gone: dict[str, str] = {}  # by name: the key
        elsewhere: set[str] = set()  # keys in files that are no longer there
        others: list[dict[str, ShardTombstones]] = [{} for _ in before]
        for number, (file, own) in enumerate(zip(data.lists, before, strict=True)):
            if own is None:
                continue
            known = own.samples(len(own.versions))
            renamed = own.renamed(file.stamps, file.stamps.__getitem__, are_tars=data.are_tars)
            # Files of other data stay as they are.
            others[number] = {
                name: dataclasses.replace(own.shards[name], samples=tuple(sorted(samples.items())))
                for name, samples in known.items()
                if file.is_shared and name not in file.stamps and name not in renamed
            }
            for name in others[number]:
                if not storage.is_file(own.base / name):
                    elsewhere.update(known[name].values())
            wanted = {
                f"{data.shard_name(number, shard)}:{key}": (number, shard, key)
                for listed in known.keys() - others[number].keys()
                for shard in renamed.get(listed, [listed])
                for key in known[listed].values()
            }
            lost = _look_up(data, wanted, matches)
            # `prepare --fix-duplicates` has put the keys below the name of the shard.
            longer = {name: (number, shard, f"{shard}/{key}") for name, (_, shard, key) in lost.items()}
            prefixed = {f"{data.shard_name(*one[:2])}:{one[2]}": one for one in longer.values()}
            still = _look_up(data, prefixed, matches)
            gone |= {name: lost[name][2] for name, one in longer.items() if one in still.values()}
        moved = list(data.find_moved({*gone.values(), *elsewhere}))
        found_keys = {one.key for one in moved}
        ignored = [name for name, key in gone.items() if key not in found_keys]
        return _written(data, before, (*matches, *moved), reason, "renew", ignored, others)


def _look_up(
    data: Forgettable, wanted: Mapping[str, tuple[int, str, str]], matches: list[KeyMatch]
) -> dict[str, tuple[int, str, str]]:
    """Add the samples (number of the list, shard, key) that are `wanted`, by name, to `matches`; return those that are
    not there."""
    lost = {}
    for name, samples in data.find(wanted).items():
        found = [one for one in samples if (one.list_number, one.shard, one.key) == wanted[name]]
        matches += found
        if not found:
            lost[name] = wanted[name]
    return lost


def _resolved(
    data: Forgettable, keys: Iterable[str]
) -> tuple[dict[str, list[KeyMatch]], list[str], dict[str, list[str]]]:
    """(The samples by the name given, names that no sample has, the shards of names that samples of several have)."""
    found, unknown, ambiguous = {}, [], {}
    all_found = data.find(dict.fromkeys(keys))
    packs = {name: pack_members(name) for name, samples in all_found.items() if not samples}
    of_packs = data.find(itertools.chain.from_iterable(packs.values()))
    for name, members in packs.items():
        if members and all(of_packs[one] for one in members):  # else the name may be a key that is missing
            del all_found[name]
            all_found |= {one: of_packs[one] for one in members}
    for name, samples in all_found.items():
        if len({(one.list_number, one.shard, one.key) for one in samples}) > 1:
            ambiguous[name] = [data.shard_name(one.list_number, one.shard) for one in samples]
        elif samples:
            found[name] = samples
        else:
            unknown.append(name)
    return found, unknown, ambiguous


def _check(root: Path, unknown: Sequence[str], ambiguous: Mapping[str, Sequence[str]], *, restore: bool) -> None:
    """Raise an error if there are unknown or ambiguous names."""
    lines = [f"{name!r}: in {listed(shards)}: say which, as SHARD:KEY" for name, shards in ambiguous.items()]
    what = "is not forgotten, or no sample has this key" if restore else "no sample has this key"
    lines += [f"{name!r}: {what}" for name in unknown]
    if lines:
        more = f"\n  and {len(lines) - MAX_NAMED:,} more" if len(lines) > MAX_NAMED else ""
        are = "key is" if len(lines) == 1 else "keys are"
        fix = " (--ignore-unknown leaves out those that no sample has)" if unknown else ""
        raise ConfigError(
            f"{root}: {len(lines):,} {are} wrong, and nothing was written{fix}:\n  "
            + "\n  ".join(lines[:MAX_NAMED])
            + more
        )


def _written(
    data: Forgettable,
    before: Sequence[Tombstones | None],
    matches: Iterable[KeyMatch],
    reason: str,
    action: str,
    ignored: Sequence[str],
    others: Sequence[Mapping[str, ShardTombstones]] = (),
) -> ForgetReport:
    """Write one more version of each list, with these samples, and with the shards `others` as they are. A list that
    would stay as it is, is not written, unless it is renewed."""
    changed: list[dict[str, dict[int, str]]] = [defaultdict(dict) for _ in data.lists]
    for one in matches:
        changed[one.list_number][one.shard][one.position] = one.key
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    after, num_forgotten = [], 0
    for number, (file, own, new) in enumerate(zip(data.lists, before, changed, strict=True)):
        if new or (own and action == "renew"):
            versions = () if own is None else own.versions
            shards = {name: ShardTombstones(file.stamps[name], tuple(sorted(new[name].items()))) for name in new}
            kept = others[number] if others else {}
            version = TombstoneVersion(
                len(versions) + 1, date, reason, action, dict(sorted({**kept, **shards}.items())), ""
            )
            version = dataclasses.replace(version, digest=digest_of(version, versions[-1].digest if versions else ""))
            own = Tombstones(file.path, data.root, (*versions, version))
            with writing(file.path.parent):
                # Names and reasons may have bytes that are no UTF-8.
                write_file(file.path, "".join(one.line() for one in own.versions).encode(errors="surrogatepass"))
        if own is not None:
            after.append(own)
            forgotten = own.samples(len(own.versions))
            num_forgotten += sum(len(samples) for name, samples in forgotten.items() if name in file.stamps)
    num_changed = sum(len(samples) for new in changed for samples in new.values())
    return ForgetReport(after, num_changed, num_forgotten, ignored)
