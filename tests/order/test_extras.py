"""Extras: what a feature does in lanes and keeps in states, by one that an outsider might write."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bridge_data import LaneDataset, get_savable_loader, merge_states
from bridge_data.errors import StateError
from bridge_data.order import SampleRef, extras
from bridge_data.order.extras import LaneExtra, LaneExtras, StateExtra, begun, data_of
from bridge_data.order.row import Ints
from bridge_data.order.state import LoaderState
from tests.prepared import train_dataset, write_texts
from tests.properties.jobs import Encoder


class Odd(StateExtra):
    """Leaves out samples with an odd number, and counts the others: in the lanes, and in the job before a reshard."""

    name: ClassVar[str] = "odd"
    version: ClassVar[int] = 3

    def lane(self, number: int, state: LoaderState) -> LaneExtra:
        return OddLane(data_of(state.lanes[number].get("extras", {}), self) or 0)

    def begin(self, state: LoaderState) -> Any:
        return data_of(state.extras, self) or 0

    def resharded(self, state: LoaderState) -> Any:
        return count_of(state)


class OddLane(LaneExtra):
    skips_as: ClassVar[str] = "odd"

    def __init__(self, count: int) -> None:
        self.count = count

    def filter(self, refs: Sequence[SampleRef]) -> Sequence[SampleRef]:
        return [ref for ref in refs if ref.index % 2 == 0]

    def note(self, index: int, samples: Ints) -> Any:
        assert not (samples[:, 2] % 2).any()
        self.count += len(samples)

    def save(self) -> Any:
        return self.count


def count_of(state: LoaderState) -> int:
    lanes = [data_of(lane.get("extras", {}), Odd) or 0 for lane in state.lanes.values()]
    return sum(lanes, data_of(state.extras, Odd) or 0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("data"), 120)


def dataset_of(data: Path, *, has_extra: bool = True, **settings: Any) -> LaneDataset:
    encoder = Encoder(skip_every=7, num_parts=2)
    made = train_dataset(data, task_encoder=encoder, **({"batch_size": 3, "num_lanes": 4} | settings))
    return made.changed(extras=(Odd(),)) if has_extra else made


def taken(dataset: LaneDataset, count: int, state: Any = None) -> tuple[list[Any], dict[str, Any]]:
    with get_savable_loader(dataset) as loader:
        if state is not None:
            loader.restore_state_rank(state)
        assert loader.wait_for_workers(60) == (dataset.worker_config.num_workers > 0)
        batches = [batch for _, batch in zip(range(count), loader, strict=False)]
        assert loader.skipped["odd"] > 0
        return batches, json.loads(json.dumps(loader.save_state_rank()))


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.processes)])
@pytest.mark.parametrize("packing", [None, 10])
def test_a_lane_goes_on_with_what_it_saved(data: Path, packing: int | None, num_workers: int) -> None:
    settings: dict[str, Any] = {"packing_buffer_size": packing}
    whole, at_the_end = taken(dataset_of(data, **settings), 30)
    first, state = taken(dataset_of(data, num_workers=num_workers, **settings), 13)
    assert count_of(LoaderState.from_dict(state)) > 0
    rest, after = taken(dataset_of(data, num_workers=num_workers, **settings), 17, state)
    assert (first + rest, after) == (whole, at_the_end)


def test_what_waits_in_a_lane_is_left_out_too(data: Path) -> None:
    """Here a run asks for the extra only when it resumes."""
    with get_savable_loader(dataset_of(data, has_extra=False, packing_buffer_size=10)) as plain:
        next(iter(plain))
        state = plain.save_state_rank()
    assert any(lane.get("pending") for lane in state["lanes"].values())
    with get_savable_loader(dataset_of(data, packing_buffer_size=10)) as loader:
        loader.restore_state_rank(state)
        for _, batch in zip(range(20), loader, strict=False):
            assert all(key[2] % 2 == 0 for key in keys_in(batch))


def keys_in(batch: Any) -> list[Any]:
    return [key for unit in batch for key in (unit[0] if isinstance(unit[0][0], list | tuple) else [unit[0]])]


def test_a_reshard_ends_what_is_in_the_lanes_and_the_job_keeps_it(data: Path) -> None:
    _, state = taken(dataset_of(data), 13)
    before = count_of(LoaderState.from_dict(state))
    with get_savable_loader(dataset_of(data, num_lanes=6)) as loader:
        loader.restore_state_rank(state)
        resharded = LoaderState.from_dict(loader.save_state_rank())
    assert (data_of(resharded.extras, Odd()), count_of(resharded)) == (before, before)
    assert not any("extras" in lane for lane in resharded.lanes.values())


def test_the_states_of_ranks_are_merged_with_their_extras(data: Path) -> None:
    _, whole = taken(dataset_of(data), 12)
    parts = [taken(dataset_of(data, rank=rank, world_size=2), 6)[1] for rank in range(2)]
    assert merge_states(parts) == whole


class Unasked(Odd):
    """Goes on with what the job has, also in a run that has not asked for it."""

    @classmethod
    def unasked(cls) -> "Unasked":
        return cls()


def test_a_run_that_has_not_asked_keeps_what_the_job_has_and_not_what_lanes_have(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As lanes of the run do not go on with it."""
    _, state = taken(dataset_of(data, num_lanes=6), 13)
    with get_savable_loader(dataset_of(data)) as loader:
        loader.restore_state_rank(state)  # so that the job has some
        state = loader.save_state_rank()
    _, state = taken(dataset_of(data), 5, state)
    monkeypatch.setattr(extras.EXTRAS, "find", lambda name: Unasked)
    with get_savable_loader(dataset_of(data, has_extra=False)) as loader:
        loader.restore_state_rank(state)
        now = LoaderState.from_dict(loader.save_state_rank())
    assert data_of(now.extras, Odd()) == data_of(state["extras"], Odd()) > 0
    assert not any("extras" in lane for lane in now.lanes.values())


