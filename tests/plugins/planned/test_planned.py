"""Planned packs: the same on any ranks, exactly once, within budgets, whatever is saved, lost, forgotten or
assigned."""

import collections
import contextlib
import functools
import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bridge_data import (
    ConfigError,
    FatalSampleError,
    LaneDataset,
    StateError,
    get_savable_loader,
    merge_states,
    save_states,
)
from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.energon import BatchDataset, FilterDataset, MapDataset, RepeatDataset
from bridge_data.plugins.forget.tombstone_writing import forget_samples
from bridge_data.plugins.ledger.ledger import Ledger
from bridge_data.plugins.planned.planned import StepAssignment
from bridge_data.plugins.planned.planned_sources import with_assignment
from bridge_data.runs.run_order import RunOrder
from tests.cli.runner import run_command
from tests.lanes.planned_packs import CAPACITY, Encoder, Job, halves, is_split, planned, write_costs, write_measured
from tests.object_store import Bucket
from tests.prepared import train_dataset, write_blend

SIZE = 600
UNMEASURED = frozenset(range(5, SIZE, 97))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    folder = tmp_path_factory.mktemp("planned") / "texts"
    return folder, write_measured(folder, SIZE, skipped=UNMEASURED)


@pytest.mark.parametrize(
    ("num_ranks", "num_workers", "num_lanes"),
    [(2, 0, None), (3, 0, None), (8, 0, None), (64, 0, None), (1, 0, 24), (1, 2, None), (2, 3, 12)],
)
def test_packs_are_the_same_on_any_ranks_lanes_and_workers(
    texts: Any, num_ranks: int, num_workers: int, num_lanes: int | None
) -> None:
    make = functools.partial(planned, texts[0], num_workers=num_workers, num_lanes=num_lanes)
    job = Job(num_ranks, make)
    assert job.batches(72) == Job(1, functools.partial(planned, texts[0])).batches(72)
    for loader in job.loaders:
        loader.close()


def test_checkpoint_info_has_no_column_of_draws_as_lanes_count_none(texts: Any, tmp_path: Path) -> None:
    loader = get_savable_loader(planned(texts[0]))
    assert len(list(itertools.islice(loader, 10))) == 10
    save_states(tmp_path / "saved", loader.save_state_rank(), step=10, world_size=1)
    shown = [line.split() for line in run_command("checkpoint", "info", tmp_path / "saved").stdout.splitlines()]
    assert ["lane", "micro-batches", "pending", "inbox"] in shown
    assert ["together", "10", "0", "0"] in shown
    told = json.loads(run_command("checkpoint", "info", tmp_path / "saved", "--json").stdout)
    assert {lane["draws"] for lane in told["lanes"]} == {None}


def test_planned_packs_go_on_inside_wrappers_or_are_refused(texts: Any) -> None:
    """Batches of another encoder need the costs of that."""
    inner = planned(texts[0], batch_size=None)
    packs = [*itertools.islice(get_savable_loader(inner), 50)]
    mapped = MapDataset(FilterDataset(inner, filter_fn=lambda pack: True), lambda pack: pack)
    assert [*itertools.islice(get_savable_loader(mapped), 50)] == packs
    with pytest.raises(ConfigError, match="not measured"):
        BatchDataset(inner, 2, list)


def test_a_repetition_of_planned_packs_is_restored_before_its_first_batch(texts: Any) -> None:
    """Lanes that have not started have no position, but the ledger of the repetitions before."""

    def make(**settings: Any) -> LaneDataset:
        made = RepeatDataset(planned(texts[0], repeat=False, **settings), repeats=3)
        return made.changed(extras=(Ledger(made.source_ids),))

    job = Job(1, make)
    batches, states = [], []
    for batch in job.rest():
        batches.append(batch)
        states.extend(job.states())
    first = next(state for state in states if state.get("repetition") == 1)
    number = states.index(first)
    assert any("draws" not in lane for lane in first["lanes"].values())
    assert [*Job(1, make, first).rest()] == batches[number + 1 :]
    rest = [*Job(3, make, first).rest()]
    assert sorted(map(str, rest)) == sorted(map(str, batches[number + 1 :]))


def test_a_window_of_4096_samples_fills_packs(tmp_path: Path) -> None:
    write_measured(tmp_path / "many", 5_000, per_shard=1_000)
    batches = Job(1, functools.partial(planned, tmp_path / "many", planning_window=4096)).batches(400)
    packs = [*itertools.chain.from_iterable(batches)]
    assert sum(length for pack in packs for *_, length in pack) / len(packs) / CAPACITY >= 0.995


