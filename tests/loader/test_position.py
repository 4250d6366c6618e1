from hypothesis import given
from hypothesis import strategies as st

from bridge_data.loader.position import Position
from bridge_data.state import LoaderState

from .streams import FINGERPRINT, config


def fresh(num_lanes: int, rank: int, world_size: int) -> Position:
    ranks = config(0, num_lanes, rank, world_size)
    return Position(ranks, LoaderState(FINGERPRINT, [(num_lanes, [])], 0, {lane: {} for lane in ranks.lanes}))


def run(position: Position, lengths: list[int], num: int) -> list[tuple[int, int]]:
    """Take up to `num` batches from lanes of these lengths."""
    taken: list[tuple[int, int]] = []
    while len(taken) < num and (turns := position.turns()):
        lane = turns[0]
        done = position.state.lanes[lane].get("micro_batches", 0)
        if done == lengths[lane]:
            position.end(lane)
        else:
            position.advance(lane, {"micro_batches": done + 1})
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
        assert position.turns() == [] and position.num_delivered == len(expected)


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
        mine = LoaderState(FINGERPRINT, [(num_lanes, [])], steps * before, {lane: lanes[lane] for lane in ranks.lanes})
        slots += [lane + number * num_lanes for lane, number in run(Position(ranks, mine), endless, 5)]
    assert sorted(slots) == list(range(steps * before, steps * before + 5 * after))
