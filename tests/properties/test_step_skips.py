"""A run that skips steps hands out what the plain run does, with these steps taken out: with packs, filters and
generators, on any ranks, after kills, and where its lanes are resharded."""

import dataclasses
import json
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge_data import LaneDataset, WorkerConfig, get_savable_loader, get_train_dataset
from bridge_data.order.state import merge_states
from bridge_data.order.step_skips import SkippedRange, StepSkips
from tests.prepared import write_blend, write_texts
from tests.properties.jobs import Encoder, GroupingEncoder

STEP = 4
"""Micro-batches of a step, which 1, 2 and 4 ranks can share."""


@dataclasses.dataclass(frozen=True)
class Leg:
    """Some steps of a run on `world_size` ranks, up to a save; `num_lost` more before a kill."""

    num_steps: int
    num_lost: int
    world_size: int
    num_lanes: int


@dataclasses.dataclass(frozen=True)
class Case:
    """What is drawn."""

    seed: int
    packing: int | None
    groups: int
    skips: StepSkips
    legs: tuple[Leg, ...]


@st.composite
def cases(draw: Any, num_lanes: Sequence[int] = (8,)) -> Case:
    cuts = sorted(draw(st.lists(st.integers(0, 24), min_size=2, max_size=6, unique=True)))
    pairs = zip(cuts[::2], cuts[1::2], strict=False)
    skips = StepSkips.of([SkippedRange(STEP * a, STEP * b) for a, b in pairs])
    assert skips is not None
    legs = st.builds(
        Leg,
        num_steps=st.integers(1, 9),
        num_lost=st.integers(0, 2),
        world_size=st.sampled_from([1, 2, 4]),
        num_lanes=st.sampled_from(num_lanes),
    )
    return Case(
        seed=draw(st.integers(0, 99)),
        packing=draw(st.sampled_from([None, 16])),
        groups=draw(st.sampled_from([1, 3])),
        skips=skips,
        legs=tuple(draw(st.lists(legs, min_size=1, max_size=4))),
    )


def dataset_of(path: Path, case: Case, leg: Leg, rank: int, skips: StepSkips | None, num_workers: int) -> LaneDataset:
    encoder = (Encoder if case.groups == 1 else GroupingEncoder)(skip_every=7, num_parts=2, num_groups=case.groups)
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank, leg.world_size, num_workers, seed_offset=case.seed, num_lanes=leg.num_lanes),
        batch_size=2,
        packing_buffer_size=case.packing,
        shuffle_buffer_size=50,
        max_samples_per_sequence=20,
        task_encoder=encoder,
    )
    dataset.skips = skips
    return dataset


