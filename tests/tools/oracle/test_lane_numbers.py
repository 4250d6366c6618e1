"""The samples of lanes by number, compared with cursors that draw them one by one."""

import dataclasses
from collections.abc import Callable

import pytest

from bridge_data import WorkerConfig, get_train_dataset
from bridge_data.order import SampleRef
from bridge_data.order.plan_order import PlanOrder
from bridge_data.order.state import LoaderState
from bridge_data.tools import sample_numbers
from bridge_data.tools.sample_numbers import JobNumbers, LaneDraw
from tests.prepared import write_blend, write_texts

NUM_LANES, NUM_DRAWS = 3, 900


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory) -> PlanOrder:
    folder = tmp_path_factory.mktemp("lane_numbers")
    for name, size, per_shard in (("a", 230, 47), ("b", 77, 13)):
        write_texts(folder / name, size, per_shard=per_shard)
    dataset = get_train_dataset(
        write_blend(folder / "blend.yaml", {"a": 3, "b": 1}),
        worker_config=WorkerConfig(0, 1, 0, num_lanes=NUM_LANES),
        batch_size=1,
        shuffle_buffer_size=20,
        max_samples_per_sequence=10,
    )
    return dataset.order


def beginning(order: PlanOrder) -> LoaderState:
    lanes = {lane: {} for lane in range(NUM_LANES)}
    return LoaderState(order.fingerprint(), [order.first_generation(NUM_LANES)], 0, lanes)


def later(order: PlanOrder) -> LoaderState:
    """A state after some draws, a re-deal and more draws."""
    state = beginning(order)
    for num_draws in (170, 45):
        lanes = {}
        for lane in range(NUM_LANES):
            cursor = order.cursor(lane, state)
            if state.lanes[lane]:
                cursor.seek(state.lanes[lane])
            cursor.take(num_draws + lane)
            lanes[lane] = {**cursor.state(), "micro_batches": num_draws}
        state = dataclasses.replace(state, lanes=lanes, next_slot=num_draws * NUM_LANES)
        if num_draws == 170:
            state = order.redealt(state, NUM_LANES, range(NUM_LANES))
    return state


def drawn(order: PlanOrder, state: LoaderState, lane: int) -> list[SampleRef]:
    cursor = order.cursor(lane, state)
    if state.lanes[lane]:
        cursor.seek(state.lanes[lane])
    return [ref for _, ref in cursor.take(NUM_DRAWS)]


@pytest.mark.parametrize("few", [0, 1 << 16], ids=["lane by lane", "all lanes together"])
@pytest.mark.parametrize("since", [beginning, later])
def test_every_draw_is_told_and_found(
    order: PlanOrder, monkeypatch: pytest.MonkeyPatch, since: Callable[[PlanOrder], LoaderState], few: int
) -> None:
    monkeypatch.setattr(sample_numbers, "_FEW", few)
    state = since(order)
    expected = [drawn(order, state, lane) for lane in range(NUM_LANES)]
    numbers = JobNumbers(order, state)
    for first, count in ((0, NUM_DRAWS), (611, 7), (3, 1)):
        for lane in range(NUM_LANES):
            assert numbers.lane(lane).take(first, count) == expected[lane][first : first + count]
    for source, index in ((0, 0), (0, 229), (1, 76), (1, 12)):
        found = list(numbers.find(source, index, lambda lane, number: number >= NUM_DRAWS))
        assert sorted(found) == [
            LaneDraw(lane, number, ref)
            for lane, refs in enumerate(expected)
            for number, ref in enumerate(refs)
            if (ref.source, ref.index) == (source, index)
        ]
        assert len(found) > 2
