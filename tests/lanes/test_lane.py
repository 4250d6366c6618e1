import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bridge_data import (
    DefaultTaskEncoder,
    FatalSampleError,
    LaneDataset,
    SavableDataLoader,
    SkipSample,
    TextSample,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    merge_states,
)
from bridge_data.counts import tokens_of
from bridge_data.lanes.lane import Lane, Produced
from tests.prepared import train_dataset
from tests.properties.jobs import Encoder, GroupingEncoder


def dataset(data: Path, encoder: Any = None, *, num_lanes: int = 2, **settings: Any) -> LaneDataset:
    return train_dataset(data, num_lanes=num_lanes, task_encoder=encoder, **({"batch_size": 4} | settings))


def lane_of(made: LaneDataset, number: int = 0, state: dict[str, Any] | None = None, **extra: Any) -> Lane:
    loader_state = made.new_state()
    loader_state.lanes[number] = json.loads(json.dumps(state or {}))
    return made.lane(number, loader_state, **extra)


def take(lane: Lane, count: int) -> list[Produced[Any]]:
    return [lane.next() for _ in range(count)]


def drain(lane: Lane) -> list[Any]:
    batches = []
    try:
        while True:
            batches.append(lane.next().batch)
    except StopIteration:
        return batches


ENCODERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (Encoder(), {}),
    "skips and parts": (Encoder(skip_every=3, num_parts=3), {}),
    "packing": (Encoder(skip_every=7), {"packing_buffer_size": 30}),
    "packing parts": (Encoder(num_parts=3), {"packing_buffer_size": 10, "batch_size": 2}),
    "groups": (GroupingEncoder(num_groups=3), {}),
    "packing and groups": (GroupingEncoder(num_groups=3, num_parts=2), {"packing_buffer_size": 25}),
    "single samples": (DefaultTaskEncoder(), {"batch_size": None}),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_a_lane_goes_on_from_the_state_of_any_batch(data: Path, name: str) -> None:
    encoder, settings = ENCODERS[name]
    made = dataset(data, encoder, **settings)
    whole = take(lane_of(made), 40)
    for step, batch in enumerate(whole[:-1]):
        following = lane_of(made, 0, batch.state).next()
        assert (following.batch, following.state) == (whole[step + 1].batch, whole[step + 1].state)


