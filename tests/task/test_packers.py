import functools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data import (
    ConfigError,
    DefaultTaskEncoder,
    Packing,
    SkipSample,
    TextSample,
    WorkerConfig,
    edataclass,
    get_loader,
    get_train_dataset,
    stateless,
)
from bridge_data.samples import Sample
from bridge_data.task.packers import (
    PACKERS,
    Packer,
    best_fit,
    first_fit_decreasing,
    greedy,
    lpt,
    lpt_balanced,
    packing_efficiency,
)
from tests.prepared import write_texts

CAPACITY = 50
LENGTHS = st.lists(st.integers(0, CAPACITY), max_size=60)
NAMED = pytest.mark.parametrize("pack", PACKERS.values(), ids=list(PACKERS))


def loads(lengths: list[int], groups: list[list[int]]) -> list[int]:
    return [sum(lengths[position] for position in group) for group in groups]


def fewest_packs(lengths: list[int], capacity: int) -> int:
    """By trying everything."""

    @functools.cache
    def needed(left: tuple[int, ...], room: int) -> int:
        if not left:
            return 0
        fitting = [
            needed(left[:i] + left[i + 1 :], room - length)
            for i, length in enumerate(left)
            if length <= room and length not in left[:i]
        ]
        return min(fitting) if fitting else 1 + needed(left, capacity)

    return needed(tuple(sorted(lengths)), 0)


@NAMED
@given(lengths=LENGTHS)
def test_every_sequence_is_in_one_pack_and_no_pack_is_too_long(pack: Packer, lengths: list[int]) -> None:
    groups = pack(lengths, CAPACITY)
    assert sorted(position for group in groups for position in group) == list(range(len(lengths)))
    assert max(loads(lengths, groups), default=0) <= CAPACITY
    assert all(groups)
    assert pack(tuple(lengths), CAPACITY) == groups


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_decreasing_fits_need_few_packs_more_than_the_best(lengths: list[int]) -> None:
    fewest = fewest_packs(lengths, 20)
    for pack in (first_fit_decreasing, best_fit):
        assert fewest <= len(pack(lengths, 20)) <= 11 / 9 * fewest + 1
    assert len(greedy(lengths, 20)) <= 2 * fewest


@given(LENGTHS)
def test_the_heaps_choose_the_packs_that_trying_all_would(lengths: list[int]) -> None:
    order = sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))
    for pack, rank in ((first_fit_decreasing, lambda room, n: n), (best_fit, lambda room, n: (room, n))):
        groups: list[list[int]] = []
        rooms: list[int] = []
        for position in order:
            fitting = [n for n, room in enumerate(rooms) if room >= lengths[position]]
            number = min(fitting, key=lambda n: rank(rooms[n], n), default=len(rooms))
            if number == len(rooms):
                groups.append([])
                rooms.append(CAPACITY)
            groups[number].append(position)
            rooms[number] -= lengths[position]
        assert pack(lengths, CAPACITY) == groups


def test_packs_of_a_small_case_by_hand() -> None:
    lengths = [4, 8, 1, 4, 2, 1]
    assert greedy(lengths, 10) == [[0], [1, 2], [3, 4, 5]]
    assert first_fit_decreasing(lengths, 10) == [[1, 4], [0, 3, 2, 5]]
    assert best_fit([7, 6, 3, 4], 10) == [[0, 2], [1, 3]]
    assert best_fit([5, 6, 4, 3], 10) == [[1, 2], [0, 3]]
    assert lpt_balanced([9, 1, 1, 1], 10) == [[0], [1, 2, 3]]


@given(st.lists(st.integers(0, 40), max_size=9), st.integers(1, 4))
def test_balanced_groups_are_within_four_thirds_of_the_best(lengths: list[int], num_groups: int) -> None:
    groups = lpt(lengths, num_groups)
    assert len(groups) == num_groups
    assert sorted(position for group in groups for position in group) == list(range(len(lengths)))

    @functools.cache
    def best(position: int, sums: tuple[int, ...]) -> int:
        if position == len(lengths):
            return max(sums)
        return min(
            best(position + 1, tuple(sorted((*sums[:n], sums[n] + lengths[position], *sums[n + 1 :]))))
            for n in range(num_groups)
        )

    assert max(loads(lengths, groups)) <= 4 / 3 * best(0, (0,) * num_groups)


def test_efficiency_is_the_share_of_room_that_is_filled() -> None:
    assert packing_efficiency([5, 5, 4], [[0, 1], [2]], 10) == 0.7
    assert packing_efficiency([20], [[0]], 10) == 1, "a pack of one that fits nowhere is full"
    assert packing_efficiency([], [], 10) == 1


@pytest.mark.parametrize("capacity", [2_048, 4_096, 8_192])
def test_a_long_tailed_mix_fills_97_percent_from_a_buffer_of_1000(capacity: int) -> None:
    draw = random.Random(capacity)
    for _ in range(10):
        lengths = [min(capacity, 1 + int(draw.lognormvariate(5.5, 1.2))) for _ in range(1_000)]
        for pack in (first_fit_decreasing, best_fit, lpt_balanced):
            assert packing_efficiency(lengths, pack(lengths, capacity), capacity) >= 0.97


def test_a_hundred_thousand_sequences_are_packed_at_once() -> None:
    """Quadratic packers would take minutes."""
    draw = random.Random(0)
    lengths = [draw.randint(1, 1_000) for _ in range(100_000)]
    for pack in (first_fit_decreasing, best_fit):
        assert packing_efficiency(lengths, pack(lengths, 1_000), 1_000) > 0.99


