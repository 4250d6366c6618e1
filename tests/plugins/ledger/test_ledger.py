"""The sums of samples."""

import dataclasses
import itertools
import json
import logging
import random
import struct

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bridge_data.errors import StateError
from bridge_data.order.extras import LaneExtras, begun, resharded_extras
from bridge_data.order.state import Generation, LoaderState
from bridge_data.plugins.ledger import ledger_sums
from bridge_data.plugins.ledger.ledger import Ledger, ledger_line, sums_of
from bridge_data.plugins.ledger.ledger_sums import LedgerSums

SOURCES = ["0a", "0b", "0c"]

Reference = tuple[int, int, int, int]

references = st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 1 << 40), st.integers(0, 3))
micro_batches = st.lists(st.lists(references, max_size=5), min_size=1, max_size=12)


def packed(samples: list[Reference]) -> bytes:
    return b"".join(struct.pack("<4q", *sample) for sample in samples)


def sums(batches: dict[int, list[Reference]], names: list[str] = SOURCES, repetition: int = 0) -> LedgerSums:
    found = LedgerSums()
    for one in ledger_sums.tallies([(number, packed(batch)) for number, batch in batches.items()], names, repetition):
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


def state(micro_batches: list[int], **extras: object) -> LoaderState:
    """Of lanes with so many micro-batches."""
    fingerprint = {"sources": [[name, name] for name in SOURCES], "weights": [1, 1, 1], "order": "shuffled"}
    lanes = {
        lane: {"draws": 9, "cursors": {}, "micro_batches": number} if number else {}
        for lane, number in enumerate(micro_batches)
    }
    generation = Generation(len(micro_batches), [[4, 2, 0, 0]] * 3)
    return LoaderState(fingerprint, [generation], sum(micro_batches), lanes, extras=extras)


def counted(before: LoaderState, batches: dict[int, list[Reference]]) -> LoaderState:
    """The state after lanes of a run with a ledger have made some micro-batches from `before` on."""
    after = begun(before, [Ledger(SOURCES)])
    for index, batch in sorted(batches.items()):
        number = index % after.num_lanes
        lane = LaneExtras([Ledger(SOURCES)], number, after)
        lane.note(index, np.array(batch, dtype=np.int64).reshape(-1, 4))
        own = {"draws": 9, "cursors": {}, "micro_batches": index // after.num_lanes + 1, "extras": lane.save()}
        after = dataclasses.replace(after, lanes=after.lanes | {number: own}, micro_batch_index=index + 1)
    return LoaderState.from_dict(json.loads(json.dumps(after.to_dict())))


def test_the_lanes_of_a_state_sum_up_what_they_made() -> None:
    batches = {0: [(0, 0, 5, 0)], 1: [(2, 0, 7, 1), (0, 0, 8, 0)], 2: [(1, 0, 6, 0)]}
    assert sums_of(counted(state([0, 0]), batches)) == sums(batches)


def test_a_run_that_began_without_a_ledger_says_from_where_it_counts() -> None:
    old = state([3, 2, 2])
    assert sums_of(old) is None
    found = sums_of(counted(old, {7: [(0, 0, 1, 0)]}))
    assert found is not None
    assert (found.since, found.samples) == (7, 1)
    assert found.unpositioned == sums({7: [(0, 0, 1, 0)]}).unpositioned
    assert str(found).endswith("(counted from micro-batch 7 on)")


def test_what_was_before_a_reshard_is_counted_once() -> None:
    before = counted(state([0, 0]), {0: [(0, 0, 5, 0)], 1: [(1, 0, 5, 0)]})
    after = state([2], **resharded_extras(before, [Ledger(SOURCES)]))
    assert sums_of(after) == sums_of(before) == sums({0: [(0, 0, 5, 0)], 1: [(1, 0, 5, 0)]})
    assert sums_of(state([2, 2], **resharded_extras(after, [Ledger(SOURCES)]))) == sums_of(before)


def test_a_run_that_asks_for_no_ledger_drops_that_of_a_state_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    before = counted(state([0, 0]), {0: [(0, 0, 5, 0)]})
    assert begun(before, []) == state([1, 0])
    assert "extras.ledger" in caplog.text and "ledger_path" in caplog.text


def test_a_state_with_what_no_plug_in_knows_is_refused() -> None:
    for extras in ({"totals": {"version": 1, "data": 0}}, {"ledger": {"version": 99, "data": 0}}):
        with pytest.raises(StateError, match=r"^extras\.\w+: version .* which this release does not know"):
            begun(state([1], **extras), [])


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
    saved, kept = counted(state([0]), {0: [(0, 0, 5, 0)]}), Ledger(SOURCES)
    with caplog.at_level(logging.INFO, "bridge_data"):
        kept.gathered(saved)
        kept.gathered(saved)
    assert [record.message for record in caplog.records] == [ledger_line(saved)]