class EarlyEnd(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Emits every micro-batch in three parts."""

    def encode_batch(self, batch: TextSample) -> Iterator[tuple[str, int]]:
        for part in range(3):
            yield "-".join(batch.text), part


def test_a_batch_that_is_out_in_part_goes_on_after_a_restore(data: Path) -> None:
    made = dataset(data, EarlyEnd())
    whole = [lane.batch for lane in take(lane_of(made), 9)]
    assert [part for _, part in whole] == [0, 1, 2] * 3
    for step in range(8):
        state = take(lane_of(made), step + 1)[-1].state
        assert [batch.batch for batch in take(lane_of(made, 0, state), 8 - step)] == whole[step + 1 :]


def test_a_finite_lane_flushes_packs_buckets_and_the_last_batch(data: Path) -> None:
    for name in ("plain", "packing parts", "groups", "packing and groups"):
        encoder, settings = ENCODERS[name]
        made = dataset(data, encoder, repeat=False, **settings)
        keys = [key for n in range(2) for batch in drain(lane_of(made, n)) for unit in batch for key in unit]
        assert len(keys) == len(set(keys))
        assert {key[:3] for key in keys} == {
            (source, 0, index) for source, size in zip(made.source_ids, (300, 90), strict=True) for index in range(size)
        }


@pytest.mark.processes
@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_is_left_out_after_the_last_batch_is_counted_too(data: Path, num_workers: int) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=num_workers, num_lanes=2)
    made = dataset(data, Encoder(skip_every=3), repeat=False, batch_size=8, batch_drop_last=True, worker_config=config)
    with get_loader(made) as loader:
        loader.wait_for_workers()
        emitted = sum(len(batch) for batch in loader)
    assert set(loader.skipped) == {"encode_sample", "batch_drop_last"}
    assert emitted + sum(loader.skipped.values()) == 390


@pytest.mark.parametrize("num_lanes", [4, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_and_only_once_wherever_the_job_goes_on(num_lanes: int, drop_last: bool) -> None:
    texts = {"train": [TextSample(__key__=str(number), text=str(number)) for number in range(41)]}

    def loader_of(rank: int, world_size: int, num_lanes: int) -> SavableDataLoader:
        place: dict[str, Any] = {"rank": rank, "world_size": world_size, "num_lanes": num_lanes}
        options = {"repeat": False, "max_samples_per_sequence": 5, "batch_drop_last": drop_last}
        return get_savable_loader(train_dataset(texts, **place, task_encoder=Encoder(skip_every=3), **options))

    before, after = [loader_of(rank, 2, 4) for rank in range(2)], loader_of(0, 1, num_lanes)
    streams, emitted, totals = [iter(loader) for loader in before], 0, []
    while batches := [batch for stream in streams if (batch := next(stream, None)) is not None]:
        emitted += sum(map(len, batches))
        after.skipped.clear()
        after.restore_state_rank(merge_states([loader.save_state_rank() for loader in before]))
        left = sum(map(len, after))
        totals.append(emitted + left + sum(sum(loader.skipped.values()) for loader in (*before, after)))
    assert {*totals[:-1]} == {41}  # after the last step, the next pass begins


class Nothing(DefaultTaskEncoder[Any, Any, Any, Any]):
    def encode_sample(self, sample: Any) -> Any:
        raise SkipSample("it is too short")


def test_the_end_of_data_of_which_nothing_is_left_is_told(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    lane = lane_of(dataset(data, Nothing(), repeat=False))
    with pytest.raises(StopIteration):
        lane.next()
    (text,) = [record.getMessage() for record in caplog.records]
    assert re.fullmatch(
        r"lane 0 ends without a batch: .* \(\d+ in encode_sample; the last because it is too short\)", text
    )


@pytest.mark.seconds
def test_restoring_a_state_counts_samples_that_are_gone(data: Path) -> None:
    class Moody(Encoder):
        moody = False

        def encode_sample(self, sample: Any) -> Any:
            if self.moody:
                raise SkipSample
            return sample

    made = dataset(data, Moody(), packing_buffer_size=10, batch_size=1)
    state = lane_of(made).next().state
    pending = sum(len(pack) for pack in state["pending"]["packs"])
    assert pending
    made.task_encoder.moody = True  # type: ignore[attr-defined]
    lane = lane_of(made, 0, state)
    with pytest.raises(FatalSampleError, match="were all left out"):
        lane.next()
    assert lane.take_skipped()["restore"] >= pending


def test_states_are_small_and_stay_as_they_were(data: Path) -> None:
    made = dataset(data, Encoder(), num_lanes=8)
    state = made.new_state()
    for lane in state.lanes:
        state.lanes[lane] = take(lane_of(made, lane), 20)[-1].state
    assert len(json.dumps(state.to_dict())) < 4_096
    packing = lane_of(dataset(data, Encoder(), packing_buffer_size=30))
    batches = take(packing, 10)
    texts = [json.dumps(batch.state) for batch in batches]
    take(packing, 10)
    assert texts == [json.dumps(batch.state) for batch in batches]


def test_each_sample_is_announced_before_it_is_worked_on_and_none_by_restoring(data: Path) -> None:
    announced: list[Any] = []

    class Watched(Encoder):
        def encode_sample(self, sample: Any) -> Any:
            assert not announced or announced[-1][1:3] == sample.__restore_key__[1:3]
            return sample

    made = dataset(data, Watched(), packing_buffer_size=100, batch_size=1)
    lane = lane_of(made, 0, lane_of(made).next().state, watch=announced.append)
    assert announced == []
    first = lane.next().batch
    assert len(announced) == sum(map(len, first))


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, (0, 0)),
        ({"tokens": [1, 2]}, (0, 0)),
        ({"tokens": torch.zeros(2, 5)}, (10, 10)),
        ({"input_ids": torch.zeros(2, 5), "attention_mask": torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]])}, (5, 10)),
        ({"input_ids": torch.zeros(2, 5), "attention_mask": torch.ones(2, 1, 5, 5)}, (10, 10)),
        ({"tokens": torch.zeros(2, 5), "cu_seqlens": torch.tensor([[0, 2, 4], [0, 3, 3]])}, (7, 10)),
        ({"input_ids": torch.zeros(1, 9), "cu_seqlens_q": torch.tensor([0, 4, 8])}, (8, 9)),
    ],
)
def test_tokens_are_counted_without_padding(fields: dict[str, Any], found: tuple[int, int]) -> None:
    assert tokens_of(fields) == tokens_of(SimpleNamespace(**fields)) == found
