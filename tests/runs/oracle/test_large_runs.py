"""The oracle over a billion samples in a hundred thousand shards that cannot be opened."""

import cProfile
import dataclasses
import tracemalloc
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from bridge_data import DefaultTaskEncoder, TextSample, WorkerConfig
from bridge_data.data.records import READ_BYTES
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.lanes.maker import Batching
from bridge_data.order.plan_order import ShuffleSettings
from bridge_data.order.row import Row
from bridge_data.order.state import LoaderState
from bridge_data.plan import Plan
from bridge_data.plan.source import Source
from bridge_data.runs.run_order import RunOrder
from bridge_data.storage import Location, location

T = TypeVar("T")

MAX_CALLS = 500_000
MAX_BYTES = 128 << 20
"""What one question may cost: a call a sample would be 1e9, a call and its objects a shard a million and more."""


@dataclasses.dataclass(frozen=True, eq=False)
class NoShards:
    """Samples by number alone: reading one is an error."""

    name: str
    counts: list[int]
    split_part: str = "train"
    sample_bytes: float | None = 1e5
    read_bytes = READ_BYTES

    @property
    def root(self) -> Location:
        return location(f"/nowhere/{self.name}")

    @property
    def shards(self) -> list[tuple[str, int]]:
        return [(f"data-{number:06d}.tar", count) for number, count in enumerate(self.counts)]

    def identity(self) -> dict[str, Any]:
        return {"name": self.name, "counts": len(self.counts)}

    def reader(self) -> Any:
        raise AssertionError("a shard was to be opened")


def source_of(name: str, counts: list[int]) -> Source:
    """A source with these samples by shard."""
    return Source(
        path=f"/nowhere/{name}",
        split_part="train",
        records=NoShards(name, counts),
        sample_class=TextSample,
        subflavors={},
        config_file="",
    )


def run_over(counts: dict[str, list[int]], weights: tuple[float, ...], num_lanes: int = 128) -> RunOrder:
    """A run that blends sources with samples by shard."""
    sources = tuple(source_of(name, of_shards) for name, of_shards in counts.items())
    dataset = LaneDataset(
        Plan(sources[0], sources, weights),
        shuffle=ShuffleSettings(shuffle_buffer_size=100, max_samples_per_sequence=100),
        batching=Batching(batch_size=4),
        task_encoder=DefaultTaskEncoder(),
        worker_config=WorkerConfig(0, 64, 0, num_lanes=num_lanes),
    )
    return RunOrder(dataset)


def state_after(run: RunOrder, num_batches: int) -> LoaderState:
    """A state of a run over one source, as it is saved after `num_batches` micro-batches of each lane."""
    dataset, lanes = run.dataset, {}
    for lane in range(run.num_lanes):
        cursor = dataset.order.cursor(lane, dataset.new_state(run.num_lanes))
        cursor.skip(4 * num_batches)
        lanes[lane] = {**cursor.state(), "micro_batches": num_batches}
    state = dataset.new_state(run.num_lanes)
    return dataclasses.replace(state, micro_batch_index=num_batches * run.num_lanes, lanes=lanes)


UNEQUAL = [5_000 + 7_919 * number % 10_001 for number in range(2_000)]


@pytest.mark.parametrize(
    ("counts", "weights"),
    [
        ({"web": [10_000] * 2_000, "books": [1_000] * 200}, (4.0, 1.0)),
        ({"web": UNEQUAL}, (1.0,)),
        ({"web": [10_000] * 100_000}, (1.0,)),
    ],
    ids=["a blend", "unequal shards", "a billion samples"],
)
def test_no_step_costs_a_walk_over_the_data(counts, weights):
    run = run_over(counts, weights)
    for step in (0, 78_125):
        samples = answered(lambda step=step: run.at(step).samples)
        assert len(samples) == 64 * 4
        assert samples[0].shard.startswith("data-")
    one = samples[100]
    assert one in answered(lambda: run.when(source=one.source, index=one.index, steps=range(1 + 78_125)))


def answered(question: Callable[[], T]) -> T:
    """The answer, which took a bounded number of calls and of bytes."""
    calls = cProfile.Profile()  # of functions, those written in C included
    tracemalloc.start()
    try:
        answer = calls.runcall(question)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(function.callcount for function in calls.getstats()) < MAX_CALLS
    assert peak_bytes < MAX_BYTES
    return answer


def test_from_a_state_on_no_epoch_before_it_is_computed(monkeypatch):
    counts = UNEQUAL[:100]
    run = run_over({"web": counts}, (1.0,))
    step = 5 * sum(counts) // 256
    known = RunOrder(run.dataset, states=[state_after(run, step * 64 // 128)])
    expected = run.at(step + 9).samples
    computed = set()
    permutation = Row.permutation
    monkeypatch.setattr(Row, "permutation", lambda row, shuffle: computed.add(shuffle) or permutation(row, shuffle))
    assert known.at(step + 9).samples == expected
    assert computed <= {4, 5}
    assert expected[7] in known.when(source="web/train", index=expected[7].index, steps=range(step, step + 20))
