"""What `RunOrder` says of a run equals the keys that its batches had, through chains of resumes: on other ranks, saved
again at the same position, with other lanes and weights, with packs, skips, and samples forgotten midway."""

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import ConfigError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.order.state import LoaderState
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from bridge_data.runs.run_order import RunOrder
from tests.prepared import write_blend, write_texts
from tests.runs.oracle.parts import Filtering, Packing, Run

NUM_CHAINS = min(300, int(os.environ.get("BRIDGE_DATA_EXAMPLES", "12")))

SIZES = {"a": (230, 50), "b": (77, 13)}
"""Samples, and samples per shard, of the data sets."""


@dataclasses.dataclass(frozen=True)
class Leg:
    """Some batches of each of `world_size` ranks (whole steps of the job in a run that skips steps), and some more
    that a kill loses. `num_lanes`: lanes that are asked for, 0 for those of before. `resaves`: the state is saved again
    after the restore, before the first batch; `is_short`: nothing comes after that. `forgets`: samples of a data set
    that are forgotten before it. `blend`: the number of the blend that it reads."""

    world_size: int
    num_lanes: int
    num_steps: int
    num_lost: int
    resaves: bool
    is_short: bool
    forgets: str
    blend: int


@dataclasses.dataclass(frozen=True)
class Chain:
    """What is drawn: `kind` of encoder, the skipped `steps`, the legs, and what to ask for."""

    kind: str
    steps: tuple[str, ...]
    legs: tuple[Leg, ...]
    shuffled: tuple[int, ...]
    asked: tuple[int, ...]


def _lanes(world_size: int, number: int, *, is_first: bool, skips_steps: bool) -> int:
    if is_first:
        return 8 if skips_steps else world_size * (1 + number % 3)
    return 0 if number else 12 if skips_steps else world_size * 2


@st.composite
def chains(draw: Any) -> Chain:
    legs = []
    skipping = draw(st.integers(0, 2)) == 0
    for number in range(draw(st.integers(2, 5))):
        resaves = number > 0 and draw(st.booleans())
        legs.append(
            Leg(
                world_size=(world_size := draw(st.sampled_from([3, 2, 5, 1, 4] if not skipping else [4, 2, 1]))),
                num_lanes=_lanes(world_size, draw(st.integers(0, 4)), is_first=number == 0, skips_steps=skipping),
                num_steps=draw(st.integers(1, 14)) if not skipping else draw(st.integers(1, 6)) * 4 // world_size,
                num_lost=draw(st.integers(0, 2)),
                resaves=resaves,
                is_short=resaves and draw(st.booleans()),
                forgets="" if skipping or number == 0 else draw(st.sampled_from(["", "", "", "a", "b"])),
                blend=0 if skipping else draw(st.sampled_from([0, 0, 0, 1])),
            )
        )
    steps: tuple[str, ...] = ()
    if skipping:
        steps = draw(st.sampled_from([("2-3",), ("1", "6-7"), ("5",), ("2", "9-11", "14")]))
    return Chain(
        kind=draw(st.sampled_from(["plain", "plain", "skips", "packing"])),
        steps=steps,
        legs=tuple(legs),
        shuffled=tuple(draw(st.permutations(range(12)))),
        asked=tuple(draw(st.lists(st.integers(0, 10_000), min_size=3, max_size=6))),
    )


@dataclasses.dataclass
class ChainRun(Run):
    """A run whose settings may skip steps."""

    schedule: BatchSchedule = dataclasses.field(default_factory=lambda: BatchSchedule(8, 2))
    steps: tuple[str, ...] = ()

    def dataset(self, world_size: int, rank: int = 0, num_lanes: int = 0) -> LaneDataset:
        made = super().dataset(world_size, rank, num_lanes)
        made.skips = self.schedule.skips(self.steps)
        return made


MORE: dict[str, dict[str, Any]] = {
    "plain": {},
    "skips": {"task_encoder": Filtering()},
    "packing": {"task_encoder": Packing(), "packing_buffer_size": 12},
}


