import collections

from hypothesis import given
from hypothesis import strategies as st

from bridge_data.index.blocks import BLOCK_BYTES, MAX_BLOCKS, Blocks, Held

CONTENT = bytes(number * 7 % 251 for number in range(5 * BLOCK_BYTES // 2))


class Shard:
    """A shard that counts how often it is read."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []

    def read(self, start: int, num_bytes: int) -> bytes:
        self.reads.append((start, num_bytes))
        data = CONTENT[start : start + num_bytes]
        assert len(data) == num_bytes
        return data


@given(st.lists(st.tuples(st.integers(0, len(CONTENT)), st.integers(0, 2 * BLOCK_BYTES)), max_size=20))
def test_any_range_is_what_the_shard_holds(ranges: list[tuple[int, int]]) -> None:
    shard = Blocks(Shard().read, len(CONTENT), collections.deque())
    for start, num_bytes in ranges:
        num_bytes = min(num_bytes, len(CONTENT) - start)
        if start < len(CONTENT):
            assert shard.read(start, num_bytes) == CONTENT[start : start + num_bytes]


def test_neighbours_come_with_one_read() -> None:
    shard = Shard()
    cut = Blocks(shard.read, len(CONTENT), collections.deque())
    for start in range(0, len(CONTENT) - 512, 512):
        cut.read(start, 512)
    assert shard.reads == [(0, BLOCK_BYTES), (BLOCK_BYTES, BLOCK_BYTES), (2 * BLOCK_BYTES, BLOCK_BYTES // 2)]


def test_shards_share_a_bounded_number() -> None:
    held: Held = collections.deque()
    shards = [Shard() for _ in range(MAX_BLOCKS)]
    cuts = [Blocks(shard.read, len(CONTENT), held) for shard in shards]
    for cut in cuts:
        cut.read(0, 10), cut.read(BLOCK_BYTES, 10)
    assert sum(len(cut._known) for cut in cuts) == len(held) == MAX_BLOCKS
    assert cuts[0].read(5, 10) == CONTENT[5:15]
    assert shards[0].reads.count((0, BLOCK_BYTES)) == 2
    assert shards[-1].reads.count((0, BLOCK_BYTES)) == 1
