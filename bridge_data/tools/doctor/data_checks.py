"""The data as they are stored: whether their indexes are of these shards, and whether shards have a good size.

Enters: the sources of a run. Leaves: findings, and how many shards were looked at. Guarantee: no shard is read, and no
more than `MAX_LOOKED_AT` of a data set are looked at: size and time of change, evenly spread. The metadata files are
compared by the checks of `bridge-data lint`. What is in an object store, a JSONL file or in Energon's indexes alone is
checked when it is opened, or by `lint`.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from bridge_data.errors import bridge_command
from bridge_data.plan import Source
from bridge_data.shards import ShardSet
from bridge_data.shards.records import Records
from bridge_data.shards.subset import Subset
from bridge_data.shards.where.chosen_records import ChosenRecords
from bridge_data.storage import is_remote
from bridge_data.tools.doctor.planned_run import Finding, Level
from bridge_data.tools.lint.check_dataset import check_metadata
from bridge_data.tools.lint.faults import KINDS, Fault

MAX_LOOKED_AT = 10_000
"""Shards of a data set that are looked at; of more, a sample."""

SMALL_SHARD_BYTES = 8 << 20
MANY_SHARDS = 1_000
"""So many shards of less than `SMALL_SHARD_BYTES` on the average are better written as fewer."""

_STOPPING = frozenset({"metadata-damaged", "missing-shard", "split-unknown-shard", "split-repeated-shard"})


@dataclasses.dataclass(slots=True)
class ShardsSeen:
    """How many shards there are on disk, how many of them were looked at, and how many are in object stores."""

    num_shards: int = 0
    num_looked_at: int = 0
    num_remote: int = 0


def check_data(sources: Sequence[Source], seen: ShardsSeen) -> Iterator[Finding]:
    """What is wrong with the stored data of the sources; counts what was looked at in `seen`."""
    found: dict[Path, list[ShardSet]] = {}
    for source in sources:
        for member in source.members:
            shards = _shards_of(member.records)
            if shards is None:
                continue
            yield from _check_sizes(member, shards)
            if is_remote(shards.root):
                seen.num_remote += len(shards.names)
            else:
                found.setdefault(Path(str(shards.root)), []).append(shards)
    for root, sets in found.items():
        yield from _check_folder(root, sets, seen)


def _shards_of(records: Records) -> ShardSet | None:
    while isinstance(records, (Subset, ChosenRecords)):
        records = records.records
    return records if isinstance(records, ShardSet) else None


def _check_folder(root: Path, sets: Sequence[ShardSet], seen: ShardsSeen) -> Iterator[Finding]:
    names = list(dict.fromkeys(name for shards in sets for name in shards.names))
    looked_at = _spread(names)
    seen.num_shards += len(names)
    seen.num_looked_at += len(looked_at)
    if len(looked_at) == len(names):
        yield from _metadata(root)
    index = sets[0].index
    if index is None:
        yield Finding(
            code="index-missing",
            level=Level.SLOWS,
            what=f"{root}: has no index.bridge of this preparation, so shards are found out when they are opened",
            change=f"run `{bridge_command('prepare', root, '--tar-index-only')}`",
        )
        return
    missing, resized, touched = [], [], []
    for name in looked_at:
        entry = index.entries[name]
        try:
            status = (root / name).stat()
        except OSError:
            missing.append(name)
            continue
        if status.st_size != entry.num_bytes:
            resized.append(name)
        elif status.st_mtime_ns != entry.mtime_ns:
            touched.append(name)
    if missing and len(looked_at) < len(names):
        yield _of_shards("missing-shard", Level.STOPS, root, missing, "are gone", "restore them, or prepare again")
    again = f"run `{bridge_command('prepare', root)}`"
    if resized:
        what = "are of another size than when they were indexed: the run would stop, or read other samples"
        yield _of_shards("index-outdated", Level.STOPS, root, resized, what, again)
    if touched:
        what = (
            "have another time of change than in the index: copied, or changed with the same size; each sample is "
            "compared with the index when it is read"
        )
        change = f"run `{bridge_command('prepare', root, '--tar-index-only')}`; cp -p keeps the times of copies"
        yield _of_shards("index-times", Level.SLOWS, root, touched, what, change)


def _of_shards(code: str, level: Level, root: Path, names: Sequence[str], what: str, change: str) -> Finding:
    shown = f"{len(names):,} shard{'' if len(names) == 1 else 's'} such as {names[0]}"
    return Finding(code=code, level=level, what=f"{root}: {shown} {what}", change=change)


def _metadata(root: Path) -> Iterator[Finding]:
    """Faults that `lint` finds in the metadata, one finding for each kind."""
    by_code: dict[str, list[Fault]] = {}
    for fault in check_metadata(root):
        by_code.setdefault(fault.code, []).append(fault)
    for code, faults in by_code.items():
        where = faults[0].where()
        more = f", and {len(faults) - 1:,} more" if len(faults) > 1 else ""
        yield Finding(
            code=code,
            level=Level.STOPS if code in _STOPPING else Level.NOTE,
            what=f"{root}: {KINDS[code].what}: {f'{where}: ' if where else ''}{faults[0].cause}{more}",
            change=KINDS[code].way_out,
        )


def _check_sizes(source: Source, shards: ShardSet) -> Iterator[Finding]:
    if shards.index is None or len(shards.names) < MANY_SHARDS:
        return
    sizes = shards.index.sizes_bytes(shards.names)
    mean = sum(sizes) / len(sizes)
    if mean < SMALL_SHARD_BYTES:
        yield Finding(
            code="small-shards",
            level=Level.NOTE,
            what=f"{source.name}: {len(sizes):,} shards of {mean / 1e6:.2f} MB on the average: opening them costs more "
            "than it has to",
            change="write fewer, of 100 MB to 1 GB (`bridge-data convert --max-bytes`)",
        )


def _spread(names: Sequence[str]) -> Sequence[str]:
    """At most `MAX_LOOKED_AT` of them, evenly spread."""
    if len(names) <= MAX_LOOKED_AT:
        return names
    return [names[number * len(names) // MAX_LOOKED_AT] for number in range(MAX_LOOKED_AT)]
