from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data import WorkerConfig
from bridge_data.loader.position import Position
from bridge_data.order.state import LoaderState, merge_states
from tests.loader.streams import FINGERPRINT, GEOMETRY, config, state_after


def fresh(num_lanes: int, rank: int, world_size: int) -> Position:
    ranks = config(0, num_lanes, rank, world_size)
    return Position(ranks, LoaderState(FINGERPRINT, [(num_lanes, GEOMETRY)], 0, {lane: {} for lane in ranks.lanes}))


def run(position: Position, lengths: list[int], num: int) -> list[tuple[int, int]]:
    """Take up to `num` batches from lanes of these lengths."""
    taken: list[tuple[int, int]] = []
    while len(taken) < num and (lane := position.turn()) is not None:
        done = position.state.lanes[lane].get("micro_batches", 0)
        if done == lengths[lane]:
            position.end_lane()
        else:
            position.advance(state_after(done + 1), b"")
            taken.append((lane, done))
    return taken


shapes = st.tuples(st.integers(1, 4), st.integers(1, 4)).flatmap(
    lambda shape: st.tuples(
        st.just(shape[0]), st.lists(st.integers(0, 5), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    )
)


@given(shapes)
def test_every_rank_takes_its_lanes_in_turn_and_passes_over_those_that_ended(shape: tuple[int, list[int]]) -> None:
    world_size, lengths = shape
    for rank in range(world_size):
        position = fresh(len(lengths), rank, world_size)
        rounds = range(max(lengths) + 1)
        expected = [(lane, k) for k in rounds for lane in range(rank, len(lengths), world_size) if k < lengths[lane]]
        assert run(position, lengths, 1_000) == expected
        assert position.lanes() == []


@given(shapes, st.integers(0, 30))
def test_a_position_made_from_a_saved_state_has_the_same_turns_to_come(
    shape: tuple[int, list[int]], steps: int
) -> None:
    world_size, lengths = shape
    for rank in range(world_size):
        position = fresh(len(lengths), rank, world_size)
        run(position, lengths, steps)
        saved = LoaderState.from_dict(position.state.to_dict())
        resumed = Position(config(0, len(lengths), rank, world_size), saved)
        assert run(resumed, lengths, 1_000) == run(position, lengths, 1_000)


@given(st.integers(1, 24), st.sampled_from([1, 2, 3, 4, 6, 12]), st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_the_job_goes_on_at_the_same_slot_with_another_number_of_ranks(steps: int, before: int, after: int) -> None:
    num_lanes, endless = 12, [10**9] * 12
    slots = []
    states = []
    for rank in range(before):
        position = fresh(num_lanes, rank, before)
        run(position, endless, steps)
        states.append(position.state)
    assert {state.next_slot for state in states} == {steps * before}
    lanes = {lane: value for state in states for lane, value in state.lanes.items()}
    for rank in range(after):
        ranks = config(0, num_lanes, rank, after)
        mine = LoaderState(
            FINGERPRINT, [(num_lanes, GEOMETRY)], steps * before, {lane: lanes[lane] for lane in ranks.lanes}
        )
        slots += [lane + number * num_lanes for lane, number in run(Position(ranks, mine), endless, 5)]
    assert sorted(slots) == list(range(steps * before, steps * before + 5 * after))


def step(positions: list[Position], lengths: list[int]) -> list[tuple[int, int]] | None:
    """One step of ranks that end evenly: what they serve; None if none of them has anything left."""
    for position in positions:
        while (lane := position.turn()) is not None and done(position, lane) == lengths[lane]:
            position.end_lane()
    own = [None if position.turn() is None else position.next_slot() for position in positions]
    agreed = min((slot for slot in own if slot is not None), default=None)
    if agreed is None:
        return None
    served = []
    for position, slot in zip(positions, own, strict=True):
        lane = position.turn()
        if slot == agreed and lane is not None:
            served.append((lane, done(position, lane)))
            position.advance(state_after(done(position, lane) + 1), b"")
        else:
            position.pass_over(agreed)
    return sorted(served, key=lambda batch: batch[1] * len(lengths) + batch[0])


def done(position: Position, lane: int) -> int:
    return int(position.state.lanes[lane].get("micro_batches", 0))


@given(
    lengths=st.lists(st.integers(0, 6), min_size=12, max_size=12),
    chain=st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 6, 12]), st.integers(0, 9)), min_size=1, max_size=5),
)
def test_ranks_that_end_evenly_serve_one_order_however_many_they_are(
    lengths: list[int], chain: list[tuple[int, int]]
) -> None:
    expected = [(lane, number) for number in range(6) for lane in range(12) if number < lengths[lane]]
    served: list[tuple[int, int]] = []
    state = LoaderState(
        FINGERPRINT | {"repeat": False}, [(12, GEOMETRY)], 0, {lane: {} for lane in range(12)}
    ).to_dict()
    for world_size, steps in [*chain, (chain[0][0], 1_000)]:
        configs = [config(0, 12, rank, world_size) for rank in range(world_size)]
        positions = [
            Position(ranks, LoaderState.from_dict(state).of_rank(ranks.rank, ranks.world_size)) for ranks in configs
        ]
        for _ in range(steps):
            if (batches := step(positions, lengths)) is None:
                break
            served += batches
        state = merge_states([position.state.to_dict() for position in positions])
    assert served == expected


def test_a_log_of_batches_is_not_written_and_a_warning_names_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge_data.options._warned", set())
    with pytest.warns(UserWarning, match="worker_log_level has no effect .*ledger_path"):
        WorkerConfig(rank=0, world_size=1, num_workers=0, worker_log_level=1)
    with pytest.warns(UserWarning, match="worker_debug_path has no effect .*ledger_path"):
        WorkerConfig(rank=0, world_size=1, num_workers=0, worker_debug_path=str(tmp_path / "log"))
