"""Plans against runs: a plan says of each step what the loaders then hand out."""

import collections
import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bridge_data import ConfigError, LaneDataset, WorkerConfig, get_loader, get_train_dataset
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from bridge_data.runs.run_plan import Planner, RunLength, Spread, Totals
from tests.prepared import write_texts
from tests.runs.plan_parts import CAPACITY, PackedWords, Plain, Words, measure, rank_dataset, run

PLANNED = {"packing": "planned", "planning_window": 40}


HEAD = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {train: {%s}}\n"
BLENDS = {
    "blend": "blend: [{path: a, weight: 3}, {path: b, weight: 1}]",
    "by_tokens": "weight_unit: tokens, blend: [{path: a, weight: 1}, {path: b, weight: 1}]",
    "repetitions": "blend_epochized: [{path: a, repetitions: 1.5}, {path: b, repetitions: 2}]",
    "later": "blend: [{path: a, weight: [{from_sample: 0, weight: 3}, {from_sample: 400, weight: 0}]}, "
    "{path: b, weight: 1}]",
    "later_tokens": "weight_unit: tokens, blend: [{path: a, weight: [{from_tokens: 0, weight: 3}, "
    "{from_tokens: 4000, weight: 1}]}, {path: b, weight: 2}]",
    "chosen": "blend: [{path: a, weight: 3, where: index % 3 > 0}, {path: b, weight: 1}]",
    "fewer": "blend: [{path: a, weight: 1}, {path: c, weight: 1}]",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blends of 170 and 90 texts, measured; of another 90, every fourth is forgotten."""
    folder = tmp_path_factory.mktemp("plan")
    for name, size in (("a", 170), ("b", 90), ("c", 90)):
        write_texts(folder / name, size)
        measure(folder / name)
    for name, blend in BLENDS.items():
        (folder / f"{name}.yaml").write_text(HEAD % blend)
    forget_samples(folder / "c", [f"{number:06d}" for number in range(1, 90, 4)], "asked for")
    return folder / "blend.yaml"


def load_of(sequences: list[Any], by: str | None) -> int:
    name = by if by == "words" else "tokens"
    return sum(one[name] ** (2 if by == "attention" else 1) for one in sequences)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run to compare with its plan; `resumed`: on (ranks, lanes) after the sixth step."""

    blend: str = "blend"
    overlong: str | None = "drop"
    """What becomes of long samples; None: nothing is packed."""
    budgets: dict[str, int] = dataclasses.field(default_factory=dict)
    ranks: int = 2
    size: int = 1
    assignment: str | None = None
    workers: tuple[int, int] = (0, 6)
    ramp: bool = False
    ends: bool = False
    skip_steps: tuple[str, ...] = ()
    resumed: tuple[int, int] | None = None

    def dataset(self, data: Path, rank: int, ranks: int, workers: tuple[int, int]) -> LaneDataset:
        """The data of a rank."""
        encoder = Words() if self.overlong is None else PackedWords(self.overlong, **self.budgets)
        options: dict[str, Any] = {} if self.overlong is None else PLANNED
        path, repeat = data.with_name(f"{self.blend}.yaml"), not self.ends
        made = rank_dataset(
            path,
            rank,
            ranks,
            self.schedule,
            encoder=encoder,
            assignment=self.assignment,
            workers=workers,
            repeat=repeat,
            **options,
        )
        return made.changed(skips=self.schedule.skips(self.skip_steps))

    @property
    def schedule(self) -> BatchSchedule:
        """Its steps: 12 micro-batches each, which 1, 2, 3 and 4 ranks share, or ever more."""
        few = 12 * self.size
        return BatchSchedule(3 * few, self.size, (few, few, 6 * few)) if self.ramp else BatchSchedule(few, self.size)


RUNS = {
    "one rank": PlannedRun(ranks=1, size=2),
    "two, by attention": PlannedRun(assignment="attention"),
    "three, by words": PlannedRun(ranks=3, size=2, assignment="words"),
    "four ranks, ever larger steps": PlannedRun(ranks=4, assignment="tokens", ramp=True, workers=(0, 8)),
    "budgets": PlannedRun(budgets={"words": 90, "samples": 3}, assignment="attention"),
    "a budget of samples": PlannedRun(budgets={"samples": 2}, workers=(0, 8), size=2),
    "cut": PlannedRun(overlong="truncate", assignment="tokens", size=2),
    "alone": PlannedRun(overlong="alone", ranks=3),
    "shares of tokens": PlannedRun(blend="by_tokens", assignment="tokens"),
    "shares of tokens that change": PlannedRun(blend="later_tokens", ranks=3),
    "weights that change, without packs": PlannedRun(blend="later", overlong=None, size=2),
    "shares of tokens, without packs": PlannedRun(blend="later_tokens", overlong=None, ranks=3),
    "repetitions to their end": PlannedRun(blend="repetitions", ends=True, assignment="attention"),
    "repetitions to their end, without packs": PlannedRun(blend="repetitions", overlong=None, ends=True, size=2),
    "the end of a blend": PlannedRun(ends=True, ranks=3, ramp=True),
    "chosen samples": PlannedRun(blend="chosen", ranks=1, assignment="tokens"),
    "chosen samples, without packs": PlannedRun(blend="chosen", overlong=None, ranks=4, workers=(0, 8)),
    "skipped steps while they grow": PlannedRun(skip_steps=("1-2",), ramp=True, assignment="tokens"),
    "skipped steps": PlannedRun(skip_steps=("3-5", "9"), assignment="attention"),
    "skipped steps, without packs": PlannedRun(skip_steps=("0", "4-7"), overlong=None, ranks=3, ramp=True),
    "forgotten samples": PlannedRun(blend="fewer"),
    "forgotten samples, by attention": PlannedRun(blend="fewer", assignment="attention"),
    "forgotten samples, without packs": PlannedRun(blend="fewer", overlong=None, size=2),
    "two workers of five lanes": PlannedRun(workers=(2, 10), size=2, assignment="attention"),
    "resumed on four ranks": PlannedRun(resumed=(4, 8), assignment="tokens", ramp=True),
    "resumed on three ranks with other lanes": PlannedRun(resumed=(3, 9), blend="by_tokens"),
    "resumed on three ranks, without packs": PlannedRun(resumed=(3, 6), overlong=None),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.processes] * (one.workers[0] > 0)) for name, one in RUNS.items()]
)
def test_each_step_is_as_planned(data: Path, name: str) -> None:
    one = RUNS[name]
    schedule = one.schedule

    def ranks_of(ranks: int, workers: tuple[int, int]) -> list[LaneDataset]:
        return [one.dataset(data, rank, ranks, workers) for rank in range(ranks)]

    first, (ranks, lanes) = 6 if one.resumed else 40, one.resumed or (one.ranks, one.workers[1])
    taken, state = run(ranks_of(one.ranks, one.workers), schedule, first)
    if one.resumed:
        taken += run(ranks_of(ranks, (0, lanes)), schedule, 34, (first, state))[0]
    planner = Planner(one.dataset(data, 0, ranks, (0, lanes)), schedule)
    planned = [step for step, _ in zip(planner.steps(), range(40), strict=False)]
    plan = planner.plan(None if one.ends else RunLength(steps=len(taken)))
    if one.ends and one.overlong is None:  # lanes end one after another: of the last steps, only the number is known
        assert not plan.is_exact and len(planned) in range(len(taken) - 2, len(taken))
    else:
        assert plan.is_exact and len(planned) == plan.run.steps
    assert plan.run.steps == len(taken) > 3
    for number, (step, found) in enumerate(zip(planned, taken, strict=False)):
        sequences = [sequence for rank in found for sequence in rank]
        costs = dict(zip(planner.names, step.totals.costs.tolist(), strict=True))
        assert step.totals.samples == len(sequences)
        for cost in ("tokens", "words"):
            assert costs[cost] == sum(sequence[cost] for sequence in sequences)
        if number >= first or not one.resumed:
            assert (step.assigned if one.assignment else step.in_turn) == [
                load_of(rank, one.assignment) for rank in found
            ]


