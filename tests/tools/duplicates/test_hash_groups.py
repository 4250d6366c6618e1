import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.shards.where.choosing import open_engine
from bridge_data.tools.duplicates import hash_groups
from bridge_data.tools.duplicates.hash_groups import MAX_DISTANCE, block_masks, close_pairs, connected

HASHES = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_engine(tmp_path_factory.mktemp("spill")) as opened:
        yield opened


@st.composite
def families(draw: st.DrawFn) -> list[int]:
    """Different hashes of which many are close: some, and others made of them by flipping a few bits."""
    hashes = draw(st.lists(HASHES, min_size=1, max_size=6))
    for _ in range(draw(st.integers(0, 25))):
        flipped = draw(st.lists(st.integers(0, 63), max_size=6, unique=True))
        (chosen,) = np.array([draw(st.sampled_from(hashes))]).view(np.uint64).tolist()
        hashes += np.array([chosen ^ sum(1 << bit for bit in flipped)], np.uint64).view(np.int64).tolist()
    return list(dict.fromkeys(hashes))


def num_bits(one: int, other: int) -> int:
    return ((one ^ other) % (1 << 64)).bit_count()


def connected_by_brute_force(pairs: Iterable[tuple[int, int]]) -> Mapping[int, int]:
    """Each number that is in a pair, and the smallest number that it is connected with."""
    pairs = set(pairs)
    first = {number: number for number in itertools.chain(*pairs)}
    for _ in first:
        for a, b in pairs:
            first[a] = first[b] = min(first[a], first[b])
    return first


def as_dict(found: tuple[hash_groups.Numbers, hash_groups.Numbers]) -> dict[int, int]:
    return dict(zip(*(numbers.tolist() for numbers in found), strict=True))


@given(families(), st.integers(0, MAX_DISTANCE))
def test_close_pairs_are_those_of_comparing_each_with_each(engine: Any, hashes: list[int], distance: int) -> None:
    pairs = itertools.combinations(range(len(hashes)), 2)
    close = {(a, b) for a, b in pairs if num_bits(hashes[a], hashes[b]) <= distance}
    engine.register("pictures", pa.table({"picture": hashes, "number": range(len(hashes))}))
    found = np.concatenate([np.zeros((2, 0), np.int64), *close_pairs(engine, distance)], axis=1)
    assert {(min(pair), max(pair)) for pair in found.T.tolist()} == close


@given(st.integers(1, 12), st.integers(0, 5), st.sets(st.integers(0, 63), max_size=5))
def test_hashes_that_differ_in_few_bits_agree_in_the_bits_of_some_mask(
    more: int, distance: int, bits: set[int]
) -> None:
    masks = block_masks(distance + more, distance)
    assert all(-(2**63) <= mask < 2**63 for mask in masks)
    flipped = sum(1 << bit for bit in [*bits][:distance])
    assert any(mask & flipped == 0 for mask in masks)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=60), st.integers(1, 8))
def test_pairs_connect_as_a_search_does_also_when_reduced(pairs: list[tuple[int, int]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hash_groups, "MAX_PAIRS", most)
        found = connected(np.array(pair).reshape(2, 1) for pair in pairs)
    assert as_dict(found) == connected_by_brute_force(pairs)
