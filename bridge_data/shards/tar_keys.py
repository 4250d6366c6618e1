"""The keys of the samples of prepared tars, out of their indexes.

Enters: a `ShardSet`, and numbers or keys of samples. Leaves: keys, without those of excluded samples; numbers. Keys of
numbers come from our index, or else from `index.sqlite`; those with a key come from the latter, by one search.
Guarantee: no shard is read, unless there is neither index and keys are looked for.
"""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from bridge_data.errors import DatasetError, bridge_command
from bridge_data.shards.key_index import KeyIndex
from bridge_data.shards.paged_file import DamagedIndexError
from bridge_data.shards.records import read_keys, scan_keys

if TYPE_CHECKING:
    from bridge_data.shards.prepared import ShardSet


def keys_in_tars(shards: "ShardSet", samples: range) -> Iterator[str]:
    """`Records.keys` of prepared tars.

    Raises:
        DatasetError: if there is no index of the keys, or it is damaged or of other data.
    """
    index = KeyIndex.find(shards.root) if shards.index is None else None
    if shards.index is None and index is None:
        raise DatasetError(f"{shards.root}: has no index of its keys; run {_way_out(shards)}")
    numbers = {} if index is None else {name: number for number, name in enumerate(index.shard_names)}
    first, last = (shards.locate(samples[at])[0] for at in (0, -1)) if samples else (0, -1)
    for shard in range(first, last + 1):
        name, start = shards.names[shard], shards.starts[shard]
        keys = _of_our_index(shards, name) if index is None else index.keys(numbers[name])
        if len(keys) != shards.stored_counts[shard]:
            raise DatasetError(
                f"{shards.root}: the index knows {len(keys)} samples in {name}, but the metadata "
                f"{shards.stored_counts[shard]}; run {_way_out(shards)}"
            )
        left_out = set(shards.excluded_positions.get(shard, ()))
        if left_out:
            keys = [key for position, key in enumerate(keys) if position not in left_out]
        yield from keys[max(samples.start - start, 0) : samples.stop - start]


def _of_our_index(shards: "ShardSet", name: str) -> list[str]:
    assert shards.index is not None
    try:
        return shards.index.segment(name).keys()
    except DamagedIndexError as error:
        raise DatasetError(f"{error}. Run {_way_out(shards)}.") from error


def find_in_tars(shards: "ShardSet", keys: Collection[str]) -> Iterator[tuple[int, str]]:
    """`Records.find` of prepared tars. A sample that our index has at another position is none."""
    index = KeyIndex.find(shards.root)
    if index is None and shards.index is not None:
        yield from scan_keys(shards, keys)
    elif index is None:
        own = enumerate(read_keys(shards, range(shards.num_samples)))
        yield from ((number, key) for number, key in own if key in keys)
    else:
        known = {name: shard for shard, name in enumerate(shards.names)}
        for key in keys:
            for stored_in, position in index.positions(key).items():
                shard = known.get(index.shard_names[stored_in])
                if shard is not None and position < shards.stored_counts[shard]:
                    number = shards.number(shard, position)
                    if number is not None and _is_stored(shards, shard, position, key):
                        yield number, key


def _is_stored(shards: "ShardSet", shard: int, position: int, key: str) -> bool:
    """Whether our index has the key at the same position; without ours, the other is trusted."""
    segment = None if shards.index is None else shards.index.segment_if_intact(shards.names[shard])
    return segment is None or segment.key(position) == key


def _way_out(shards: "ShardSet") -> str:
    return f"`{bridge_command('prepare', shards.root, '--tar-index-only')}`"
