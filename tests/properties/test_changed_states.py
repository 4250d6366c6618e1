"""A saved state in which one value was changed is refused, however it is restored: with packs, buckets, blends, and
lanes that were resharded; what is as it was saved continues with the next batch."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bridge_data import EnergonMultiModalDataModule, LaneDataset, WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.errors import StateError
from bridge_data.loader.checkpoint import read_checkpoint
from bridge_data.loader.checkpoint.lightning_file import LIGHTNING_KEY
from bridge_data.order.state import merge_states, with_checksums
from tests.prepared import write_blend, write_texts
from tests.properties.jobs import Encoder, GroupingEncoder

JOBS: dict[str, dict[str, Any]] = {
    "packs": {"packing": 16, "lanes": (4,)},
    "packs in buckets": {"packing": 16, "lanes": (4,), "groups": 3},
    "buckets": {"packing": None, "lanes": (4,), "groups": 3},
    "plain": {"packing": None, "lanes": (4,)},
    "packs, resharded": {"packing": 16, "lanes": (4, 6)},
    "plain, resharded twice": {"packing": None, "lanes": (4, 6, 4)},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "a", 400)
    write_texts(folder / "b", 90)
    return write_blend(folder / "blend.yaml", {"a": 3, "b": 1})


def dataset_of(
    path: Path,
    *,
    packing: int | None,
    num_lanes: int,
    groups: int = 1,
    rank: int = 0,
    world_size: int = 1,
    seed: int = 0,
    **options: Any,
) -> LaneDataset:
    encoder = (Encoder if groups == 1 else GroupingEncoder)(skip_every=7, num_parts=2, num_groups=groups)
    return get_train_dataset(
        path,
        worker_config=WorkerConfig(rank, world_size, 0, seed_offset=seed, num_lanes=num_lanes),
        batch_size=2,
        packing_buffer_size=packing,
        shuffle_buffer_size=50,
        max_samples_per_sequence=20,
        task_encoder=encoder,
        **options,
    )


def saved_by(path: Path, name: str) -> tuple[LaneDataset, dict[str, Any]]:
    """The last data set of a job, and the state after some batches of each."""
    *options, state = *JOBS[name].items(), None
    others = dict(options)
    for num_lanes in others.pop("lanes"):
        made = dataset_of(path, num_lanes=num_lanes, **others)
        loader = get_savable_loader(made)
        if state is not None:
            loader.restore_state_rank(state)
        for _ in zip(range(21), loader, strict=False):
            pass
        state = json.loads(json.dumps(loader.save_state_rank()))
    assert state is not None
    return made, state


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all values in plain data, but for the checksums themselves."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in items:
        if (*before, name) != ("checksums",):
            yield (*before, name)
            yield from places(one, (*before, name))


def changes_of(holder: Any, name: Any) -> Iterator[Callable[[], None]]:
    """What may be done to one value: removed, doubled, exchanged for its neighbour, one more or less, zero, empty."""
    value = holder[name]
    yield lambda: holder.pop(name)
    if isinstance(holder, list):
        yield lambda: holder.insert(name, copy.deepcopy(value))
        if name and holder[name - 1] != value:
            yield lambda: holder.__setitem__(slice(name - 1, name + 1), [value, holder[name - 1]])
    if type(value) is int:
        for other in {value + 1, value - 1, 0} - {value}:
            yield lambda other=other: holder.__setitem__(name, other)  # type: ignore[misc]
    elif value:
        yield lambda: holder.__setitem__(name, type(value)())


def changed(state: dict[str, Any], chance: random.Random) -> tuple[dict[str, Any], tuple[Any, ...]]:
    found: dict[str, Any] = copy.deepcopy(state)
    way = chance.choice([*places(found)])
    if chance.random() < 0.5:  # most of the values are settings
        way = chance.choice([one for one in places(found) if one[0] == "lanes"])
    holder: Any = found
    for name in way[:-1]:
        holder = holder[name]
    chance.choice([*changes_of(holder, way[-1])])()
    return found, way


@pytest.mark.parametrize("job", JOBS)
def test_a_state_with_one_value_changed_is_refused(path: Path, job: str) -> None:
    made, state = saved_by(path, job)
    chance = random.Random(job)
    for _ in range(100):
        other, way = changed(state, chance)
        with pytest.raises(StateError) as refused:
            get_savable_loader(made).restore_state_rank(other)
        name = f"lanes.{way[1]}" if way[0] == "lanes" and len(way) > 1 else str(way[0])
        assert name in str(refused.value) or (way[0] != "lanes" and "the fields beside lanes" in str(refused.value)), (
            way
        )


def packs_of(state: dict[str, Any]) -> list[Any]:
    lane = next(lane for lane in state["lanes"].values() if len(lane["pending"]["packs"]) > 1)
    return lane["pending"]["packs"]  # type: ignore[no-any-return]


def without_cursors(state: dict[str, Any]) -> None:
    state["lanes"]["1"]["cursors"] = {}


def without_micro_batches(state: dict[str, Any]) -> None:
    state["lanes"]["1"]["micro_batches"] = 0


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a pack doubled": lambda state: packs_of(state).append(packs_of(state)[0]),
    "a pack removed": lambda state: packs_of(state).pop(),
    "pending removed": lambda state: state["lanes"]["1"].pop("pending"),
    "no cursors": without_cursors,
    "no micro-batches": without_micro_batches,
    "a lane begun anew": lambda state: state["lanes"].update({"1": {}}),
    "two lanes exchanged": lambda state: state["lanes"].update({"1": state["lanes"]["2"], "2": state["lanes"]["1"]}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_it_is_refused_however_it_is_restored(path: Path, tmp_path: Path, edit: str) -> None:
    made, state = saved_by(path, "packs")
    EDITS[edit](state)
    torch.save(state, tmp_path / "state.pt")
    module = EnergonMultiModalDataModule(str(path), task_encoder=Encoder(), num_workers=0, global_batch_size=2)
    loader = get_savable_loader(made)
    for restore in (
        lambda: loader.restore_state_rank(state),
        lambda: loader.restore_state_rank(state, strict=False),
        lambda: loader.restore_state_global(state),
        lambda: loader.restore_state_global([state]),
        lambda: module.load_state_dict({LIGHTNING_KEY: state}),
        lambda: read_checkpoint(tmp_path / "state.pt"),
        lambda: merge_states([state]),
    ):
        with pytest.raises(StateError, match=r"lanes\.[0-9]"):
            restore()


def state_after(num_batches: int, made: LaneDataset) -> dict[str, Any]:
    loader = get_savable_loader(made)
    assert len([*zip(range(num_batches), loader, strict=False)]) == num_batches
    return json.loads(json.dumps(loader.save_state_rank()))  # type: ignore[no-any-return]


OTHER_RUNS: dict[str, tuple[int, dict[str, Any]]] = {
    "16 batches earlier": (8, {}),
    "16 batches later": (40, {}),
    "another seed": (24, {"seed": 7}),
    "another rank's lanes": (24, {"rank": 1}),
    "other packs": (24, {"packing": 8}),
}
"""Where a lane comes from: batches of the run, and its settings."""


@pytest.mark.parametrize("is_finite", [False, True])
@pytest.mark.parametrize("other", OTHER_RUNS)
def test_a_lane_of_another_step_or_run_is_refused_with_its_checksum(path: Path, other: str, is_finite: bool) -> None:
    run: dict[str, Any] = {"packing": 16, "num_lanes": 8, "world_size": 2, "repeat": not is_finite}
    state = state_after(24, dataset_of(path, **run))
    num_batches, settings = OTHER_RUNS[other]
    of_other = state_after(num_batches, dataset_of(path, **run | settings))
    lane = "3" if "rank" in settings else "4"
    with_it = state["lanes"] | {"4": of_other["lanes"][lane]}, state["checksums"] | {"4": of_other["checksums"][lane]}
    with pytest.raises(StateError, match=r"lanes\.4: .*not as saved"):
        get_savable_loader(dataset_of(path, **run)).restore_state_rank(
            state | {"lanes": with_it[0], "checksums": with_it[1]}
        )


def test_a_state_without_checksums_is_refused(path: Path) -> None:
    made, state = saved_by(path, "plain")
    del state["checksums"]
    with pytest.raises(StateError, match="checksums"):
        get_savable_loader(made).restore_state_rank(state)


@pytest.mark.parametrize("num_batches", [8, 40])
def test_a_lane_that_has_made_more_or_less_than_the_step_implies_is_refused(path: Path, num_batches: int) -> None:
    """In the state of one rank alone, and whoever has made its checksums."""
    made = dataset_of(path, packing=None, num_lanes=8, world_size=2)
    state, other = state_after(24, made), state_after(num_batches, made)
    state["lanes"]["4"] = other["lanes"]["4"]
    with pytest.raises(StateError, match=rf"lanes\.4: .*goes on with micro-batch {2 * num_batches + 4}, expected 52"):
        get_savable_loader(made).restore_state_rank(with_checksums(state))
