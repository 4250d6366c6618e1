"""Writing a version of the list of forgotten samples: keys are resolved to positions in shards.

Enters: data on a disk (see `forgettable`), keys as users know them, a reason. Leaves: one more version of each list
(see `shards.tombstones`), or nothing. Guarantee: all wrong keys are named; a list appears whole, and earlier versions
stay unchanged.
"""

import dataclasses
import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bridge_data import storage
from bridge_data.errors import ConfigError, listed
from bridge_data.prepare.forgettable import Forgettable, KeyMatch, ListFile, changing, open_forgettable
from bridge_data.shards.tombstones import ShardTombstones, Tombstones, TombstoneVersion, digest_of
from bridge_data.storage.atomic import write_file, writing

MAX_NAMED = 100
"""Maximum wrong keys that an error names."""

Changed = Mapping[str, Mapping[int, str]]
"""By shard: keys by position."""


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
    """Add the samples `keys` (`KEY`, `SHARD:KEY` or `SHARD/KEY`) to the list; with `restore`, remove them from it. All
    samples of a shard that share a key go together.

    Raises:
        ConfigError: naming all keys that no sample has, or samples of several shards have; nothing is written. With
            `ignore_unknown`, only the latter are an error. DatasetError: if the data set has no index of its keys, or
            is damaged.
    """
    with changing(root) as data:
        before = [file.read(data.root) for file in data.lists]
        for file, own in zip(data.lists, before, strict=True):
            if own is not None:
                own.check_files(file.names, file.stamp_of, are_tars=data.are_tars)
        known = [{} if own is None else own.samples(len(own.versions)) for own in before]
        found, unknown, ambiguous = _resolved(data, keys)
        if restore:
            unknown += [
                name
                for name, samples in found.items()
                if not any(one.position in known[one.list_number].get(one.shard, {}) for one in samples)
            ]
        _check(data.root, unknown if not ignore_unknown else [], ambiguous, restore=restore)
        changed = [
            _by_shard(
                one
                for samples in found.values()
                for one in samples
                if one.list_number == number and (one.position in own.get(one.shard, {})) == restore
            )
            for number, own in enumerate(known)
        ]
        after = [
            _written(file, data.root, own, new, reason, "restore" if restore else "forget") if new else own
            for file, own, new in zip(data.lists, before, changed, strict=True)
        ]
        return _report(data, after, changed, unknown)


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
            renamed = own.renamed(file.names, file.stamp_of, are_tars=data.are_tars)
            # Files of other data stay as they are.
            others[number] = {
                name: dataclasses.replace(own.shards[name], samples=tuple(sorted(samples.items())))
                for name, samples in known.items()
                if file.is_shared and name not in file.names and name not in renamed
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
        changed = [
            _by_shard(one for one in (*matches, *moved) if one.list_number == number) for number in range(len(before))
        ]
        after = [
            _written(file, data.root, own, new, reason, "renew", kept) if own or new else None
            for file, own, new, kept in zip(data.lists, before, changed, others, strict=True)
        ]
        found_keys = {one.key for one in moved}
        return _report(data, after, changed, [name for name, key in gone.items() if key not in found_keys])


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


def _by_shard(samples: Iterable[KeyMatch]) -> dict[str, dict[int, str]]:
    changed: dict[str, dict[int, str]] = defaultdict(dict)
    for one in samples:
        changed[one.shard][one.position] = one.key
    return dict(changed)


def _resolved(
    data: Forgettable, keys: Iterable[str]
) -> tuple[dict[str, list[KeyMatch]], list[str], dict[str, list[str]]]:
    """(The samples by the name given, names that no sample has, the shards of names that samples of several have)."""
    found, unknown, ambiguous = {}, [], {}
    for name, samples in data.find(dict.fromkeys(keys)).items():
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
        way_out = " (--ignore-unknown leaves out those that no sample has)" if unknown else ""
        raise ConfigError(
            f"{root}: {len(lines):,} {are} wrong, and nothing was written{way_out}:\n  "
            + "\n  ".join(lines[:MAX_NAMED])
            + more
        )


def _written(
    file: ListFile,
    root: Path,
    before: Tombstones | None,
    changed: Changed,
    reason: str,
    action: str,
    others: Mapping[str, ShardTombstones] | None = None,
) -> Tombstones:
    """The list with one more version, with these samples, and the shards `others` as they are."""
    versions = () if before is None else before.versions
    shards = {name: ShardTombstones(file.stamp_of(name), tuple(sorted(changed[name].items()))) for name in changed}
    shards = dict(sorted({**(others or {}), **shards}.items()))
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    new = TombstoneVersion(len(versions) + 1, date, reason, action, shards, "")
    versions = (*versions, dataclasses.replace(new, digest=digest_of(new, versions[-1].digest if versions else "")))
    with writing(file.path.parent):
        # Names and reasons may have bytes that are no UTF-8.
        write_file(file.path, "".join(version.line() for version in versions).encode(errors="surrogatepass"))
    return Tombstones(file.path, root, versions)


def _report(
    data: Forgettable, lists: Sequence[Tombstones | None], changed: Sequence[Changed], ignored: Sequence[str]
) -> ForgetReport:
    num_forgotten = sum(
        len(samples)
        for file, own in zip(data.lists, lists, strict=True)
        for name, samples in (own.samples(len(own.versions)) if own else {}).items()
        if name in file.names
    )
    num_changed = sum(len(samples) for new in changed for samples in new.values())
    return ForgetReport([own for own in lists if own is not None], num_changed, num_forgotten, ignored)