def run_leg(
    path: Path,
    case: Case,
    leg: Leg,
    saved: dict[str, Any] | None,
    *,
    skips: StepSkips | None = None,
    num_workers: int = 0,
) -> tuple[list[Any], dict[str, Any]]:
    """The micro-batches of a leg in the order of the job, and the state at its end."""
    loaders = [
        get_savable_loader(dataset_of(path, case, leg, rank, skips, num_workers)) for rank in range(leg.world_size)
    ]
    for loader in loaders:
        if saved is not None:
            loader.restore_state_rank(saved)
        assert loader.wait_for_workers(60) == (num_workers > 0)
    streams = [iter(loader) for loader in loaders]
    batches: list[Any] = []
    states: dict[str, Any] = {}
    for step in range(leg.num_steps + leg.num_lost):
        rows = [[next(stream) for stream in streams] for _ in range(STEP // leg.world_size)]
        if step < leg.num_steps:
            batches += [batch for row in rows for batch in row]
            states = merge_states([loader.save_state_rank() for loader in loaders])
    for loader in loaders:
        loader.close()
    return batches, json.loads(json.dumps(states))


class PlainRun:
    """The run without skips, whose lanes are resharded where those of the other are."""

    def __init__(self, path: Path, case: Case) -> None:
        self._path, self._case = path, case
        self._state: dict[str, Any] | None = None
        self._begin, self._num_lanes = 0, case.legs[0].num_lanes
        self.batches: dict[int, Any] = {}

    def go_to(self, number: int) -> dict[str, Any]:
        """Know all micro-batches before `number`; the state there."""
        leg = Leg((number - self._begin) // STEP, 0, 1, self._num_lanes)
        batches, state = run_leg(self._path, self._case, leg, self._state)
        self.batches |= dict(enumerate(batches, self._begin))
        return state

    def reshard(self, number: int, num_lanes: int) -> None:
        """Go on from `number` with so many lanes."""
        self._state = self.go_to(number) if number > self._begin else self._state
        self._begin, self._num_lanes = number, num_lanes


def check(path: Path, case: Case, *, num_workers: int = 0) -> None:
    """Compare the skipping run with the plain one."""
    plain, num_lanes = PlainRun(path, case), case.legs[0].num_lanes
    saved: dict[str, Any] | None = None
    slot = 0
    for number, leg in enumerate(case.legs):
        if leg.num_lanes != num_lanes:
            num_lanes = leg.num_lanes
            plain.reshard(case.skips.index_after(slot), num_lanes)
        # The state has the ranges; that the settings say them once more changes nothing.
        skips = case.skips if number % 2 == 0 else None
        batches, saved = run_leg(path, case, leg, saved, skips=skips, num_workers=num_workers)
        assert saved["micro_batch_index"] == case.skips.index_after(slot + len(batches))
        numbers = [case.skips.index_after(slot + place) for place in range(len(batches))]
        plain.go_to(1 + max(numbers))
        assert batches == [plain.batches[one] for one in numbers], (slot, leg)
        slot += len(batches)


FEW: dict[str, Any] = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "a", 400)
    write_texts(folder / "b", 90)
    return write_blend(folder / "blend.yaml", {"a": 3, "b": 1})


@given(case=cases())
@settings(max_examples=3, **FEW)
def test_a_skipping_run_is_the_plain_one_with_these_steps_taken_out(path: Path, case: Case) -> None:
    check(path, case)


@given(case=cases(num_lanes=(8, 12)))
@settings(max_examples=3, **FEW)
def test_it_is_also_where_lanes_are_assigned_again(path: Path, case: Case) -> None:
    check(path, case)


STEP_OF_ALL = 12
"""Micro-batches of a step, and lanes, which 1, 2, 3, 4 and 6 ranks can share."""


def taken(path: Path, world_size: int, count: int, state: Any, skips: StepSkips | None) -> tuple[list[Any], Any]:
    """The next `count` micro-batches of the job on `world_size` ranks, those of the ranks together, and the state after
    them."""
    loaders = []
    for rank in range(world_size):
        config = WorkerConfig(rank, world_size, 0, num_lanes=STEP_OF_ALL)
        options: dict[str, Any] = {"batch_size": 2, "shuffle_buffer_size": 50, "max_samples_per_sequence": 20}
        dataset = get_train_dataset(path, worker_config=config, task_encoder=Encoder(skip_every=7), **options)
        dataset.skips = skips
        loaders.append(get_savable_loader(dataset))
        if state is not None:
            loaders[-1].restore_state_rank(state)
    streams = [iter(loader) for loader in loaders]
    rounds = [[next(stream) for stream in streams] for _ in range(count // world_size)]
    return [sorted(one, key=str) for one in rounds], merge_states([loader.save_state_rank() for loader in loaders])


@pytest.mark.parametrize("seed", range(2))
def test_a_run_resumed_within_a_range_skips_what_is_left_of_it(path: Path, seed: int) -> None:
    """Wherever it resumes, before, within or after the range, also within a step; on any ranks."""
    chance = random.Random(seed)
    plain = [batch for one in taken(path, 1, 16 * STEP_OF_ALL, None, None)[0] for batch in one]
    for _ in range(8):
        first, last = sorted(chance.choices(range(5), k=2))
        begin, stop = first * STEP_OF_ALL, (last + 1) * STEP_OF_ALL
        skips = StepSkips.of([SkippedRange(begin, stop)])
        before, after, later = chance.choices((1, 2, 3, 4, 6), k=3)
        reached = chance.randrange(0, 72 // before) * before
        _, state = taken(path, before, reached, None, None)
        left = [number for number in range(reached, len(plain)) if not max(begin, reached) <= number < stop]
        for world_size, named in ((after, skips), (later, chance.choice([None, skips]))):
            found, state = taken(path, world_size, 36, state, named)
            for one in found:
                numbers, left = left[:world_size], left[world_size:]
                assert one == sorted((plain[number] for number in numbers), key=str), (begin, stop, reached, numbers)


@pytest.mark.processes
def test_it_is_also_with_workers_that_are_killed_within_a_range(path: Path) -> None:
    skips = StepSkips.of([SkippedRange(8, 20), SkippedRange(24, 36)])
    assert skips is not None
    case = Case(seed=3, packing=16, groups=1, skips=skips, legs=(Leg(20, 0, 1, 8),))
    plain = PlainRun(path, case)
    plain.go_to(96)
    with get_savable_loader(dataset_of(path, case, case.legs[0], 0, skips, 2), max_worker_restarts=9) as loader:
        assert loader.wait_for_workers(60)
        for slot, batch in zip(range(60), loader, strict=False):
            assert batch == plain.batches[skips.index_after(slot)], slot
            if slot in (3, 18, 27):
                for process in loader._pool.processes():
                    os.kill(process, signal.SIGKILL)
        assert loader.metrics().worker_restarts >= 3


@pytest.mark.slow
@given(case=cases(num_lanes=(8, 12)), num_workers=st.sampled_from([*[0] * 15, 1, 2]))
@settings(max_examples=40, **FEW)
def test_it_is_in_many_more_cases(path: Path, case: Case, num_workers: int) -> None:
    check(path, case, num_workers=num_workers)