@NAMED
def test_what_is_longer_than_a_pack_is_an_error_that_says_what_to_do(pack: Packer) -> None:
    with pytest.raises(ConfigError, match=r"sequence 1 has 11 tokens, a pack holds 10.*Packing\(overlong"):
        pack([1, 11], 10)
    with pytest.raises(ConfigError, match="sequence 0 has -1 tokens"):
        pack([-1], 10)
    with pytest.raises(ConfigError, match="capacity=0"):
        pack([], 0)


def test_no_groups_are_an_error() -> None:
    with pytest.raises(ConfigError, match="num_groups=0"):
        lpt([1], 0)


PACK_LENGTH = 20


def packing(**changes: Any) -> Packing:
    return Packing(**{"length": len, "capacity": PACK_LENGTH, "overlong": "alone"} | changes)


@given(st.lists(st.integers(0, 30), max_size=40), st.sampled_from([*PACKERS, greedy]), st.booleans())
def test_every_sample_is_in_one_pack_or_left_and_packs_hold_their_capacity(
    lengths: list[int], packer: Any, carry_over: bool
) -> None:
    samples = ["x" * length for length in lengths]
    boxes = [[sample] for sample in samples]  # told apart by identity, as the lane does
    packs = packing(length=lambda box: len(box[0]), packer=packer, carry_over=carry_over)(boxes)
    chosen = [id(box) for pack in packs for box in pack]
    assert len(chosen) == len(set(chosen))
    left = {id(box) for box in boxes} - set(chosen)
    assert carry_over or not left
    assert sum(len(box[0]) for box in boxes if id(box) in left) <= PACK_LENGTH
    assert all(len(pack) == 1 or sum(len(box[0]) for box in pack) <= PACK_LENGTH for pack in packs)
    assert packs or not boxes


def test_the_first_sample_is_never_left_so_none_waits_for_ever() -> None:
    """One that is shorter than all others would be in the emptiest pack of every buffer."""
    buffer = ["short" * 2] + ["x" * 15 for _ in range(5)]
    assert any("short" in pack[0] for pack in packing()(buffer))
    assert len(packing()(buffer)) == 5


def test_overlong_samples_are_dropped_cut_or_alone_as_declared() -> None:
    long = "x" * 25
    assert packing().admitted(long) == (long, False)
    with pytest.raises(SkipSample):
        packing(overlong="drop").admitted(long)
    cutting = packing(overlong="truncate", truncate=lambda sample, length: sample[:length])
    assert cutting.admitted(long) == ("x" * 20, True)
    assert cutting.admitted("short") == ("short", False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 0}, "capacity=0"),
        ({"overlong": "cut"}, "overlong='cut'.*'drop', 'truncate', 'alone'"),
        ({"packer": "best"}, "packer='best'.*'best_fit'"),
        ({"overlong": "truncate"}, "needs truncate="),
        ({"overlong": "drop", "truncate": str}, "other policies do not use it"),
    ],
)
def test_wrong_settings_are_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        packing(**changes)


def test_a_cut_that_is_still_too_long_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"made a sample of length 25 out of one of 25, but a pack holds 20"):
        packing(overlong="truncate", truncate=lambda sample, length: sample).admitted("x" * 25)


@edataclass
class Pack(Sample):
    texts: list[str]


class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.select_samples_to_pack = packing(length=lambda sample: len(sample.text), **settings)  # type: ignore[method-assign]

    @stateless
    def pack_selected_samples(self, samples: list[TextSample]) -> Pack:
        return Pack.derive_from(samples[0], texts=[sample.text for sample in samples])


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(
        tmp_path_factory.mktemp("data") / "texts", 200, lambda number: f"{number:03d}" * (1 + number % 9)
    )


def run(texts: Path, **settings: Any) -> tuple[list[list[str]], Any]:
    dataset = get_train_dataset(
        texts,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=2),
        batch_size=None,
        packing_buffer_size=30,
        shuffle_buffer_size=20,
        max_samples_per_sequence=None,
        task_encoder=Encoder(**settings),
        repeat=False,
    )
    loader = get_loader(dataset)
    return [pack.texts for pack in loader], loader


def test_every_sample_of_a_finite_run_is_packed_once_and_overlong_ones_are_counted(texts: Path) -> None:
    everything = {f"{number:03d}" * (1 + number % 9) for number in range(200)}
    overlong = {text for text in everything if len(text) > PACK_LENGTH}

    def cut(sample: TextSample, length: int) -> TextSample:
        return TextSample.derive_from(sample, text=sample.text[:length])

    for overlong_policy, settings in (("alone", {}), ("drop", {}), ("truncate", {"truncate": cut})):
        packs, loader = run(texts, overlong=overlong_policy, **settings)
        packed = [text for pack in packs for text in pack]
        assert len(packed) == len(set(packed))
        dropped = len(overlong) if overlong_policy == "drop" else 0
        truncated = len(overlong) if overlong_policy == "truncate" else 0
        assert len(packed) == 200 - dropped
        assert {text for text in packed if len(text) <= PACK_LENGTH} >= everything - overlong
        assert loader.skipped == ({"select_samples_to_pack": dropped} if dropped else {})
        assert loader.truncated == truncated
        assert all(len(pack) == 1 or sum(map(len, pack)) <= PACK_LENGTH for pack in packs)


def test_a_run_goes_on_from_any_pack(texts: Path) -> None:
    whole, _ = run(texts, overlong="drop")
    _, loader = run(texts, overlong="drop")
    fresh = type(loader)(loader.dataset)
    it = iter(fresh)
    for step in range(0, len(whole) - 1, 7):
        for _ in range(7 if step else 1):
            next(it)
        again = type(loader)(loader.dataset)
        again.restore_state_rank(json.loads(json.dumps(fresh.save_state_rank())))
        assert next(iter(again)).texts == whole[step + 1]
