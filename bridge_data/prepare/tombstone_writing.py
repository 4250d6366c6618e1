"""Writing a version of the list of forgotten samples: keys are resolved to positions in shards.

Enters: a prepared folder on a disk, keys as users know them, a reason. Leaves: one more version of the list (see
`shards.tombstones`), or nothing. Guarantee: all wrong keys are named; the list appears whole, and earlier versions stay
unchanged.
"""

import dataclasses
import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bridge_data import storage
from bridge_data.errors import ConfigError, bridge_command
from bridge_data.plan.document import is_jsonl
from bridge_data.plan.opening import has_tables
from bridge_data.prepare.commit import preparing_alone
from bridge_data.shards.key_index import KeyIndex
from bridge_data.shards.metadata import FORGOTTEN_JSONL, META_FOLDER
from bridge_data.shards.prepared import PreparedDataset
from bridge_data.shards.raw_tars import find_raw_tars
from bridge_data.shards.tombstones import ShardTombstones, Tombstones, TombstoneVersion, digest_of
from bridge_data.storage.atomic import write_file, writing

MAX_NAMED = 100
"""Maximum wrong keys that an error names."""


@dataclasses.dataclass(frozen=True, slots=True)
class ForgetReport:
    """What was written: the newest version of the list (None: there is none), the samples that it changed, all samples
    now forgotten, and ignored keys."""

    version: TombstoneVersion | None
    num_changed: int
    num_forgotten: int
    ignored: Sequence[str]


def read_tombstones(root: Path) -> Tombstones | None:
    """The list of the data set in the folder `root`, whether or not shards have changed; None if there is none."""
    _check_has_list(root)
    file = PreparedDataset.open(root).meta / FORGOTTEN_JSONL
    data = storage.read_if_there(file)
    return None if data is None else Tombstones.parse(data, file)


def forget_samples(
    root: Path, keys: Iterable[str], reason: str, *, restore: bool = False, ignore_unknown: bool = False
) -> ForgetReport:
    """Add the samples `keys` (`KEY`, `SHARD:KEY` or `SHARD/KEY`) to the list; with `restore`, remove them from it.

    Raises:
        ConfigError: naming all keys that no sample has, or several have; nothing is written. With `ignore_unknown`,
            only the latter are an error. DatasetError: if the data set has no index of its keys, or is damaged.
    """
    _check_has_list(root)
    with preparing_alone(root, doing="preparing or changing"):
        dataset, before = PreparedDataset.open(root), read_tombstones(root)
        if before is not None:
            before.check_shards(dataset.shard_counts, dataset.shard_bytes)
        known = {} if before is None else before.samples(len(before.versions))
        found, unknown, ambiguous = _resolved(dataset, keys)
        if restore:
            forgotten = {(shard, position) for shard, samples in known.items() for position in samples}
            unknown += [name for name, (shard, position, _) in found.items() if (shard, position) not in forgotten]
        _check(dataset, unknown if not ignore_unknown else [], ambiguous, restore=restore)
        changed: dict[str, dict[int, str]] = defaultdict(dict)
        for shard, position, key in found.values():
            if (position in known.get(shard, {})) == restore:
                changed[shard][position] = key
        return _written(dataset, before, changed, reason, "restore" if restore else "forget", unknown)


def renew_tombstones(root: Path, reason: str) -> ForgetReport:
    """Look up all forgotten samples again in the current shards; drop those that are gone.

    Raises:
        ConfigError: if there is no list.
    """
    _check_has_list(root)
    with preparing_alone(root, doing="preparing or changing"):
        dataset, before = PreparedDataset.open(root), read_tombstones(root)
        if before is None:
            raise ConfigError(f"{root}: no samples of it were forgotten, so there is no list to renew")
        keys = [f"{shard}:{key}" for shard, own in before.samples(len(before.versions)).items() for key in own.values()]
        found, gone, _ = _resolved(dataset, keys)
        changed: dict[str, dict[int, str]] = defaultdict(dict)
        for shard, position, key in found.values():
            changed[shard][position] = key
        return _written(dataset, before, changed, reason, "renew", gone)


