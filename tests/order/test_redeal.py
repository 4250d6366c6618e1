import collections
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data import LaneDataset, StateError, WorkerConfig, get_train_dataset, merge_states
from bridge_data.order.cursor import Entry, cut_entry, entry_size
from bridge_data.order.redeal import deal, deal_blocks
from tests.lanes.test_lane import EarlyEnd
from tests.prepared import write_blend, write_texts
from tests.properties.jobs import Encoder, Job

ENTRIES = st.lists(
    st.integers(1, 60).map(lambda count: [0, 1, 0, 0, 0, count])
    | st.integers(1, 9).map(lambda count: [[0, index, 0] for index in range(count)]),
    max_size=12,
)


@given(entries=ENTRIES, num_lanes=st.integers(1, 20))
def test_shares_are_equal_and_lose_nothing(entries: list[Entry], num_lanes: int) -> None:
    dealt = deal(entries, num_lanes, range(num_lanes))
    shares = list(dealt.values())
    assert deal(entries, num_lanes, {0, num_lanes - 1}) == {lane: dealt[lane] for lane in {0, num_lanes - 1}}
    sizes = [sum(map(entry_size, share)) for share in shares]
    assert sum(sizes) == sum(map(entry_size, entries))
    assert len(shares) == num_lanes
    assert max(sizes) - min(sizes) <= 1
    refs = [ref for share in shares for entry in share if isinstance(entry[0], list) for ref in entry]
    assert refs == [ref for entry in entries if isinstance(entry[0], list) for ref in entry]