def test_nothing_waits_in_a_state_and_it_restores_within_a_window(texts: Any) -> None:
    make = functools.partial(planned, texts[0])
    job = Job(1, make)
    job.batches(21)
    (state,) = job.states()
    saved = json.loads(json.dumps(state))
    assert all("pending" not in lane for lane in saved["lanes"].values())
    assert len(json.dumps(saved["lanes"]["0"])) < 300
    assert Job(1, make, saved).batches(30) == job.batches(30)


def run_chain(seed: int, texts: tuple[Path, list[int]]) -> None:
    """A run over finite or endless data that is saved and restored again and again, on other ranks and lanes, while
    samples are lost: each is there once."""
    drawn, (data, lengths) = random.Random(seed), texts
    lost = {one for one in range(SIZE) if drawn.random() < drawn.choice([0, 0.02, 0.4])}
    most, size = drawn.choice([3, 99]), drawn.choice([1, 1, 2, 3])
    encoder = Encoder(lost=lost, budgets={"texts": most})
    window, repeat = drawn.choice([16, 64, 200, 4096]), drawn.random() < 0.3
    wanted = {
        (one, part)
        for one in {*range(SIZE)} - lost - UNMEASURED
        for part, text in enumerate(halves("a" * lengths[one], one))
        if len(text) <= CAPACITY
    }
    seen: collections.Counter[tuple[int, int, int]] = collections.Counter()

    def note(batches: Any) -> None:
        for pack in itertools.chain.from_iterable(batches):
            assert sum(length for *_, length in pack) <= CAPACITY
            assert len(pack) <= most
            seen.update((epoch, index, part) for _, epoch, index, part, _ in pack)

    state: dict[str, Any] | None = None
    options = {"batch_size": size, "planning_window": window, "repeat": repeat}
    while len(seen) < (2 if repeat else 1) * len(wanted):
        num_ranks = drawn.choice([1, 2, 3, 4, 8])
        num_lanes = drawn.choice([None, num_ranks, 2 * num_ranks])
        job = Job(num_ranks, functools.partial(planned, data, encoder, num_lanes=num_lanes, **options), state)
        for _ in range(drawn.randrange(15)):
            note(step := job.step())
            if len(step) < num_ranks:
                break
        else:
            with contextlib.suppress(StateError):  # lanes ended unevenly, and ranks then share them unevenly
                state = json.loads(json.dumps(merge_states(job.states())))
                continue
            assert not repeat
        note(job.rest())
        break
    assert set(seen.values()) == {1}
    assert {key[1:] for key in seen} <= wanted if repeat else seen.keys() == {(0, *one) for one in wanted}


@pytest.mark.parametrize("seed", range(12))
def test_each_sample_comes_once_through_any_chain(seed: int, texts: Any) -> None:
    run_chain(seed, texts)


@pytest.mark.slow
def test_each_sample_comes_once_through_2000_chains(texts: Any) -> None:
    for seed in range(12, 2_012):
        run_chain(seed, texts)


def test_the_parts_of_a_sample_come_in_consecutive_packs_and_forgotten_samples_no_more(tmp_path: Path) -> None:
    data = tmp_path / "texts"
    write_measured(data, 200)
    make = functools.partial(planned, data, Encoder(budgets={"texts": 1}), batch_size=1, planning_window=200)
    packs = [batch[0][0] for batch in Job(1, make).batches(100)]
    places = {(epoch, index, part): place for place, (_, epoch, index, part, _) in enumerate(packs)}
    split = [
        (epoch, index) for epoch, index, part in places if is_split(index) and part and (epoch, index, 0) in places
    ]
    assert len(split) > 5
    assert all(places[*one, 1] == places[*one, 0] + 1 for one in split)
    job = Job(2, make)
    before = job.batches(40)
    state = merge_states(job.states())
    gone = {packs[place][2] for place in range(50, 90, 4)} - {pack[2] for pack in packs[:40]}
    forget_samples(data, [f"{index:06d}" for index in gone], "asked for")
    after = Job(4, make, state)
    rest = after.batches(80)
    seen = [key[:4] for batch in (*before, *rest) for key in batch[0]]
    assert len(seen) == len({*seen}) == 120
    assert gone.isdisjoint(key[2] for key in seen)
    assert sum(loader.skipped.get("forgotten", 0) for loader in after.loaders) >= len(gone)


def test_packs_of_data_in_a_store_are_those_of_files(bucket: Bucket) -> None:
    write_measured(bucket.folder / "texts", 200)
    here = Job(1, functools.partial(planned, bucket.folder / "texts")).batches(30)
    assert Job(2, functools.partial(planned, f"{bucket.url}/texts")).batches(30) == here


