"""Plans against runs: a plan says of each step what the loaders then hand out."""

import collections
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bridge_data import ConfigError
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.tools.planning import Planner, RunLength, Spread, Totals
from tests.prepared import write_blend, write_texts
from tests.tools.plan_parts import CAPACITY, PackedWords, Plain, Words, measure, rank_dataset, run

PLANNED = {"packing": "planned", "planning_window": 40}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A blend of 170 and 90 texts, 3 to 1, measured for both encoders."""
    folder = tmp_path_factory.mktemp("plan")
    write_texts(folder / "a", 170)
    write_texts(folder / "b", 90)
    blend = write_blend(folder / "blend.yaml", {"a": 3, "b": 1})
    for encoder in (Words(), PackedWords()):
        measure(blend, encoder)
    return blend


def load_of(sequences: list[Any], by: str | None) -> int:
    name = by if by == "words" else "tokens"
    return sum(one[name] ** (2 if by == "attention" else 1) for one in sequences)


@pytest.mark.parametrize("kind", ["packs", "samples", "finite"])
@pytest.mark.parametrize(
    ("world_size", "size", "deal"), [(1, 2, None), (2, 1, "attention"), (3, 2, "words"), (2, 2, None)]
)
def test_each_step_is_as_planned(data: Path, kind: str, world_size: int, size: int, deal: str | None) -> None:
    encoder = Words() if kind == "samples" else PackedWords()
    options: dict[str, Any] = {} if kind == "samples" else PLANNED
    options = {**options, "repeat": kind != "finite"}
    deal = None if kind == "samples" else deal
    schedule = BatchSchedule(
        world_size * size * 3, size, None if kind == "finite" else (world_size * size, world_size * size, 40)
    )
    datasets = [
        rank_dataset(data, rank, world_size, schedule, encoder=encoder, deal=deal, **options)
        for rank in range(world_size)
    ]
    planner = Planner(datasets[0], schedule)
    planned = [step for step, _ in zip(planner.steps(), range(60), strict=False)]
    taken = run(datasets, schedule, 60)
    assert len(planned) == len(taken) > 3
    for step, ranks in zip(planned, taken, strict=True):
        sequences = [one for rank in ranks for one in rank]
        costs = dict(zip(planner.names, step.totals.costs.tolist(), strict=True))
        assert step.totals.samples == len(sequences)
        assert costs == {name: sum(one[name] for one in sequences) for name in ("tokens", "words")}
        assert (step.dealt if deal else step.undealt) == [load_of(rank, deal) for rank in ranks]
    plan = planner.plan(RunLength(steps=len(taken)) if kind != "finite" else None)
    assert plan.is_exact and plan.run.steps == len(taken)
    if kind != "samples":
        assert plan.fill == plan.run.costs[0] / (64 * plan.run.units)


def planner_of(data: Path, encoder: Any, **options: Any) -> Planner:
    schedule = BatchSchedule(4, 1)
    return Planner(rank_dataset(data, 0, 2, schedule, encoder=encoder, deal=None, **options), schedule)


def test_finite_data_are_drawn_as_often_as_they_are_there(data: Path) -> None:
    plan = planner_of(data, PackedWords(), repeat=False, **PLANNED).plan()
    assert plan.run.drawn is not None
    assert (plan.is_exact, plan.unit, plan.is_dealt) == (True, "packs", False)
    assert sum(plan.run.drawn) > 250  # all but those of packs after the last whole step
    longer = planner_of(data, PackedWords(), repeat=False, **PLANNED).plan(RunLength(steps=999))
    assert longer.run.steps == plan.run.steps
    assert "the data end" in longer.notes[0]


def test_what_is_left_out_is_told_apart(data: Path) -> None:
    plan = planner_of(data / ".." / "a", PackedWords(), **PLANNED).plan(RunLength(epochs=2))
    long = [number for number in range(170) if number % 11 and number % 40 + 50 * (number % 13 == 0) + 1 > CAPACITY]
    of_epoch = len(range(0, 170, 11)), len([number for number in long if number % 7])
    assert plan.run.skipped == pytest.approx(2 * of_epoch[0], abs=6)
    assert plan.run.too_long == pytest.approx(2 * of_epoch[1], abs=6)


@pytest.mark.parametrize("kind", ["packs", "samples"])
def test_a_longer_run_is_extrapolated_and_near(data: Path, kind: str) -> None:
    encoder, options = (Words(), {}) if kind == "samples" else (PackedWords(), PLANNED)
    planner = planner_of(data, encoder, **options)
    exact = planner.plan(RunLength(steps=200), exact_steps=200)
    about = planner.plan(RunLength(steps=200), exact_steps=50)
    assert (about.is_exact, about.exact.steps, about.run.steps, about.run.units) == (False, 50, 200, exact.run.units)
    assert about.run.costs == pytest.approx(exact.run.costs, rel=0.05)
    assert about.run.drawn == pytest.approx(exact.run.drawn, rel=0.05)
    by_tokens = planner.plan(RunLength(tokens=int(exact.run.costs[0])), exact_steps=50)
    assert by_tokens.run.steps == pytest.approx(200, rel=0.05)


@pytest.mark.parametrize("kind", ["packs", "samples"])
def test_the_fewest_steps_that_reach_tokens_or_epochs(data: Path, kind: str) -> None:
    encoder, options = (Words(), {}) if kind == "samples" else (PackedWords(), PLANNED)
    planner = planner_of(data, encoder, **options)
    steps = [step.totals for step, _ in zip(planner.steps(), range(120), strict=False)]
    reached: list[tuple[RunLength, Callable[[Totals], bool]]] = [
        (RunLength(tokens=5000), lambda totals: bool(totals.costs[0] >= 5000)),
        (RunLength(epochs=1.5), lambda totals: bool(np.sum(np.array(totals.drawn)) >= 390)),
        (
            RunLength(epochs=0.5, source="b/train"),
            lambda totals: totals.drawn is not None and bool(totals.drawn[1] >= 45),
        ),
    ]
    for length, is_enough in reached:
        sums = [*itertools.accumulate(steps, Totals.plus)]
        expected = next(number for number, totals in enumerate(sums, 1) if is_enough(totals))
        assert planner.num_steps(length, 10_000) == expected
    with pytest.raises(ConfigError, match="max_planned_samples=100"):
        planner.num_steps(RunLength(tokens=5000), 100)
    with pytest.raises(ConfigError, match="a/train, b/train"):
        planner.num_steps(RunLength(epochs=1, source="c"), 100)


def test_data_that_end_before_are_refused(data: Path) -> None:
    with pytest.raises(ConfigError, match="the data end"):
        planner_of(data, PackedWords(), repeat=False, **PLANNED).num_steps(RunLength(tokens=10**6), 10_000)


def test_without_costs_samples_and_epochs_are_known(data: Path) -> None:
    planner, counts = planner_of(data, Plain()), collections.Counter[str]()
    datasets = [rank_dataset(data, rank, 2, BatchSchedule(4, 1), encoder=Plain(), deal=None) for rank in range(2)]
    for ranks in run(datasets, BatchSchedule(4, 1), 50):
        counts.update(key for rank in ranks for key in rank)
    plan = planner.plan(RunLength(steps=50))
    assert (plan.run.samples, list(plan.names), plan.is_exact) == (200, [], True)
    assert plan.run.drawn is not None and plan.run.drawn.tolist() == [counts["a"], counts["b"]]
    assert "measure" in plan.notes[0]
    steps = planner.num_steps(RunLength(epochs=2, source="b/train"), 1)
    drawn = [planner.plan(RunLength(steps=number)).run.drawn for number in (steps - 1, steps)]
    assert [one is not None and one[1] >= 180 for one in drawn] == [False, True]
    assert planner.plan().run.steps == 65
    assert planner_of(data, Plain(), repeat=False).plan().run.samples == 260
    with pytest.raises(ConfigError, match="in steps"):
        planner.plan(RunLength(tokens=5))


def test_of_packs_made_while_reading_only_steps_are_known(data: Path) -> None:
    planner = planner_of(data, PackedWords(), packing_buffer_size=40)
    plan = planner.plan(RunLength(steps=7))
    assert (plan.run.units, plan.run.samples, plan.epochs(plan.run)) == (28, None, None)
    for length in (RunLength(epochs=1), RunLength(tokens=9)):
        with pytest.raises(ConfigError, match="packing='planned'"):
            planner.plan(length)


def test_the_spread_of_loads() -> None:
    assert tuple(Spread.of([[1, 1], [3, 1], [0, 0]])) == pytest.approx((3.5 / 3, 1.49, 1.5, 1))
    wrong: dict[str, Any]
    for wrong in ({}, {"steps": 1, "epochs": 1}, {"steps": 1, "source": "a"}, {"tokens": 0}):
        with pytest.raises(ConfigError):
            RunLength(**wrong)
