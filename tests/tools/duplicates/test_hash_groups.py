import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data.tools.duplicates import hash_groups
from bridge_data.tools.duplicates.hash_groups import (
    MAX_DISTANCE,
    Groups,
    Hashes,
    Links,
    close_pairs,
    grouped,
    link_equal,
    link_near,
    num_bits_set,
)

HASHES = st.integers(0, 2**64 - 1)


@st.composite
def families(draw: st.DrawFn) -> list[int]:
    """Hashes of which many are close: some, and others made of them by flipping a few bits."""
    hashes = draw(st.lists(HASHES, min_size=1, max_size=6))
    for _ in range(draw(st.integers(0, 25))):
        flipped = draw(st.lists(st.integers(0, 63), max_size=6, unique=True))
        hashes.append(draw(st.sampled_from(hashes)) ^ sum(1 << bit for bit in flipped))
    return hashes


def array_of(hashes: list[int]) -> Hashes:
    return np.array(hashes, np.uint64)


def close_by_brute_force(hashes: list[int], distance: int) -> set[tuple[int, int]]:
    pairs = itertools.combinations(range(len(hashes)), 2)
    close = {(a, b) for a, b in pairs if (hashes[a] ^ hashes[b]).bit_count() <= distance}
    return {(a, b) for a, b in close if hashes[a] and hashes[b]}


def connected_by_brute_force(pairs: set[tuple[int, int]]) -> dict[int, int]:
    """Each number that is in a pair, and the smallest number that it is connected with."""
    first = {number: number for number in itertools.chain(*pairs)}
    for _ in first:
        for a, b in pairs:
            first[a] = first[b] = min(first[a], first[b])
    return dict(sorted(first.items()))


def as_dict(groups: Groups) -> dict[int, int]:
    return dict(zip(groups.members.tolist(), groups.firsts.tolist(), strict=True))


def near_groups(hashes: list[int], distance: int) -> Groups:
    links = Links()
    link_near(links, array_of(hashes), distance)
    return grouped(links)


@given(families(), st.integers(0, MAX_DISTANCE))
def test_near_groups_are_those_of_comparing_each_with_each(hashes: list[int], distance: int) -> None:
    expected = connected_by_brute_force(close_by_brute_force(hashes, distance))
    assert as_dict(near_groups(hashes, distance)) == expected


@given(families(), st.integers(1, 5), st.integers(1, 3))
def test_any_number_of_blocks_finds_all_pairs(hashes: list[int], distance: int, more: int) -> None:
    values = np.unique(array_of(hashes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hash_groups, "_num_blocks", lambda *_: distance + more)
        patch.setattr(hash_groups, "SLICE_ROWS", 5)
        found = {(a, b) for some, others in close_pairs(values, distance) for a, b in zip(some, others, strict=True)}
    expected = {(a, b) for a, b in itertools.combinations(values.tolist(), 2) if (a ^ b).bit_count() <= distance}
    assert {(min(map(int, pair)), max(map(int, pair))) for pair in found} == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=40), st.integers(1, 9))
def test_equal_digests_are_linked_whatever_the_slices(rows: list[tuple[int, int]], slice_rows: int) -> None:
    high = array_of([0 if high == 0 else (high << 62) - 1 for high, _ in rows])
    low = np.array([low for _, low in rows], np.uint32)
    links = Links()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hash_groups, "SLICE_ROWS", slice_rows)
        link_equal(links, high, low)
    equal = {(a, b) for a, b in itertools.combinations(range(len(rows)), 2) if rows[a] == rows[b] and rows[a][0]}
    assert as_dict(grouped(links)) == connected_by_brute_force(equal)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=60), st.integers(1, 8))
def test_links_connect_as_a_search_does_also_when_reduced(pairs: list[tuple[int, int]], most: int) -> None:
    links = Links()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hash_groups, "MAX_LINKS", most)
        for one, other in pairs:
            links.add(np.array([one]), np.array([other]))
    assert as_dict(grouped(links)) == connected_by_brute_force(set(pairs))


@given(st.lists(HASHES, max_size=20))
def test_bits_are_counted(hashes: list[int]) -> None:
    assert num_bits_set(array_of(hashes)).tolist() == [value.bit_count() for value in hashes]


def test_groups_and_copies_are_numbered_by_their_firsts() -> None:
    groups = Groups(np.array([1, 2, 4, 5, 9]), np.array([1, 2, 1, 2, 1]))
    assert groups.num_groups == 2
    assert groups.copies.tolist() == [4, 5, 9]
    group, copy = groups.numbered()
    assert (group.tolist(), copy.tolist()) == ([0, 1, 0, 1, 0], [0, 0, 1, 1, 2])


def test_pairs_in_a_hundred_thousand_hashes_are_found_without_comparing_each_with_each() -> None:
    random = np.random.default_rng(0)
    values = random.integers(1, 2**63, 100_000, np.uint64)
    near = values[:500].copy()
    for _ in range(4):
        near ^= np.uint64(1) << random.integers(0, 64, 500, np.uint64)
    values[-500:] = near
    groups = as_dict(near_groups(values.tolist(), 4))
    assert all(groups[99_500 + number] == number for number in range(500))
    assert len(groups) <= 1004