def test_what_packs_leave_out_is_counted(texts: Any) -> None:
    data, lengths = texts
    job = Job(1, functools.partial(planned, data, repeat=False, planning_window=4096))
    list(job.rest())
    too_long = sum(length > CAPACITY for one, length in enumerate(lengths) if not is_split(one))
    assert too_long
    assert job.loaders[0].skipped == {"left_out": too_long + len(UNMEASURED)}


def test_samples_that_are_left_out_after_the_last_pack_are_counted_once(tmp_path: Path) -> None:
    write_measured(tmp_path / "few", 60, skipped={*range(60)} - {1, 2})
    jobs = [
        Job(num_ranks, functools.partial(planned, tmp_path / "few", repeat=False, planning_window=5))
        for num_ranks in (1, 4)
    ]
    for job in jobs:
        assert len([*job.rest()]) == 1
        assert sum(loader.skipped["left_out"] for loader in job.loaders if loader.skipped) == 58


def test_packs_keep_within_all_budgets(texts: Any) -> None:
    encoder = Encoder(budgets={"texts": 4})
    (packs,) = zip(*Job(1, functools.partial(planned, texts[0], encoder, batch_size=1)).batches(60), strict=True)
    assert max(map(len, packs)) == 4


def test_the_online_packer_keeps_within_all_budgets(texts: Any) -> None:
    encoder = Encoder(budgets={"texts": 3})
    online = functools.partial(train_dataset, texts[0], task_encoder=encoder, packing_buffer_size=50, batch_size=1)
    (packs,) = zip(*Job(1, online).batches(40), strict=True)
    assert max(map(len, packs)) == 3
    assert max(sum(length for *_, length in pack) for pack in packs) <= CAPACITY


def test_samples_that_are_longer_now_are_counted_and_what_has_no_room_is_left_out(texts: Any, caplog: Any) -> None:
    job = Job(1, functools.partial(planned, texts[0], Encoder(longer=1), num_lanes=1))
    for pack in itertools.chain.from_iterable(job.batches(20)):
        assert sum(length for *_, length in pack) <= CAPACITY
    metrics = job.loaders[0].metrics()
    assert metrics.skipped.keys() == {"left_out"} and metrics.skipped["left_out"] > 5
    assert metrics.others["cost_differs"] > 100  # which are not skipped
    assert "measure the data again" in caplog.text
    refusing = Encoder(longer=1, remeasured="error")
    with pytest.raises(FatalSampleError, match="planned pack is too long"):
        Job(1, functools.partial(planned, texts[0], refusing)).batches(20)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_share_the_load_of_each_step(texts: Any, num_ranks: int) -> None:
    def assigned(by: str = "attention", **settings: Any) -> Any:
        made = planned(texts[0], batch_size=1, **settings)
        schedule = BatchSchedule(global_batch_size=32, micro_batch_size=1)
        return with_assignment(made, StepAssignment(steps=schedule, num_ranks=settings["world_size"], by=by))

    def of(batches: Any) -> list[Any]:
        return sorted(pack for batch in batches for pack in batch)

    def load(batches: Any) -> int:
        return sum(length**2 for batch in batches for pack in batch for *_, length in pack)

    job, plain = Job(num_ranks, assigned), Job(num_ranks, functools.partial(planned, texts[0], batch_size=1))
    worst, in_turn = [], []
    for step in range(6):
        mine, theirs = job.batches(32), plain.batches(32)
        assert of(mine) == of(theirs), step
        for batches, found in ((mine, worst), (theirs, in_turn)):
            loads = [load(batches[rank::num_ranks]) for rank in range(num_ranks)]
            found.append(max(loads) * num_ranks / sum(loads))
    assert max(worst) <= 1.03 < max(in_turn)
    state = merge_states(job.states())
    assert Job(num_ranks, assigned, state).batches(64) == job.batches(64)
    assert of(Job(8, assigned, state).batches(32)) == of(Job(1, assigned, state).batches(32))
    within = Job(num_ranks, assigned, state)
    within.batches(num_ranks)
    state = merge_states(within.states())
    assert Job(num_ranks, assigned, state).batches(60) == within.batches(60)
    for other_ranks, by in ((1, "attention"), (8, "attention"), (num_ranks, "texts")):
        with pytest.raises(StateError, match="end of a step"):
            Job(other_ranks, functools.partial(assigned, by), state)


