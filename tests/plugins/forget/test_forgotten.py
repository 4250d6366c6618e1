"""Forgotten samples are dropped by lanes, and nothing else of their streams changes."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data import (
    SampleError,
    WorkerConfig,
    get_savable_loader,
    merge_states,
)
from bridge_data.data import ShardReader
from bridge_data.data.metadata import META_FOLDER
from bridge_data.data.withheld import FORGOTTEN_JSONL
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from tests.prepared import train_dataset, val_dataset, write_blend, write_texts
from tests.properties.jobs import Encoder, GroupingEncoder, Job, items_in

SIZES = {"a": 90, "b": 40}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forgotten")
    for name, size in SIZES.items():
        write_texts(folder / name, size, per_shard=20)
    return write_blend(folder / "blend.yaml", {"a": 2, "b": 1})


def forget(blend: Path, gone: dict[str, list[int]], **options: Any) -> None:
    for name, numbers in gone.items():
        if numbers:
            forget_samples(blend.parent / name, [f"{number:06d}" for number in numbers], "asked for", **options)


def remember(blend: Path) -> None:
    for name in SIZES:
        (blend.parent / name / META_FOLDER / FORGOTTEN_JSONL).unlink(missing_ok=True)


def ranks(blend: Path, world_size: int, encoder: Encoder, packing: int | None, batch_size: int) -> list[LaneDataset]:
    settings = {"batch_size": batch_size, "packing_buffer_size": packing, "task_encoder": encoder}
    job = {"world_size": world_size, "num_lanes": 4}
    return [train_dataset(blend, rank=rank, **job, **settings) for rank in range(world_size)]


def streams(job: Job, num_batches: int) -> dict[int, list[Any]]:
    """The next samples, or packs, of each lane."""
    return {
        number: [unit for _ in range(num_batches) for unit in lane.next().batch]
        for lanes in job.lanes
        for number, lane in lanes.items()
    }


GONE = st.fixed_dictionaries(
    {name: st.lists(st.integers(0, size - 1), max_size=size // 2, unique=True) for name, size in SIZES.items()}
)


@settings(max_examples=15, deadline=None)
@given(
    gone=GONE,
    steps=st.integers(0, 12),
    worlds=st.sampled_from([(1, 2), (2, 1), (4, 2), (2, 4)]),
    groups=st.booleans(),
    encoder=st.fixed_dictionaries({"skip_every": st.sampled_from([0, 7]), "num_parts": st.sampled_from([1, 3])}),
)
def test_each_lane_goes_on_with_the_same_samples_but_for_the_forgotten(data, gone, steps, worlds, groups, encoder):
    made = GroupingEncoder(num_groups=2, **encoder) if groups else Encoder(**encoder)
    try:
        plain = Job(ranks(data, worlds[0], made, None, 3))
        for _ in range(4 * steps // worlds[0]):
            plain.step()
        saved = merge_states(plain.save())
        forget(data, gone)
        after = ranks(data, worlds[1], made, None, 3)
        job = Job(after, saved)
        expected, found = streams(plain, 60), streams(job, 20)
    finally:
        remember(data)
    names = after[0].source_ids
    for lane, units in found.items():
        wanted = [
            unit
            for unit in expected[lane]
            if not any(index in gone["ab"[names.index(source)]] for source, _, index, _ in unit)
        ]
        if groups:  # buckets fill at other times; within each, the order is the same
            assert len(units) == len({tuple(unit) for unit in units})
            assert {tuple(unit) for unit in units} <= {tuple(unit) for unit in wanted}
        else:
            assert units == wanted[: len(units)]
            assert units or not wanted


@settings(max_examples=10, deadline=None)
@given(gone=GONE, steps=st.integers(0, 12))
def test_pending_packs_lose_members_and_are_not_packed_anew(data, gone, steps):
    try:
        plain = Job(ranks(data, 1, Encoder(), 30, 2))
        for _ in range(4 * steps):
            plain.step()
        saved = merge_states(plain.save())
        waiting = {
            number: [
                [(item.ref.source, item.ref.index) for item in pack] for pack in plain.lanes[0][number].pending.packs
            ]
            for number in range(4)
        }
        forget(data, gone)
        job = Job(ranks(data, 1, Encoder(), 30, 2), saved)
        left = {number: [*lane.pending.packs] for number, lane in job.lanes[0].items()}
        emitted = streams(job, 8)
        assert not any(
            item.ref.index in gone["ab"[item.ref.source]] for lane in job.lanes[0].values() for item in items_in(lane)
        )
    finally:
        remember(data)
    names = job.datasets[0].source_ids
    for number, packs in waiting.items():
        kept = [[one for one in pack if one[1] not in gone["ab"[one[0]]]] for pack in packs]
        kept = [pack for pack in kept if pack]
        assert [[(item.ref.source, item.ref.index) for item in pack] for pack in left[number]] == kept
        first = [[(names.index(source), index) for source, _, index, _ in unit] for unit in emitted[number]]
        assert first[: len(kept)] == kept[: len(first)]
        assert not any(index in gone["ab"[source]] for unit in first for source, index in unit)


def loader_of(path: Path) -> Any:
    return get_savable_loader(train_dataset(path, num_lanes=2, batch_size=5))


def test_nothing_of_a_forgotten_sample_is_read_and_it_is_counted(tmp_path, monkeypatch):
    write_texts(tmp_path / "a", 60)
    forget(tmp_path / "blend", {"a": [3, 30, 59]})
    read = []
    monkeypatch.setattr(
        ShardReader,
        "read",
        lambda self, index, parts, one=ShardReader.read: read.append(index) or one(self, index, parts),
    )
    dataset = val_dataset(tmp_path / "a", worker_config=WorkerConfig(0, 1, 0, max_open_bytes=0))
    loader = get_savable_loader(dataset)
    texts = [int(text) for batch in loader for text in batch.text]
    assert sorted(texts) == sorted(set(range(60)) - {3, 30, 59}) == sorted(read)
    assert loader.skipped == {"forgotten": 3}
    with pytest.raises(SampleError, match=r"left out by this run \(forgotten"):
        dataset.restore_sample((dataset.source_ids[0], 0, 30, 0))


def test_a_state_that_was_handed_out_may_be_changed(tmp_path):
    path = write_texts(tmp_path / "a", 60)
    forget(tmp_path / "blend", {"a": [7]})
    loader = loader_of(path)
    saved = loader.save_state_rank()
    next(iter(saved["extras"]["withheld"]["data"][0][1].values())).clear()
    saved["extras"]["withheld"]["data"][0][1].clear()
    assert get_savable_loader(loader.dataset).save_state_rank()["extras"]["withheld"]["data"][0][1]
