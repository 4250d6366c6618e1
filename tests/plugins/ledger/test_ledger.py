"""The sums of samples."""

import dataclasses
import itertools
import logging
import random
import struct

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bridge_data.order.state import LedgerLog, LoaderState
from bridge_data.plugins.ledger import ledger
from bridge_data.plugins.ledger.ledger import LedgerSums

SOURCES = ["0a", "0b", "0c"]

Reference = tuple[int, int, int, int]

references = st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 1 << 40), st.integers(0, 3))
micro_batches = st.lists(st.lists(references, max_size=5), min_size=1, max_size=12)


def packed(samples: list[Reference]) -> bytes:
    return b"".join(struct.pack("<4q", *sample) for sample in samples)


def sums(batches: dict[int, list[Reference]], names: list[str] = SOURCES, repetition: int = 0) -> LedgerSums:
    found = LedgerSums()
    for one in ledger.tallies([(number, packed(batch)) for number, batch in batches.items()], names, repetition):
        found = found.plus(one)
    return found


def test_the_sums_do_not_change_from_release_to_release() -> None:
    batches = {0: [(0, 0, 5, 0), (2, 1, 7, 0)], 9: [(1, 3, 1 << 33, 2)]}
    expected = "positioned 2ef64665d955defecdb15ab2d2966bdc, unpositioned 459c79b797012e2e340e7e201eb57323"
    assert str(sums(batches)) == f"samples 3, {expected}"


@given(micro_batches, st.randoms())
def test_the_sums_of_parts_add_up_in_any_order(batches: list[list[Reference]], rng: random.Random) -> None:
    numbered = list(enumerate(batches))
    whole = sums(dict(numbered))
    rng.shuffle(numbered)
    cut = rng.randint(0, len(numbered))
    assert sums(dict(numbered[:cut])).plus(sums(dict(numbered[cut:]))) == whole
    assert whole.samples == sum(map(len, batches))


def test_sources_count_by_their_names_and_repetitions_apart() -> None:
    assert sums({3: [(0, 1, 2, 0)]}) == sums({3: [(2, 1, 2, 0)]}, ["0c", "0b", "0a"])
    assert sums({3: [(0, 1, 2, 0)]}) != sums({3: [(1, 1, 2, 0)]})
    once, again = sums({3: [(0, 1, 2, 0)]}), sums({3: [(0, 1, 2, 0)]}, repetition=1)
    assert once.unpositioned == again.unpositioned
    assert once.positioned != again.positioned


def state(micro_batches: list[int], handed_out: dict[int, bytes]) -> LoaderState:
    """Of lanes with so many micro-batches, of which those by number in `handed_out` are not counted yet."""
    fingerprint = {"sources": [[name, name] for name in SOURCES], "weights": [1, 1, 1], "order": "shuffled"}
    lanes = {
        lane: {"draws": 9, "cursors": {}, "micro_batches": number} if number else {}
        for lane, number in enumerate(micro_batches)
    }
    generation = (len(micro_batches), [[4, 2, 0, 0]] * 3)
    return LoaderState(fingerprint, [generation], sum(micro_batches), lanes, uncounted=chain(handed_out))


def chain(handed_out: dict[int, bytes]) -> ledger.Uncounted | None:
    found = None
    for batch in handed_out.items():
        found = batch, found
    return found


def test_a_state_counts_what_waits_when_it_becomes_plain_data() -> None:
    batches = {0: [(0, 0, 5, 0)], 2: [(1, 0, 6, 0)], 1: [(2, 0, 7, 1), (0, 0, 8, 0)]}
    waiting = state([2, 1], {number: packed(batch) for number, batch in batches.items()})
    restored = LoaderState.from_dict(waiting.to_dict())
    assert not restored.uncounted
    assert restored.sums() == waiting.sums() == sums(batches)
    assert restored.to_dict() == waiting.to_dict() == waiting.settled().to_dict()


def test_a_run_that_began_without_a_ledger_says_from_where_it_counts() -> None:
    old = state([3, 2, 2], {})
    assert old.sums().since == 7
    later = dataclasses.replace(old, micro_batch_index=8, lanes=old.lanes | {1: old.lanes[1] | {"micro_batches": 3}})
    later = dataclasses.replace(later, uncounted=chain({7: packed([(0, 0, 1, 0)])}))
    found = LoaderState.from_dict(later.to_dict()).sums()
    assert (found.since, found.samples) == (7, 1)
    assert found.unpositioned == sums({7: [(0, 0, 1, 0)]}).unpositioned
    assert str(found).endswith("(counted from micro-batch 7 on)")


def test_what_was_before_a_re_deal_is_counted_once() -> None:
    before = state([1, 1], {0: packed([(0, 0, 5, 0)]), 1: packed([(1, 0, 5, 0)])})
    after = dataclasses.replace(state([2], {}), extras=before.sums().in_extras(before.extras))
    assert after.sums() == before.sums() == sums({0: [(0, 0, 5, 0)], 1: [(1, 0, 5, 0)]})
    again = dataclasses.replace(state([2, 2], {}), extras=after.sums().in_extras(after.extras))
    assert again.sums() == before.sums()


@given(micro_batches, st.data())
def test_the_positioned_sum_tells_every_change_and_the_other_every_other_sample(
    batches: list[list[Reference]], data: st.DataObject
) -> None:
    places = [(number, at) for number, batch in enumerate(batches) for at in range(len(batch))]
    assume(places)
    number, at = data.draw(st.sampled_from(places))
    changed = [list(batch) for batch in batches]
    if data.draw(st.booleans(), label="two samples change places"):
        other, there = data.draw(st.sampled_from(places))
        changed[number][at], changed[other][there] = changed[other][there], changed[number][at]
    else:
        changed[number][at] = data.draw(references)
    before, after = sums(dict(enumerate(batches))), sums(dict(enumerate(changed)))
    assert (before.positioned == after.positioned) == (batches == changed)
    assert (before.unpositioned == after.unpositioned) == (
        sorted(itertools.chain(*batches)) == sorted(itertools.chain(*changed))
    )


def test_the_line_is_logged_once_a_position(caplog: pytest.LogCaptureFixture) -> None:
    saved = state([1], {0: packed([(0, 0, 5, 0)])})
    with caplog.at_level(logging.INFO, "bridge_data"):
        log = LedgerLog()
        log.note(saved)
        log.note(saved)
    assert [record.message for record in caplog.records] == [saved.ledger_line()]
