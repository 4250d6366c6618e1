"""The keys of samples: from a number to a key, and back.

Reads records, and numbers or keys. Returns keys, or the numbers of all samples that have one. A kind of data registers
how its index does that; without, every sample is read once. Says, too, why the keys of some data are not known to
others, who join by them.

Reads a name that a user typed, too: the `__key__` that batches and errors show (`a.tar/0001`; of a JSONL file the
number of the line), `SHARD:KEY`, or the key alone, `0001`. If needed, a shard may be preceded by the folder of its data
set (`photos/a.tar:0001`). Returns where the one matching sample is among the records; raises a `ConfigError` that lists
the candidates if there are several.
"""

import dataclasses
import functools
import os
from collections.abc import Collection, Iterator, Sequence

from bridge_data.data.key_index import KeyIndex
from bridge_data.data.paged_file import DamagedIndexError
from bridge_data.data.records import Records, Selection, count_samples, names_of, shard_at, split_part_of
from bridge_data.data.shard_set import ShardSet
from bridge_data.errors import ConfigError, DatasetError, bridge_command, listed
from bridge_data.storage import Location

NO_MEMBER = "a member of a join is the path of a prepared folder of tars, of tables or of a JSONL file"
"""Why data of other kinds cannot be joined."""

MAX_CANDIDATES = 10
"""Maximum samples listed in an error about an ambiguous key."""


@functools.singledispatch
def keys_of(records: Records, samples: range) -> Iterator[str]:
    """The keys of these samples, read front to back, without their contents: from an index, if there is one, which is
    opened for each call; else out of the samples.

    Raises:
        DatasetError: if they cannot be read.
    """
    return read_keys(records, samples)


@functools.singledispatch
def find(records: Records, keys: Collection[str]) -> Iterator[tuple[int, str]]:
    """(number, key) of all samples that have one of `keys`; for data without an index of keys, all are read once.

    Raises:
        DatasetError: if keys cannot be read.
    """
    return scan_keys(records, keys)


@functools.singledispatch
def join_problem(records: Records) -> str | None:
    """Why the samples cannot be joined by their keys, for messages; None if they can."""
    return NO_MEMBER


@functools.singledispatch
def fix_repeated_keys(records: Records) -> str:
    """How keys that several samples share become unique, for messages; empty if there is no need, or no way."""
    return ""


def scan_keys(records: Records, keys: Collection[str]) -> Iterator[tuple[int, str]]:
    """`find` for data that have no index of keys."""
    return ((at, key) for at, key in enumerate(keys_of(records, range(count_samples(records)))) if key in keys)


def scan_headers(records: Records, keys: Collection[str]) -> Iterator[tuple[int, str]]:
    """`find` without any index of keys."""
    own = enumerate(read_keys(records, range(count_samples(records))))
    return ((number, key) for number, key in own if key in keys)


def read_keys(records: Records, samples: range) -> Iterator[str]:
    """`keys_of` data that have no index of keys: out of the samples, one by one."""
    reader = records.reader()
    return (reader.read(index, ()).key for index in samples)


def number_of_key(key: str) -> int | None:
    """The number that the key of a sample without its own key is; None if it is none."""
    return int(key) if key.isascii() and key.isdigit() and key == str(int(key[:20])) else None


@keys_of.register
def _keys(records: Selection, samples: range) -> Iterator[str]:
    if not samples:
        return
    wanted = map(records.to_base, samples)
    number, end = next(wanted), records.to_base(samples[-1]) + 1
    for at, key in enumerate(keys_of(records.records, range(number, end)), start=number):
        if at == number:
            yield key
            number = next(wanted, end)


@find.register
def _find(records: Selection, keys: Collection[str]) -> Iterator[tuple[int, str]]:
    found = ((records.from_base(number), key) for number, key in find(records.records, keys))
    return ((index, key) for index, key in found if index is not None)


@join_problem.register
def _problem(records: Selection) -> str | None:
    return join_problem(records.records)


@fix_repeated_keys.register
def _fix(records: Selection) -> str:
    return fix_repeated_keys(records.records)


@keys_of.register
def _keys_of_shards(records: ShardSet, samples: range) -> Iterator[str]:
    """From our index, or else from `index.sqlite`; no shard is read."""
    index = KeyIndex.find(records.root) if records.index is None else None
    if records.index is None and index is None:
        raise DatasetError(f"{records.root}: has no index of its keys; run {_fix_command(records)}")
    numbers = {} if index is None else {name: number for number, name in enumerate(index.shard_names)}
    first, last = (records.locate(samples[at])[0] for at in (0, -1)) if samples else (0, -1)
    for shard in range(first, last + 1):
        name, start = records.names[shard], records.starts[shard]
        keys = _stored_keys(records, name) if index is None else index.keys(numbers[name])
        if len(keys) != records.stored_counts[shard]:
            raise DatasetError(
                f"{records.root}: the index knows {len(keys)} samples in {name}, but the metadata "
                f"{records.stored_counts[shard]}; run {_fix_command(records)}"
            )
        left_out = set(records.excluded_positions.get(shard, ()))
        if left_out:
            keys = [key for position, key in enumerate(keys) if position not in left_out]
        yield from keys[max(samples.start - start, 0) : samples.stop - start]


def _fix_command(records: ShardSet) -> str:
    """What makes an index of its keys, for messages."""
    return f"`{bridge_command('prepare', records.root, '--tar-index-only')}`"


def _stored_keys(records: ShardSet, name: str) -> list[str]:
    assert records.index is not None
    try:
        return records.index.segment(name).keys()
    except DamagedIndexError as error:
        raise DatasetError(f"{error}. Run {_fix_command(records)}.") from error


@find.register
def _find_in_shards(records: ShardSet, keys: Collection[str]) -> Iterator[tuple[int, str]]:
    """By a search of `index.sqlite` for each key; a sample that our index has at another position is none. Without
    it, all keys are read: from our index, or else from the headers of the shards."""
    index = KeyIndex.find(records.root)
    if index is None:
        yield from scan_keys(records, keys) if records.index is not None else scan_headers(records, keys)
        return
    known = {name: shard for shard, name in enumerate(records.names)}
    for key in keys:
        for stored_in, position in index.positions(key).items():
            shard = known.get(index.shard_names[stored_in])
            if shard is not None and position < records.stored_counts[shard]:
                number = records.number(shard, position)
                if number is not None and _may_have(records, shard, position, key):
                    yield number, key


def _may_have(records: ShardSet, shard: int, position: int, key: str) -> bool:
    """Whether the sample of `shard` at this position has this key, as far as our index says."""
    name = records.names[shard]
    segment = None if records.index is None else records.index.segment_if_intact(name)
    if records.index is None or segment is None:
        return True
    try:
        return segment.key(position) == key
    except DamagedIndexError as error:
        records.index.tell_damage(name, error)
        return True


@join_problem.register
def _problem_of_shards(records: ShardSet) -> None:
    return None


@fix_repeated_keys.register
def _fix_shards(records: ShardSet) -> str:
    command = bridge_command("prepare", records.root, "--force-overwrite", "--fix-duplicates")
    return f"Write the shards again with other keys: `{command}` puts the shard's name in front of each."


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