def planner_of(data: Path, encoder: Any, **options: Any) -> Planner:
    schedule = BatchSchedule(4, 1)
    return Planner(rank_dataset(data, 0, 2, schedule, encoder=encoder, assignment=None, **options), schedule)


def test_finite_data_are_drawn_as_often_as_they_are_there(data: Path) -> None:
    plan = planner_of(data, PackedWords(), repeat=False, **PLANNED).plan()
    assert plan.run.drawn is not None
    assert (plan.is_exact, plan.unit, plan.is_assigned) == (True, "packs", False)
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
        plan = planner.plan(length, exact_samples=10_000)
        assert (plan.run.steps, plan.is_exact) == (expected, True)
    assert not planner.plan(RunLength(tokens=5000), exact_samples=100).is_exact
    with pytest.raises(ConfigError, match="a/train, b/train"):
        planner.plan(RunLength(epochs=1, source="c"))


def test_data_that_end_before_are_told(data: Path) -> None:
    plan = planner_of(data, PackedWords(), repeat=False, **PLANNED).plan(RunLength(tokens=10**6))
    assert not plan.reaches and "the data end" in plan.notes[0]


def test_without_costs_samples_and_epochs_are_known(data: Path) -> None:
    planner, counts = planner_of(data, Plain()), collections.Counter[str]()
    datasets = [rank_dataset(data, rank, 2, BatchSchedule(4, 1), encoder=Plain(), assignment=None) for rank in range(2)]
    for ranks in run(datasets, BatchSchedule(4, 1), 50)[0]:
        counts.update(key for rank in ranks for key in rank)
    plan = planner.plan(RunLength(steps=50))
    assert (plan.run.samples, list(plan.names), plan.is_exact) == (200, [], True)
    assert plan.run.drawn is not None and plan.run.drawn.tolist() == [counts["a"], counts["b"]]
    assert "--costs" in plan.notes[0]
    steps = planner.plan(RunLength(epochs=2, source="b/train")).run.steps
    drawn = [planner.plan(RunLength(steps=number)).run.drawn for number in (steps - 1, steps)]
    assert [one is not None and one[1] >= 180 for one in drawn] == [False, True]
    assert planner.plan().run.steps == 65
    assert planner_of(data, Plain(), repeat=False).plan().run.samples == 260
    with pytest.raises(ConfigError, match="in steps"):
        planner.plan(RunLength(tokens=5))


def test_lanes_of_data_that_end_do_so_with_smaller_batches(tmp_path: Path) -> None:
    write_texts(tmp_path / "a", 56, per_shard=56)
    options: dict[str, Any] = {"worker_config": WorkerConfig(0, 1, 0, num_lanes=8), "batch_size": 4, "repeat": False}
    dataset = get_train_dataset(
        tmp_path / "a", **options, task_encoder=Plain(), shuffle_buffer_size=7, max_samples_per_sequence=7
    )
    batches = [len(batch) for batch in get_loader(dataset)]
    plan = Planner(dataset).plan()
    assert (plan.run.steps, plan.run.samples) == (len(batches), sum(batches)) == (16, 56)


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