def test_the_oracle_tells_the_packs_of_a_run(texts: Any, tmp_path: Path) -> None:
    dataset = planned(texts[0], batch_size=2, world_size=2)
    order = RunOrder(dataset, schedule=BatchSchedule(global_batch_size=8, micro_batch_size=2))
    batches = Job(2, functools.partial(planned, texts[0], batch_size=2)).batches(40)
    for step in (0, 7):
        told = [(one.micro_batch, one.place, one.epoch, one.index, one.part) for one in order.at(step).samples]
        held = [
            (number, place, epoch, index, part)
            for number in range(4 * step, 4 * step + 4)
            for place, pack in enumerate(batches[number])
            for _, epoch, index, part, _ in pack
        ]
        assert told == held
    *_, index, _, _ = batches[30][1][0]
    assert 30 in [one.micro_batch for one in order.when(source=0, index=index, steps=range(9 + 1))]


def test_a_blend_is_packed_together(tmp_path: Path) -> None:
    for name, size in (("a", 200), ("b", 100)):
        write_measured(tmp_path / name, size)
    data = write_blend(tmp_path / "blend.yaml", {"a": 3, "b": 1})
    batches = Job(2, functools.partial(planned, data)).batches(40)
    shares = collections.Counter(source for batch in batches for pack in batch for source, *_ in pack)
    assert np.ptp([count / (3 - 2 * one) for one, (_, count) in enumerate(shares.most_common())]) < 12
    assert Job(1, functools.partial(planned, data)).batches(40) == batches


@pytest.mark.parametrize("num_lanes", [2, 6])
def test_epochs_of_metrics_are_those_that_were_drawn_also_after_a_reshard(tmp_path: Path, num_lanes: int) -> None:
    sizes = {"a": 300, "b": 200}
    for name, size in sizes.items():
        write_measured(tmp_path / name, size)
    make = functools.partial(planned, write_blend(tmp_path / "blend.yaml", {"a": 3, "b": 1}), num_lanes=num_lanes)
    drawn: set[tuple[int, int, int]] = set()

    def take(job: Job, count: int) -> None:
        refs = itertools.chain.from_iterable(itertools.chain.from_iterable(job.batches(count)))
        drawn.update((source, epoch, index) for source, epoch, index, *_ in refs)
        of_sources = collections.Counter(source for source, *_ in drawn)
        for loader in job.loaders:
            ids = zip(loader.dataset.source_ids, sizes.items(), strict=True)
            expected = {f"{name}/train": of_sources[source] / size for source, (name, size) in ids}
            assert loader.metrics().epochs == pytest.approx(expected, abs=0.05)  # too long ones are drawn, too

    job = Job(2, make)
    for count in (0, 6, 30, 60, 48):
        take(job, count)
    state = merge_states(job.states())
    job = Job(1, functools.partial(make, num_lanes=3), state)
    for count in (0, 60):
        take(job, count)
    assert min(job.loaders[0].metrics().epochs.values()) > 1


@pytest.mark.parametrize(
    ("encoder", "says"),
    [
        (Encoder(budgets={"images": 2}), "needs the cost 'images', and the cost index has tokens, texts"),
        (type("Own", (Encoder,), {"costs_key": lambda self, source=None: "0" * 16})(), "bridge-data prepare"),
    ],
)
def test_what_is_missing_from_the_cost_index_is_an_error(texts: Any, encoder: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        planned(texts[0], encoder).new_state()


def test_a_packer_of_ones_own_cannot_plan(texts: Any) -> None:
    encoder = Encoder()
    encoder.select_samples_to_pack = lambda samples: [samples]  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="set it to a Packing"):
        planned(texts[0], encoder).new_state()


def test_a_state_of_other_packs_is_refused(texts: Any, tmp_path: Path) -> None:
    job = Job(1, functools.partial(planned, texts[0]))
    job.batches(3)
    (state,) = job.states()
    with pytest.raises(StateError, match="planned: the state has"):
        Job(1, functools.partial(planned, texts[0], Encoder(budgets={"texts": 4})), state)
    with pytest.raises(StateError, match="planned: the state has"):
        measured_again = shutil.copytree(texts[0], tmp_path / "again")
        write_costs(measured_again, [length + 1 for length in texts[1]])
        Job(1, functools.partial(planned, measured_again), state)
    state["lanes"]["0"]["pack_source"] = [0, 1]
    with pytest.raises(StateError, match=r"lanes\.0: .*pack_source"):
        Job(1, functools.partial(planned, texts[0]), state)


def test_the_number_of_samples_needs_no_measuring(texts: Any) -> None:
    encoder = Encoder(budgets={"samples": 3}, costs=lambda sample: {"tokens": len(sample)})
    (packs,) = zip(*Job(1, functools.partial(planned, texts[0], encoder, batch_size=1)).batches(40), strict=True)
    assert max(map(len, packs)) == 3
