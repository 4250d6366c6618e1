"""What the oracle, the ledger and the audit say of runs that skip steps, compared with their batches."""

import dataclasses
from pathlib import Path

import pytest

from bridge_data.datamodule.batch_schedule import BatchSchedule
from bridge_data.errors import StateError
from bridge_data.lanes.lane_dataset import LaneDataset
from bridge_data.loader import get_savable_loader
from bridge_data.loader.checkpoint import read_checkpoint, save_states
from bridge_data.order.step_skips import StepSkips
from bridge_data.plugins.ledger.ledger_files import RunLedger
from bridge_data.plugins.ledger.verify_command import compare_with_data, compare_with_ledger
from bridge_data.runs.run_order import RunOrder
from tests.runs.oracle.parts import LEGS, SETTINGS, Run, check, numbers_with, write_two

SCHEDULE = BatchSchedule(12, 3)
"""Four micro-batches a step."""


@dataclasses.dataclass
class SkippingRun(Run):
    """A run whose settings skip steps."""

    skips: StepSkips | None = dataclasses.field(default_factory=lambda: SCHEDULE.skips(["2-4", "13", "20-22"]))

    def dataset(self, world_size: int, rank: int = 0, num_lanes: int = 0) -> LaneDataset:
        made = super().dataset(world_size, rank, num_lanes)
        made.skips = self.skips
        return made


@pytest.fixture(scope="module")
def blend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_two(tmp_path_factory.mktemp("blend"))


@pytest.mark.parametrize("kind", LEGS)
def test_every_step_is_told_through_kills_within_ranges_and_a_reshard(blend: Path, kind: str) -> None:
    run = SkippingRun({**SETTINGS, **LEGS[kind]})
    run.leg(blend, 2, 14, num_lanes=8, lost=4)  # killed after the first skip
    run.leg(blend, 4, 8)
    run.leg(blend, 1, 4, num_lanes=12, lost=2)  # the rest is resharded
    run.leg(blend, 2, 30)
    order = RunOrder(run.dataset(1), states=run.states, schedule=SCHEDULE)
    check(run, order, sorted(run.keys, reverse=True))
    plain = RunOrder(Run(run.settings, path=blend).dataset(1, num_lanes=8), schedule=SCHEDULE, replay=True)
    for step in range(13):
        [source] = order.plain_steps(step)
        told = [sample.key for sample in order.at(step).samples]
        assert told == [sample.key for sample in plain.at(source).samples]
    assert [order.plain_steps(n) for n in (1, 2, 5)] == [[1], [5], [8]]
    sample = order.micro_batch(14)[1]  # of step 6 of the run as it was
    last = max(run.keys)
    told = order.when(sample.key, source=sample.source, steps=range(order.step_of(last) + 1))
    assert [one.micro_batch for one in told if one.micro_batch <= last] == numbers_with(run, sample.key)


def test_a_state_after_a_skip_tells_what_comes(blend: Path) -> None:
    run = SkippingRun(SETTINGS)
    run.leg(blend, 2, 11, num_lanes=8, lost=40)
    run.leg(blend, 2, 40)
    order = RunOrder(run.dataset(2), states=run.states[:1], schedule=SCHEDULE)
    assert order.num_replayed == 0
    check(run, order, [number for number in run.keys if number >= 22])
    sample = order.micro_batch(25)[0]
    told = order.when(sample.key, source=sample.source, steps=range(22 + 1))
    assert [one.micro_batch for one in told] == numbers_with(run, sample.key)


def test_a_state_of_the_run_as_it_was_is_refused(blend: Path) -> None:
    run = Run(SETTINGS)
    run.leg(blend, 2, 20, num_lanes=8)
    skipping = SkippingRun(SETTINGS, path=blend)
    with pytest.raises(StateError, match=r"the state after 40 micro-batches was saved .* by --state"):
        RunOrder(skipping.dataset(2), states=run.states)


def test_a_run_that_resumed_within_a_skip_is_told_as_its_states_say(blend: Path) -> None:
    run = SkippingRun(SETTINGS, skips=None)
    run.leg(blend, 2, 6, num_lanes=8)
    run.skips = SCHEDULE.skips(["2-4", "8"])
    for states in (run.states[:1], run.states):
        run.leg(blend, 4, 5)
        check(run, RunOrder(run.dataset(1), states=states, schedule=SCHEDULE), run.keys)


def test_ledger_files_and_data_agree_with_the_states(blend: Path, tmp_path: Path) -> None:
    found = []
    for world_size in (1, 2):
        run = SkippingRun(SETTINGS, path=blend)
        folder = tmp_path / str(world_size)
        loaders = [
            get_savable_loader(run.dataset(world_size, rank, 8), ledger_path=folder) for rank in range(world_size)
        ]
        streams = [iter(loader) for loader in loaders]
        for slot in range(100):
            if slot and slot % 20 == 0:
                states = [loader.save_state_rank() for loader in loaders]
                save_states(folder / str(slot), states, step=slot // 4, world_size=world_size)
            run.keys[slot] = list(next(streams[slot % world_size]).__key__)
        for loader in loaders:
            loader.close()
        checkpoints = [read_checkpoint(folder / str(slot)) for slot in range(20, 100, 20)]
        ledger = RunLedger(folder)
        findings = [*compare_with_ledger(checkpoints, ledger), *compare_with_data(checkpoints, str(blend))]
        assert [(finding.is_same, finding.why) for finding in findings] == [(True, "")] * 8
        assert [finding.expected.samples for finding in findings[:4]] == [60, 120, 180, 240]
        assert all(finding.expected.since == 0 for finding in findings)
        check(run, RunOrder(run.dataset(world_size, 0, 8), records=ledger, schedule=SCHEDULE), range(100))
        found.append([str(finding.expected) for finding in findings])
    assert found[0] == found[1]
