"""The two sums of the ledger, over chains of random topologies: both equal where the lanes stay, the one without
positions after reshards and with other micro-batches too, and different exactly where the samples are."""

import collections
import dataclasses
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from bridge_data import get_savable_loader, merge_states
from bridge_data.order import Cursor
from bridge_data.order.cursor import SampleKey
from bridge_data.order.state import LoaderState
from bridge_data.plugins.ledger import ledger
from bridge_data.plugins.ledger.ledger import ledger_line
from bridge_data.plugins.ledger.ledger_files import RunLedger
from bridge_data.plugins.ledger.ledger_sums import LedgerSums
from tests.properties.machine import EXAMPLES, Case, JobMachine, Topology, cases, datasets_of, written_sources

CASES = cases(JobMachine.CAN_CHOOSE).map(lambda case: dataclasses.replace(case, limit=None))
NUM_LANES = 12
TO_THE_END = 100_000


@pytest.fixture(scope="module")
def data() -> Iterator[Path]:
    with written_sources() as folder:
        yield folder


@dataclasses.dataclass(frozen=True)
class Leg:
    """So many batches of each rank, saved, and some more that are lost to a kill."""

    world_size: int
    num_steps: int
    num_lost: int = 0
    num_lanes: int = NUM_LANES
    batch_size: int | None = None


def run(data: Path, case: Case, folder: Path, legs: list[Leg]) -> LoaderState:
    """The state of the whole job after the legs, or after the one that came to the end of the data."""
    state: dict[str, Any] | None = None
    for leg in legs:
        of_leg = case if leg.batch_size is None else dataclasses.replace(case, batch_size=leg.batch_size)
        saved = []
        written = JobMachine.WRITERS[case.kind](data, of_leg)
        for dataset in datasets_of(written, of_leg, Topology(leg.world_size, leg.num_lanes)):
            with get_savable_loader(dataset, ledger_path=folder) as loader:
                if state is not None:
                    loader.restore_state_rank(state, strict=False)
                batches = iter(loader)
                for _ in zip(range(leg.num_steps), batches, strict=False):
                    pass
                saved.append(loader.save_state_rank())
                for _ in zip(range(leg.num_lost), batches, strict=False):
                    pass
        state = merge_states(saved)
        if state.get("ended"):
            break
    assert state is not None
    return LoaderState.from_dict(state)


def written(folder: Path) -> dict[int, list[SampleKey]]:
    """What the ledger files have of each micro-batch."""
    return dict(sorted(RunLedger(folder)))


def sums_of(state: LoaderState) -> LedgerSums:
    found = ledger.sums_of(state)
    assert found is not None
    return found


def sums_in(folder: Path) -> LedgerSums:
    """The sums of the ledger files, computed again."""
    found = LedgerSums()
    for _, one in RunLedger(folder).sums():
        found = found.plus(one)
    return found


@pytest.fixture(scope="module")
def folders() -> Iterator[Iterator[Path]]:
    """New folders, in memory where there is such a place."""
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as folder:
        yield (Path(folder) / str(number) for number in range(10**9))


@pytest.mark.long
@settings(max_examples=max(2, EXAMPLES // 30), deadline=None)
@given(
    case=CASES.map(lambda case: dataclasses.replace(case, ending="endless")),
    legs=st.lists(
        st.builds(
            Leg,
            world_size=st.sampled_from([1, 2, 3, 4, 6, 12]),
            num_steps=st.integers(0, 6),
            num_lost=st.sampled_from([0, 0, 1, 3]),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_both_sums_are_those_of_one_uninterrupted_rank_where_the_lanes_stay(
    data: Path, folders: Iterator[Path], case: Case, legs: list[Leg]
) -> None:
    chain, alone = next(folders), next(folders)
    state = run(data, case, chain, legs)
    num = sum(leg.world_size * leg.num_steps for leg in legs)
    expected = run(data, case, alone, [Leg(1, num)])
    assert ledger_line(state) == ledger_line(expected)
    assert sums_of(state).samples == sum(map(len, written(alone).values()))
    last = next((leg for leg in reversed(legs) if leg.num_steps or leg.num_lost), None)
    if last is not None and last.num_lost:
        return  # what came after its save is in the ledger too, until something is written after a resume
    assert sums_in(chain) == sums_in(alone) == sums_of(state)
    assert written(chain) == written(alone)


def _in_whole_epochs(case: Case) -> Case:
    """Finite data without fractions of an epoch: which samples these have depends on the number of lanes. So does how
    often a sample counts where hooks make several micro-batches of one: each of these counts all of its samples."""
    weights = tuple(float(math.ceil(weight)) for weight in case.weights) if case.epochized else case.weights
    return dataclasses.replace(case, ending="once", weights=weights, splits=False)


@pytest.mark.long
@settings(max_examples=max(2, EXAMPLES // 30), deadline=None)
@given(
    case=CASES.map(_in_whole_epochs),
    legs=st.lists(
        st.builds(
            Leg,
            world_size=st.integers(1, 5),
            num_steps=st.integers(0, 4),
            num_lost=st.sampled_from([0, 0, 2]),
            num_lanes=st.sampled_from([0, 60]),
            batch_size=st.sampled_from([None, None, 2]),
        ),
        max_size=4,
    ),
    last=st.builds(Leg, st.integers(1, 5), st.just(TO_THE_END), num_lanes=st.just(0)),
)
def test_the_sum_without_positions_is_that_of_all_samples_whatever_happens_on_the_way(
    data: Path, folders: Iterator[Path], case: Case, legs: list[Leg], last: Leg
) -> None:
    chain, alone = next(folders), next(folders)
    found = sums_of(run(data, case, chain, [*legs, last]))
    expected = sums_of(run(data, case, alone, [Leg(1, TO_THE_END)]))
    assert (found.samples, found.unpositioned) == (expected.samples, expected.unpositioned)
    is_same = written(chain) == written(alone)
    event(f"the same order: {is_same}")
    assert (found.positioned == expected.positioned) == is_same


@pytest.mark.long
@settings(max_examples=max(2, EXAMPLES // 30), deadline=None)
@given(case=CASES, leg=st.builds(Leg, st.sampled_from([1, 2, 3]), st.integers(4, 12)), data_=st.data())
def test_one_swapped_sample_changes_the_sums_exactly_if_it_changes_what_came_out(
    data: Path, folders: Iterator[Path], case: Case, leg: Leg, data_: st.DataObject
) -> None:
    as_it_is, changed = next(folders), next(folders)
    expected = sums_of(run(data, case, as_it_is, [leg]))
    lane, draw, by = (data_.draw(st.integers(*bounds)) for bounds in ((0, 2), (0, 9), (1, 5)))
    take = Cursor.take

    def swapped(self: Cursor, count: int) -> list[Any]:
        return [
            (number, ref._replace(index=max(0, ref.index - by)) if (self.lane, number) == (lane, draw) else ref)
            for number, ref in take(self, count)
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cursor, "take", swapped)
        found = sums_of(run(data, case, changed, [leg]))
    both = written(as_it_is), written(changed)
    counts = [collections.Counter(key for keys in one.values() for key in keys) for one in both]
    event(f"other samples: {counts[0] != counts[1]}")
    assert (found.positioned == expected.positioned) == (both[0] == both[1])
    assert (found.unpositioned == expected.unpositioned) == (counts[0] == counts[1])