@given(entries=ENTRIES, num_lanes=st.integers(1, 20), block_size=st.integers(1, 7), turn=st.integers(0, 19))
def test_shares_in_blocks_are_those_of_the_slots_to_come(
    entries: list[Entry], num_lanes: int, block_size: int, turn: int
) -> None:
    first_lane = turn % num_lanes
    shares = deal_blocks(entries, num_lanes, block_size, first_lane=first_lane)
    sizes = [sum(map(entry_size, share)) for share in shares]
    total = sum(map(entry_size, entries))
    expected = [0] * num_lanes
    for block in range(-(-total // block_size)):
        expected[(first_lane + block) % num_lanes] += 1
    assert [-(-size // block_size) for size in sizes] == expected
    assert sum(sizes) == total
    assert sum(size % block_size > 0 for size in sizes) <= 1


def test_the_rest_of_a_slice_begins_where_its_head_ends() -> None:
    assert cut_entry([2, 7, 3, 5, 10, 100], 30) == ([2, 7, 3, 5, 10, 30], [2, 7, 3, 5, 40, 70])
    assert cut_entry([4, 1, 20, 9], 4) == ([4, 1, 20, 4], [4, 1, 24, 5])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "a", 600)
    write_texts(folder / "b", 130)
    return write_blend(folder / "blend.yaml", {"a": 3, "b": 1})


def ranks(data: Path, world_size: int, num_lanes: int = 0, encoder: Any = None, **settings: Any) -> list[LaneDataset]:
    return [
        get_train_dataset(
            data,
            worker_config=WorkerConfig(rank, world_size, 1, num_lanes=num_lanes),
            batch_size=2,
            shuffle_buffer_size=50,
            max_samples_per_sequence=10,
            task_encoder=encoder or Encoder(),
            **settings,
        )
        for rank in range(world_size)
    ]


def after(data: Path, steps: int, world_size: int, saved: Any = None, num_lanes: int = 0, **settings: Any) -> Any:
    """The merged state after some steps of a job."""
    job = Job(ranks(data, world_size, num_lanes, **settings), saved)
    for _ in range(steps):
        job.step()
    return merge_states(job.save())


def test_lanes_are_kept_where_the_ranks_can_share_them(data: Path) -> None:
    saved = after(data, 5, 4, num_lanes=8)
    for world_size in (1, 2, 4, 8):
        (state, *_) = [made.check_state(saved) for made in ranks(data, world_size)]
        assert (state.num_lanes, len(state.generations)) == (8, 1)


def test_another_number_of_lanes_is_dealt_where_it_is_needed_or_asked_for(data: Path) -> None:
    saved = after(data, 5, 4, num_lanes=8)
    assert ranks(data, 3)[0].check_state(saved).num_lanes == 24
    assert ranks(data, 2, num_lanes=4)[0].check_state(saved).num_lanes == 4


def test_all_ranks_deal_alike(data: Path) -> None:
    saved = after(data, 7, 2, num_lanes=4, packing_buffer_size=20)
    together = merge_states([made.check_state(saved).to_dict() for made in ranks(data, 3, packing_buffer_size=20)])
    alone = ranks(data, 1, 24, packing_buffer_size=20)[0].check_state(saved).to_dict()
    assert together == alone


def test_the_shares_of_a_source_differ_by_one_sample_at_most(data: Path) -> None:
    saved = after(data, 9, 2, num_lanes=4, packing_buffer_size=20)
    state = ranks(data, 1, 7, packing_buffer_size=20)[0].check_state(saved)
    for source in ("0", "1"):
        sizes = [sum(map(entry_size, lane.get("inbox", {}).get(source, []))) for lane in state.lanes.values()]
        assert sum(sizes) > 0
        assert max(sizes) - min(sizes) <= 1


def test_dealing_again_and_again_nests_nothing(data: Path) -> None:
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


def test_a_re_deal_takes_all_lanes(data: Path) -> None:
    job = Job(ranks(data, 2, 2))
    job.step()
    one_rank_alone = job.save()[0]
    with pytest.raises(StateError, match=r"lacks lanes \[1\] of 2"):
        ranks(data, 3)[0].check_state(one_rank_alone)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    for name, size in ODD.items():
        write_texts(folder / name, size)
    return folder


ODD = {"a": 51, "b": 23}
HUNDREDTHS = st.integers(1, 320) | st.sampled_from([50, 150, 250])


@pytest.mark.processes
@settings(max_examples=40, deadline=None)
@given(
    repetitions=st.tuples(HUNDREDTHS, HUNDREDTHS),
    deals=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 30)), min_size=1, max_size=4),
)
def test_fractions_of_epochs_end_with_the_same_sample_after_any_re_deals(
    odd: Path, repetitions: tuple[int, int], deals: list[tuple[int, int]]
) -> None:
    times = dict(zip(ODD, repetitions, strict=True))
    blend = write_blend(odd / "blend.yaml", {name: n / 100 for name, n in times.items()}, epochized=True)
    emitted: collections.Counter[tuple[str, int, int, int]] = collections.Counter()
    saved: Any = None
    expected = [math.floor(Fraction(times[name] * size, 100) + Fraction(1, 2)) for name, size in ODD.items()]
    for world_size, steps in [*deals, (2, 1_000)]:
        if sum(emitted.values()) == sum(expected):
            break  # a state of the end begins the next pass
        job = Job(ranks(blend, world_size, world_size, repeat=False), saved)
        for _ in range(steps):
            batches = job.step()
            emitted.update(key for batch in batches if batch is not None for unit in batch for key in unit)
            if batches == [None] * world_size:
                break
        saved = merge_states(job.save())
    assert max(emitted.values()) == 1
    counted = collections.Counter(key[0] for key in emitted)
    names = job.datasets[0].source_names
    assert [counted[name] for name in names] == expected


def test_more_parts_may_wait_than_samples_were_drawn(data: Path) -> None:
    """Each is a draw of its own after a deal; how many were drawn before it is no negative number."""
    settings: dict[str, Any] = {"encoder": Encoder(num_parts=3), "packing_buffer_size": 60}
    saved = after(data, 1, 1, num_lanes=1, **settings)
    dealt = ranks(data, 3, num_lanes=3, **settings)[0].check_state(saved).to_dict()
    assert dealt["drawn_before"] >= 0
    assert ranks(data, 3, num_lanes=3, **settings)[0].check_state(dealt).num_lanes == 3