def run_chain(blends: list[Path], chain: Chain) -> tuple[ChainRun, list[LoaderState]]:
    """The run, and all states that it saved, also those that were saved again at the same position."""
    options = {"batch_size": 2, "shuffle_buffer_size": 40, "max_samples_per_sequence": 10, **MORE[chain.kind]}
    run = ChainRun(options, steps=chain.steps)
    saved: list[LoaderState] = []
    for number, leg in enumerate(chain.legs):
        if leg.forgets:
            size, per_shard = SIZES[leg.forgets]
            keys = [f"data-{at // per_shard:04d}.tar/{at:06d}" for at in range(number, size, 3 + number)]
            forget_samples(blends[0].parent / leg.forgets, keys, "asked for")
        before = len(run.states)
        run.leg(
            blends[leg.blend],
            leg.world_size,
            0 if leg.is_short else leg.num_steps,
            num_lanes=leg.num_lanes,
            lost=leg.num_lost,
            resaves=leg.resaves,
        )
        saved += [run.states[before - 1], run.states[-1]] if leg.resaves else [run.states[-1]]
    return run, saved


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data sets, which each chain copies, as it forgets samples."""
    folder = tmp_path_factory.mktemp("written")
    for name, (size, per_shard) in SIZES.items():
        write_texts(folder / name, size, per_shard=per_shard)
    write_blend(folder / "first.yaml", {"a": 3, "b": 1})
    write_blend(folder / "second.yaml", {"a": 1, "b": 2})
    return folder


@pytest.fixture
def new_folder(written: Path, tmp_path: Path) -> Iterator[Any]:
    made = iter(range(10**6))

    def make() -> Path:
        return Path(shutil.copytree(written, tmp_path / str(next(made))))

    yield make


def keys_told(order: RunOrder, slot: int) -> list[str] | None:
    """The keys of a micro-batch; None where states do not tell which weights the run had."""
    try:
        return [one.key for one in order.micro_batch(slot)]
    except ConfigError as error:
        assert "weights changed here" in str(error)
        return None


def test_of_two_states_that_either_weights_reach_none_is_taken_for_the_first(new_folder: Any) -> None:
    leg = Leg(world_size=1, num_lanes=1, num_steps=14, num_lost=0, resaves=False, is_short=False, forgets="", blend=0)
    few = dataclasses.replace(leg, world_size=3, num_lanes=0, num_steps=1, blend=1)
    last = dataclasses.replace(leg, num_lanes=0, num_steps=3, resaves=True)
    folder = new_folder()
    run, saved = run_chain(
        [folder / "first.yaml", folder / "second.yaml"], Chain("plain", (), (leg, few, last), (), ())
    )
    assert [state.micro_batch_index for state in saved] == [14, 17, 17, 20]
    for states in (saved, saved[::-1]):
        order = RunOrder(run.dataset(1), schedule=run.schedule, states=states)
        found = [keys_told(order, slot) for slot in range(17)]
        assert found == [*(run.keys[slot] for slot in range(14)), None, None, None]


def test_of_two_states_at_the_first_position_that_which_the_run_reached_comes_first(new_folder: Any) -> None:
    first = Leg(world_size=4, num_lanes=8, num_steps=1, num_lost=0, resaves=False, is_short=False, forgets="", blend=0)
    again = dataclasses.replace(first, resaves=True, is_short=True, blend=1)
    folder = new_folder()
    run, saved = run_chain([folder / "first.yaml", folder / "second.yaml"], Chain("plain", (), (first, again), (), ()))
    assert [state.micro_batch_index for state in saved] == [4, 4, 4] and saved[0].fingerprint != saved[-1].fingerprint
    for states in (saved, saved[::-1]):
        order = RunOrder(run.dataset(4), schedule=run.schedule, states=states)
        assert [keys_told(order, slot) for slot in range(4)] == [run.keys[slot] for slot in range(4)]


@given(chain=chains())
@settings(
    max_examples=NUM_CHAINS,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_steps_and_keys_are_told_as_they_were_logged(new_folder: Any, chain: Chain) -> None:
    folder = new_folder()
    blends = [folder / "first.yaml", folder / "second.yaml"]
    run, saved = run_chain(blends, chain)
    states = [saved[at] for at in chain.shuffled if at < len(saved)]
    states += saved[len(chain.shuffled) :]
    order = RunOrder(run.dataset(chain.legs[-1].world_size), schedule=run.schedule, states=states)
    numbers = sorted(run.keys)
    assert numbers == [*range(len(numbers))]
    found = {slot: keys_told(order, slot) for slot in numbers}
    assert found == {slot: found[slot] and keys for slot, keys in run.keys.items()}
    last_step = order.step_of(len(numbers)) - 1
    if last_step < 0 or None in found.values():
        assert last_step < 0 or len({leg.blend for leg in chain.legs}) > 1
        return
    for step in [at % (last_step + 1) for at in chain.asked]:
        slots = order.micro_batches(step)
        assert [one.key for one in order.at(step).samples] == [key for slot in slots for key in run.keys[slot]], step
    for at in chain.asked[:2]:
        sample = order.at(at % (last_step + 1)).samples[0]
        told = order.when(sample.key, source=sample.source, steps=range(last_step + 1))
        wanted = [
            slot
            for slot in numbers
            if slot < order.micro_batches(last_step).stop
            for one in order.micro_batch(slot)
            if (one.key, one.source) == (sample.key, sample.source)
        ]
        assert [one.micro_batch for one in told] == wanted
        assert all(sample.key in run.keys[one.micro_batch] for one in told)
    shutil.rmtree(folder)
