import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from bridge_data.loader.loader import Position
from bridge_data.order.state import Generation, LaneState, LoaderState, Resharded, merge_states
from bridge_data.order.step_skips import SkippedRange, StepSkips
from tests.loader.streams import FINGERPRINT, GEOMETRY, config, state_after


def step(positions: list[Position], lengths: list[int]) -> list[tuple[int, int]] | None:
    """One step of ranks that end evenly: what they serve; None if none of them has anything left."""
    for position in positions:
        while (lane := position.turn()) is not None and done(position, lane) == lengths[lane]:
            position.end_lane(state_after(done(position, lane)))
    own = [None if position.turn() is None else position.next_index() for position in positions]
    agreed = min((index for index in own if index is not None), default=None)
    if agreed is None:
        return None
    served = []
    for position, index in zip(positions, own, strict=True):
        lane = position.turn()
        if index == agreed and lane is not None:
            served.append((lane, done(position, lane)))
            position.advance(state_after(done(position, lane) + 1))
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
        FINGERPRINT | {"repeat": False}, [Generation(12, GEOMETRY)], 0, {lane: {} for lane in range(12)}
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


def test_a_turn_changes_its_lane_and_the_index_and_hands_on_all_else() -> None:
    lanes = {0: state_after(2), 2: state_after(2)}
    skips = StepSkips.of([SkippedRange(20, 24)])
    before = LoaderState(
        FINGERPRINT, [Generation(4, GEOMETRY)], 8, lanes, drawn_before=5, epoch_batches=3, ended=True, extras={"a": 1},
        repetition=2, skips=skips, resharded=Resharded(4, [1]),
    )  # fmt: skip
    assert all(getattr(before, field.name) for field in dataclasses.fields(before))
    position, own = Position(config(0, 4, 0, 2), before, 100), LaneState(draws=9, cursors={}, micro_batches=3)
    assert position.state == before
    position.advance(own)
    changed = {"lanes": {0: own, 2: lanes[2]}, "micro_batch_index": 10, "epoch_batches": 4, "ended": False}
    assert position.state == dataclasses.replace(before, **changed)
    assert (position.turn(), lanes[0]) == (2, state_after(2))
