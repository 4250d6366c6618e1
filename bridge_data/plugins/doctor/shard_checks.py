"""Faults in the stored data of a run, by metadata and the index alone.

Reads the sources of a plan. Returns findings, and counts the shards that were looked at: at most `MAX_LOOKED_AT` of a
data set, evenly spread, have their size and time of change checked. No shard is read. Data in an object store, in a
JSONL file or only in Energon's indexes are checked when they are opened, or by `check`.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from bridge_data.data import ShardSet
from bridge_data.data.index_file import ShardEntry
from bridge_data.data.metadata import META_FOLDER
from bridge_data.data.prepared import tars_of
from bridge_data.errors import bridge_command
from bridge_data.plan import Source
from bridge_data.plan.missing_parts import count_parts
from bridge_data.plugins.doctor.findings import Finding, Level
from bridge_data.plugins.doctor.lint_checks import KINDS, Fault, check_metadata
from bridge_data.storage import is_remote

MAX_LOOKED_AT = 10_000
"""Shards of a data set that are checked, at most, evenly spread."""

SMALL_SHARD_BYTES = 8 << 20
MANY_SHARDS = 1_000
"""From this many shards on, an average below `SMALL_SHARD_BYTES` is a finding."""

_STOPPING = frozenset({"metadata-damaged", "missing-shard", "split-unknown-shard", "split-repeated-shard"})


@dataclasses.dataclass(slots=True)
class ShardsSeen:
    """How many shards are on disk, how many of them were checked, and how many are in object stores."""

    num_shards: int = 0
    num_looked_at: int = 0
    num_remote: int = 0


def check_data(sources: Sequence[Source], seen: ShardsSeen) -> Iterator[Finding]:
    """Faults in the stored data of the sources; counts checked shards in `seen`."""
    found: dict[Path, list[ShardSet]] = {}
    for source in sources:
        for member in source.members:
            shards = tars_of(member.records)
            if shards is None:
                continue
            yield from _check_sizes(member, shards)
            yield from _check_parts(member, shards)
            if is_remote(shards.root):
                seen.num_remote += len(shards.names)
            else:
                found.setdefault(Path(str(shards.root)), []).append(shards)
    for root, sets in found.items():
        yield from _check_folder(root, sets, seen)


def _check_folder(root: Path, sets: Sequence[ShardSet], seen: ShardsSeen) -> Iterator[Finding]:
    names = list(dict.fromkeys(name for shards in sets for name in shards.names))
    looked_at = _spread(names)
    seen.num_shards += len(names)
    seen.num_looked_at += len(looked_at)
    is_prepared = (root / META_FOLDER).is_dir()
    if not is_prepared:
        yield Finding(
            code="unprepared",
            level=Level.NOTE,
            what=f"{root}: has no {META_FOLDER}: its tars are indexed on each machine by one process, when they are "
            "first opened, and have no split and no sample class",
            change=f"run `{bridge_command('prepare', root)}` once for all machines",
        )
    elif len(looked_at) == len(names):
        yield from _metadata(root)
    index = sets[0].index
    if index is None:
        yield Finding(
            code="index-missing",
            level=Level.SLOWS,
            what=f"{root}: has no index.bridge of this preparation, so shards are examined when they are opened",
            change=f"run `{bridge_command('prepare', root, '--tar-index-only')}`",
        )
        return
    by_code: dict[str, list[str]] = {}
    for name in looked_at:
        by_code.setdefault(_changed(root / name, index.entries[name]), []).append(name)
    if is_prepared and len(looked_at) == len(names):
        by_code.pop("missing-shard", None)  # the metadata are compared with all shards
    for code, (level, what, change) in _CHANGES.items():
        if found := by_code.get(code):
            shown = f"{len(found):,} shard{'' if len(found) == 1 else 's'} such as {found[0]}"
            change = change.format(bridge_command("prepare", root))
            yield Finding(code=code, level=level, what=f"{root}: {shown} {what}", change=change)


def _changed(shard: Path, entry: ShardEntry) -> str:
    """In what a shard differs from the index, a key of `_CHANGES`; "" if in nothing."""
    try:
        status = shard.stat()
    except OSError:
        return "missing-shard"
    if status.st_size != entry.num_bytes:
        return "index-outdated"
    return "index-times" if status.st_mtime_ns != entry.mtime_ns else ""


_CHANGES = {
    "missing-shard": (Level.STOPS, "are gone", "restore them, or prepare again"),
    "index-outdated": (
        Level.STOPS,
        "are of another size than when they were indexed: the run would stop, or read other samples",
        "run `{}`",
    ),
    "index-times": (
        Level.SLOWS,
        "have another time of change than in the index: copied, or changed with the same size; each sample is compared "
        "with the index when it is read",
        "run `{} --tar-index-only`; cp -p keeps the times of copies",
    ),
}
"""By code, how shards may have changed since they were indexed: level, what they are, and the way out."""


def _metadata(root: Path) -> Iterator[Finding]:
    """Faults that `check` finds in the metadata, one finding for each kind."""
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
            change=KINDS[code].fix,
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
            "than necessary",
            change="write fewer, of 100 MB to 1 GB (`bridge-data convert --max-bytes`)",
        )


def _check_parts(source: Source, shards: ShardSet) -> Iterator[Finding]:
    for one in () if is_remote(shards.root) else count_parts(shards, source.field_map):
        yield Finding(
            code="double-parts" if one.is_double else "missing-parts",
            level=Level.NOTE if one.is_double else Level.SLOWS,
            what=f"{source.name}: {one}",
            change=f"name what they have in the field map of {source.config_file}, or remove them; `bridge-data check` "
            "lists them",
            factor=1 / max(1e-3, 1 - one.count / one.num_samples),
        )


def _spread(names: Sequence[str]) -> Sequence[str]:
    """At most `MAX_LOOKED_AT` shards, evenly spread."""
    if len(names) <= MAX_LOOKED_AT:
        return names
    return [names[number * len(names) // MAX_LOOKED_AT] for number in range(MAX_LOOKED_AT)]
