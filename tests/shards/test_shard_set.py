from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.shards.shard_set import ShardSet


@given(st.lists(st.lists(st.booleans(), max_size=12), max_size=6))
def test_numbers_pass_over_what_is_excluded(kept: list[list[bool]]) -> None:
    """`kept` tells for every sample of every shard whether it is in."""
    shards = ShardSet(
        root=Path("/data"),
        split_part="train",
        names=tuple(f"{number}.tar" for number in range(len(kept))),
        stored_counts=tuple(map(len, kept)),
        excluded_positions={
            number: tuple(position for position, is_in in enumerate(shard) if not is_in)
            for number, shard in enumerate(kept)
        },
    )
    expected = [(n, position) for n, shard in enumerate(kept) for position, is_in in enumerate(shard) if is_in]
    assert [shards.locate(index) for index in range(len(shards))] == expected
    assert shards.counts == [sum(shard) for shard in kept]
    assert shards.num_samples == len(expected)


def test_out_of_range() -> None:
    shards = ShardSet(root=Path("/data"), split_part="val", names=("a.tar",), stored_counts=(3,))
    assert shards.path(0) == Path("/data/a.tar")
    for index in (-1, 3):
        with pytest.raises(IndexError, match=rf"/data \[val\]: sample {index} of 3"):
            shards.locate(index)
