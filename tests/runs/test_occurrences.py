"""When a sample comes, by arithmetic, is when a cursor draws it."""

import dataclasses
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data import DefaultTaskEncoder, WorkerConfig
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.maker import Batching
from bridge_data.order.plan_order import ShuffleSettings
from bridge_data.order.row import Row
from bridge_data.order.state import LoaderState
from bridge_data.plan import Plan
from bridge_data.runs import occurrences
from bridge_data.runs.occurrences import can_tell, draws_of
from tests.runs.oracle.test_large_runs import source_of

COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(sum)


def dataset_of(counts: list[list[int]], shuffle: ShuffleSettings, num_lanes: int, together: int | None) -> LaneDataset:
    sources = tuple(
        dataclasses.replace(source_of(f"s{number}", one), epochs_per_shuffle=together)
        for number, one in enumerate(counts)
    )
    weights = tuple(range(1, 1 + len(sources)))
    return LaneDataset(
        Plan(sources[0], sources, tuple(weight / sum(weights) for weight in weights)),
        shuffle=shuffle,
        batching=Batching(batch_size=1),
        task_encoder=DefaultTaskEncoder(),
        worker_config=WorkerConfig(0, 1, 0, num_lanes=num_lanes),
    )


def state_after(dataset: LaneDataset, draws: int) -> LoaderState:
    """The state of a run whose lane n has drawn `draws` + n samples."""
    state, lanes = dataset.new_state(), {}
    for lane in state.lanes:
        cursor = dataset.order.cursor(lane, state)
        cursor.skip(draws + lane)
        lanes[lane] = {**cursor.state(), "micro_batches": draws + lane}
    return dataclasses.replace(state, lanes=lanes)


@given(
    counts=st.lists(COUNTS, min_size=1, max_size=3),
    num_lanes=st.integers(1, 5),
    size=st.none() | st.integers(1, 12),
    buffer=st.none() | st.integers(0, 30),
    together=st.sampled_from([1, 1, 1, 3, None]),
    before=st.integers(0, 150),
    draws=st.tuples(st.integers(0, 80), st.integers(0, 150)),
    many_chunks=st.sampled_from([0, occurrences._MANY_CHUNKS]),
)
def test_a_sample_comes_where_the_cursors_of_the_lanes_draw_it(
    counts: list[list[int]],
    num_lanes: int,
    size: int | None,
    buffer: int | None,
    together: int | None,
    before: int,
    draws: tuple[int, int],
    many_chunks: int,
) -> None:
    shuffle = ShuffleSettings(shuffle_buffer_size=buffer, max_samples_per_sequence=size)
    dataset = dataset_of(counts, shuffle, num_lanes, together)
    state = state_after(dataset, before)
    assert can_tell(dataset.order, state)
    wanted = range(draws[0], draws[0] + draws[1])
    drawn = defaultdict[tuple[int, int], list[tuple[int, int]]](list)
    for lane, own in state.lanes.items():
        cursor = dataset.order.cursor(lane, state)
        cursor.seek(own)
        refs = [cursor.next() for _ in range(wanted.stop)]
        for number in wanted:
            drawn[refs[number].source, refs[number].index].append((lane, number))
    for source, of_shards in enumerate(counts):
        for index in range(0, sum(of_shards), 1 + sum(of_shards) // 10):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(occurrences, "_MANY_CHUNKS", many_chunks)
                assert sorted(draws_of(dataset.order, state, source, index, wanted)) == drawn[source, index]


def test_the_work_grows_with_the_epochs_and_not_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    shuffle = ShuffleSettings(shuffle_buffer_size=10, max_samples_per_sequence=3)
    dataset = dataset_of([[11, 20, 7]], shuffle, 4, 1)
    shuffles_looked_at: list[int] = []
    lengths = Row.spans

    def counting(row: Row, shuffle: int, positions: Any) -> Any:
        shuffles_looked_at.append(shuffle)
        return lengths(row, shuffle, positions)

    monkeypatch.setattr(Row, "spans", counting)
    for many_chunks in (0, occurrences._MANY_CHUNKS):
        monkeypatch.setattr(occurrences, "_MANY_CHUNKS", many_chunks)
        shuffles_looked_at.clear()
        num_found = sum(1 for _ in draws_of(dataset.order, dataset.new_state(), 0, 5, range(38 * 60)))
        assert num_found >= 60
        assert len(shuffles_looked_at) < 20 * num_found
