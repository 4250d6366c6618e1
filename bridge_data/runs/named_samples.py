"""The sample that a user names: its `__key__`, as batches and errors show it.

Reads a name: `a.tar/0001`, of a JSONL file the number of the line; `SHARD:KEY`; or the key alone, `0001`. If needed, a
shard may be preceded by the folder of its data set (`photos/a.tar:0001`). Returns where the one matching sample is
among the records; raises a `ConfigError` that lists the candidates if there are several.
"""

import dataclasses
import os
from collections.abc import Collection, Iterator, Sequence

from bridge_data.data.records import Records, count_samples, names_of, shard_at, split_part_of
from bridge_data.data.sample_keys import find
from bridge_data.errors import ConfigError, listed
from bridge_data.storage import Location

MAX_CANDIDATES = 10
"""Maximum samples listed in an error about an ambiguous key."""


@dataclasses.dataclass(frozen=True, slots=True)
class FoundSample:
    """A sample that a name stands for: sample `index` of records number `records`, stored as `key` in the shard
    `shard` of the data set at `root`."""

    records: int
    index: int
    root: Location
    shard: str
    key: str

    @property
    def name(self) -> str:
        """`SHARD:KEY`, which is unique in its data set."""
        return f"{self.shard}:{self.key}"


def find_sample(several: Sequence[Records], name: str) -> list[FoundSample]:
    """Where the sample `name` is in `several`, such as the records of the sources of a plan.

    It is one stored sample; several results if several records have it, as a blend may name a data set twice.

    Raises:
        ConfigError: if no sample has this key, or several have it.
        DatasetError: if an index is damaged.
    """
    found = [
        FoundSample(number, index, records.root, shard, key)
        for number, records in enumerate(several)
        for index, shard, key in located(records, name)
    ]
    samples = {(str(one.root), one.name): one for one in found}
    if len(samples) > 1:
        roots = {str(one.root) for one in found}
        names = [
            one.name if len(roots) == 1 else f"{_path_of(several[one.records], one.shard)}:{one.key}"
            for one in samples.values()
        ]
        raise ConfigError(f"{name!r} is the key of {len(names)} samples; say which is meant: {listed(names)}")
    if not found:
        members = pack_members(name)
        if any(True for one in members for records in several for _ in located(records, one)):
            raise ConfigError(f"{name!r} is the key of a pack; say which of its samples is meant: {listed(members)}")
        raise ConfigError(_complaint(several, name))
    same = [one for one in found if one.records == found[0].records]
    if len({one.index for one in same}) > 1:
        numbers = ", ".join(f"{one.index:,}" for one in same[:MAX_CANDIDATES])
        raise ConfigError(
            f"{name!r} is the key of {len(same)} samples of {found[0].root}/{found[0].shard}; say which is meant by "
            f"its number ({numbers}): `order --index`, `info --samples`"
        )
    return found


def _complaint(several: Sequence[Records], name: str) -> str:
    where = sorted({f"{records.root} [{split_part_of(records)}]" for records in several})
    told = f"no sample has the key {name!r} in {', '.join(where[:MAX_CANDIDATES])}, the split parts that were looked at"
    filled = next((records for records in several if count_samples(records)), None)
    if filled is None:
        return f"{told}: there are no samples"
    first = filled.reader().read(0, ())
    return f"{told}. The first sample there is {first.shard_name}:{first.key}; keys are given in this form or alone."


def located(records: Records, name: str) -> Iterator[tuple[int, str, str]]:
    """(index, shard, key) of the samples that `name` may stand for."""
    wanted: dict[str, list[Collection[int]]] = {}
    for given, key in meanings(name):
        shards = range(len(names_of(records))) if given is None else _shards_called(records, given)
        if shards:
            wanted.setdefault(key, []).append(shards)
    for index, key in find(records, wanted.keys()) if wanted else ():
        shard = shard_at(records, index)
        if any(shard in shards for shards in wanted[key]):
            yield index, names_of(records)[shard], key


def pack_members(name: str) -> list[str]:
    """The names of the samples of a pack, if `name`, which no sample has, is the `__key__` of one; else none."""
    return name.split(",") if "," in name else []


def meanings(name: str) -> Iterator[tuple[str | None, str]]:
    """The shards (None: any) and keys that a name may consist of: a key may have slashes and colons itself."""
    yield None, name
    yield from ((name[:at], name[at + 1 :]) for at, character in enumerate(name) if character in ":/" and at)


def _shards_called(records: Records, given: str) -> Collection[int]:
    """The numbers of the shards that are called `given`: exactly, or else by the path or its last pieces."""
    names = names_of(records)
    if given in names:
        return {shard for shard, name in enumerate(names) if name == given}
    return {shard for shard, name in enumerate(names) if _called(_path_of(records, name), given)}


def _path_of(records: Records, shard: str) -> Location:
    """The path of a shard: of a file, its own."""
    return records.root if [*names_of(records)] == [records.root.name] else records.root / shard


def _called(path: Location, given: str) -> bool:
    """Whether `given` is the path: absolute, relative to the current folder, or its last pieces."""
    return f"/{path}".endswith(f"/{given.removeprefix('./')}") or os.path.abspath(given) == os.path.abspath(str(path))
