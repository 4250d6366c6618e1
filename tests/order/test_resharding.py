import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data import LaneDataset, merge_states
from bridge_data.order.cursor import Entry, entry_size
from bridge_data.order.resharding import assign, assign_batches
from tests.lanes.test_lane import EarlyEnd
from tests.prepared import train_dataset, write_pair
from tests.properties.jobs import Encoder, Job

ENTRIES = st.lists(
    st.integers(1, 60).map(lambda count: [0, 1, 0, 0, 0, count])
    | st.integers(1, 9).map(lambda count: [[0, index, 0] for index in range(count)]),
    max_size=12,
)


@given(entries=ENTRIES, num_lanes=st.integers(1, 20))
def test_shares_are_equal_and_lose_nothing(entries: list[Entry], num_lanes: int) -> None:
    assigned = assign(entries, num_lanes, range(num_lanes))
    shares = list(assigned.values())
    assert assign(entries, num_lanes, {0, num_lanes - 1}) == {lane: assigned[lane] for lane in {0, num_lanes - 1}}
    sizes = [sum(map(entry_size, share)) for share in shares]
    assert sum(sizes) == sum(map(entry_size, entries))
    assert len(shares) == num_lanes
    assert max(sizes) - min(sizes) <= 1
    refs = [ref for share in shares for entry in share if isinstance(entry[0], list) for ref in entry]
    assert refs == [ref for entry in entries if isinstance(entry[0], list) for ref in entry]


@given(entries=ENTRIES, num_lanes=st.integers(1, 20), batch_size=st.integers(1, 7), turn=st.integers(0, 19))
def test_shares_in_batches_are_those_of_the_slots_to_come(
    entries: list[Entry], num_lanes: int, batch_size: int, turn: int
) -> None:
    first_lane = turn % num_lanes
    shares = assign_batches(entries, num_lanes, batch_size, first_lane=first_lane)
    sizes = [sum(map(entry_size, share)) for share in shares]
    total = sum(map(entry_size, entries))
    expected = [0] * num_lanes
    for batch in range(-(-total // batch_size)):
        expected[(first_lane + batch) % num_lanes] += 1
    assert [-(-size // batch_size) for size in sizes] == expected
    assert sum(sizes) == total
    assert sum(size % batch_size > 0 for size in sizes) <= 1


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("data"), 600, 130)


def ranks(data: Path, world_size: int, num_lanes: int = 0, encoder: Any = None, **settings: Any) -> list[LaneDataset]:
    job: dict[str, Any] = {"world_size": world_size, "num_lanes": num_lanes, "task_encoder": encoder or Encoder()}
    return [train_dataset(data, rank=rank, **job, **settings) for rank in range(world_size)]


def after(data: Path, steps: int, world_size: int, saved: Any = None, num_lanes: int = 0, **settings: Any) -> Any:
    """The merged state after some steps of a job."""
    job = Job(ranks(data, world_size, num_lanes, **settings), saved)
    for _ in range(steps):
        job.step()
    return merge_states(job.save())


def test_lanes_are_kept_where_the_ranks_can_share_them_and_else_resharded(data: Path) -> None:
    saved = after(data, 5, 4, num_lanes=8)
    for world_size, asked, num_lanes in ((1, 0, 8), (2, 0, 8), (4, 0, 8), (8, 0, 8), (3, 0, 24), (2, 4, 4)):
        (state, *_) = [made.restored_state(saved) for made in ranks(data, world_size, asked)]
        assert (state.num_lanes, len(state.generations)) == (num_lanes, 1 + (num_lanes != 8))


def test_a_reshard_is_told_once(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved = after(data, 5, 4, num_lanes=8)
    for num_lanes in (8, 4):
        for made in ranks(data, 2, num_lanes):
            made.restored_state(saved)
    assert [message for message in caplog.messages if "reshard" in message] == [
        "resharded from 8 to 4 lanes: the rest of the epochs in progress comes in another order, each sample once"
    ]


def test_all_ranks_assign_alike(data: Path) -> None:
    saved = after(data, 7, 2, num_lanes=4, packing_buffer_size=20)
    together = merge_states([made.restored_state(saved).to_dict() for made in ranks(data, 3, packing_buffer_size=20)])
    alone = ranks(data, 1, 24, packing_buffer_size=20)[0].restored_state(saved).to_dict()
    assert together == alone


def test_resharding_again_and_again_nests_nothing(data: Path) -> None:
    saved = after(data, 3, 2, packing_buffer_size=20)
    sizes = []
    for world_size in (3, 2, 5, 4, 3, 7, 1):
        saved = after(data, 2, world_size, saved, packing_buffer_size=20)
        sizes.append(len(json.dumps(saved)))
    assert max(sizes) < 4 * min(sizes)
    assert len(saved["generations"]) <= 8


def test_old_geometries_are_forgotten_when_their_slices_are_drained(data: Path) -> None:
    saved = after(data, 3, 2)
    saved = after(data, 400, 3, saved)
    assert not any(lane.get("inbox") for lane in saved["lanes"].values())
    assert len(after(data, 0, 2, saved)["generations"]) == 2


def test_a_batch_that_is_out_in_part_is_handed_on_whole(data: Path) -> None:
    job = Job(ranks(data, 2, 2, encoder=EarlyEnd()))
    before = job.step()
    saved = merge_states(job.save())
    other = Job(ranks(data, 3, 3, encoder=EarlyEnd()), saved)
    batches = [batch for _ in range(2) for batch in other.step()]
    for text, part in before:
        assert part == 0
        assert [rest for other_text, rest in batches if other_text == text] == [1, 2]


def test_more_parts_may_wait_than_samples_were_drawn(data: Path) -> None:
    """Each is a draw of its own after a reshard; how many were drawn before it is no negative number."""
    settings: dict[str, Any] = {"encoder": Encoder(num_parts=3), "packing_buffer_size": 60}
    saved = after(data, 1, 1, num_lanes=1, **settings)
    assigned = ranks(data, 3, num_lanes=3, **settings)[0].restored_state(saved).to_dict()
    assert assigned["drawn_before"] >= 0
    assert ranks(data, 3, num_lanes=3, **settings)[0].restored_state(assigned).num_lanes == 3