def _check_has_list(root: Path) -> None:
    """See that the data set is none that has no list, as it has no `.nv-meta`."""
    where = "leave the samples out with `where: __key__ not in ('KEY', 'KEY')`"
    if has_tables(str(root)) or is_jsonl(str(root)):
        raise ConfigError(
            f"{root}: tables and JSONL files have no list of forgotten samples: {where}, or write a data set with "
            f"`{bridge_command('convert', root, 'DST')}`, which can have one"
        )
    tars = find_raw_tars(str(root))
    if tars is not None:
        raise ConfigError(
            f"{root}: tars without {META_FOLDER} have no list of forgotten samples: run {tars.way_out} first, or "
            f"{where}"
        )


def _resolved(
    dataset: PreparedDataset, keys: Iterable[str]
) -> tuple[dict[str, tuple[str, int, str]], list[str], dict[str, list[str]]]:
    """((shard, position, key) of each sample by the name given, names that no sample has, the shards of names that
    several samples have)."""
    index = KeyIndex.open(dataset.root)
    found, unknown, ambiguous = {}, [], {}
    for name in dict.fromkeys(keys):
        samples = [(index.shard_names[shard], at, name) for shard, at in index.positions(name).items()]
        for split, character in enumerate(name):
            if character in ":/":
                shard, key = name[:split], name[split + 1 :]
                if shard in dataset.shard_counts:
                    own = {index.shard_names[number]: at for number, at in index.positions(key).items()}
                    samples += [(shard, own[shard], key)] if shard in own else []
        samples = [sample for sample in samples if _is_stored(dataset, *sample)]
        if len(samples) > 1:
            ambiguous[name] = [shard for shard, _, _ in samples]
        elif samples:
            found[name] = samples[0]
        else:
            unknown.append(name)
    return found, unknown, ambiguous


def _is_stored(dataset: PreparedDataset, shard: str, position: int, key: str) -> bool:
    """Whether our index has the key at the same position as Energon's; without ours, Energon's is trusted."""
    if position >= dataset.shard_counts.get(shard, 0):
        return False
    segment = None if dataset.index is None else dataset.index.segment_if_intact(shard)
    return segment is None or segment.key(position) == key


def _check(
    dataset: PreparedDataset, unknown: Sequence[str], ambiguous: Mapping[str, Sequence[str]], *, restore: bool
) -> None:
    """Raise an error if there are unknown or ambiguous names."""
    lines = [f"{name!r}: in {', '.join(shards)}: say which, as SHARD:KEY" for name, shards in ambiguous.items()]
    what = "is not forgotten, or no sample has this key" if restore else "no sample has this key"
    lines += [f"{name!r}: {what}" for name in unknown]
    if lines:
        more = f"\n  and {len(lines) - MAX_NAMED:,} more" if len(lines) > MAX_NAMED else ""
        way_out = " (--ignore-unknown leaves out those that no sample has)" if unknown else ""
        raise ConfigError(
            f"{dataset.root}: {len(lines):,} keys are wrong, and nothing was written{way_out}:\n  "
            + "\n  ".join(lines[:MAX_NAMED])
            + more
        )


def _written(
    dataset: PreparedDataset,
    before: Tombstones | None,
    changed: Mapping[str, Mapping[int, str]],
    reason: str,
    action: str,
    ignored: Sequence[str],
) -> ForgetReport:
    versions = () if before is None else before.versions
    newest = versions[-1] if versions else None
    if changed or action == "renew":
        shards = {
            name: ShardTombstones(
                dataset.shard_bytes(name), dataset.shard_counts[name], tuple(sorted(changed[name].items()))
            )
            for name in sorted(changed)
        }
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        new = TombstoneVersion(len(versions) + 1, date, reason, action, shards, "")
        newest = dataclasses.replace(new, digest=digest_of(new, newest.digest if newest else ""))
        versions = (*versions, newest)
        with writing(Path(dataset.root)):
            write_file(Path(dataset.meta) / FORGOTTEN_JSONL, "".join(version.line() for version in versions))
    after = Tombstones(dataset.root, versions).samples(len(versions))
    return ForgetReport(
        newest, sum(map(len, changed.values())), sum(len(samples) for samples in after.values()), ignored
    )