class Other(StateExtra):
    """Keeps a number in the job."""

    name: ClassVar[str] = "other"
    version: ClassVar[int] = 1

    def begin(self, state: LoaderState) -> Any:
        return 7


def test_a_state_keeps_what_each_extra_of_the_run_keeps_and_what_none_asks_for_ends_with_a_warning(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, saved = taken(dataset_of(data), 5)
    state = LoaderState.from_dict(saved)
    assert begun(state, [Odd(), Other()]).extras.keys() == {"odd", "other"} and not caplog.messages
    monkeypatch.setattr(extras.EXTRAS, "find", lambda name: Odd)
    in_lanes_alone = dataclasses.replace(state, extras={})
    for one in (state, in_lanes_alone):
        caplog.clear()
        now = begun(one, [Other()])
        assert now.extras.keys() == {"other"} and not any("extras" in lane for lane in now.lanes.values())
        assert "extras.odd: the state has it and this run does not ask for it: it ends here" in caplog.text
    monkeypatch.setattr(Odd, "version", 4)
    with pytest.raises(StateError, match=r"^extras\.odd: version 3, which .* knows version 4"):
        begun(in_lanes_alone, [Other()])


def test_an_extra_that_leaves_nothing_out_is_not_asked_about_draws(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(StateExtra):
        name: ClassVar[str] = "counted"
        version: ClassVar[int] = 1

        def lane(self, number: int, state: LoaderState) -> LaneExtra:
            return CountedLane()

    class CountedLane(LaneExtra):
        def note(self, index: int, samples: Ints) -> Any:
            return len(samples)

    monkeypatch.setattr(LaneExtras, "filter", None)
    dataset = dataset_of(data, has_extra=False).changed(extras=(Counted(),))
    lane = dataset.lane(0, dataset.new_state())
    made = lane.next()
    assert made.notes == {"counted": len(keys_in(made.batch))}


def test_what_an_extra_saves_is_the_same_object_until_it_changes(data: Path) -> None:
    class Kept(StateExtra):
        name: ClassVar[str] = "kept"
        version: ClassVar[int] = 1

        def lane(self, number: int, state: LoaderState) -> LaneExtra:
            return KeptLane()

    class KeptLane(LaneExtra):
        num_noted = 0

        def note(self, index: int, samples: Ints) -> Any:
            self.num_noted += 1

        def save(self) -> Any:
            return [self.num_noted // 3]

    dataset = dataset_of(data, has_extra=False).changed(extras=(Kept(),))
    lane = dataset.lane(0, dataset.new_state())
    saved = [lane.next().state["extras"] for _ in range(6)]
    assert [data_of(one, Kept) for one in saved] == [[0], [0], [1], [1], [1], [2]]
    assert saved[0] is saved[1] and saved[2] is saved[3] is saved[4]


def test_a_state_with_an_extra_that_is_not_installed_is_refused(data: Path) -> None:
    _, state = taken(dataset_of(data), 4)
    loader = get_savable_loader(dataset_of(data, has_extra=False))
    with pytest.raises(StateError, match=r"^extras\.odd: version 3, which this release does not know"):
        loader.restore_state_rank(state)
