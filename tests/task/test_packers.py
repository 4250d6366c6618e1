import functools
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
    TextSample,
    edataclass,
    get_savable_loader,
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
from tests.prepared import train_dataset, write_texts

CAPACITY = 50
LENGTHS = st.lists(st.integers(0, CAPACITY), max_size=60)
NAMED = pytest.mark.parametrize("pack", PACKERS.values(), ids=list(PACKERS))


def loads(lengths: list[int], groups: list[list[int]]) -> list[int]:
    return [sum(lengths[position] for position in group) for group in groups]


@NAMED
@given(lengths=LENGTHS)
def test_every_sequence_is_in_one_pack_and_no_pack_is_too_long(pack: Packer, lengths: list[int]) -> None:
    groups = pack(lengths, CAPACITY)
    assert sorted(position for group in groups for position in group) == list(range(len(lengths)))
    assert max(loads(lengths, groups), default=0) <= CAPACITY
    assert all(groups)
    assert pack(tuple(lengths), CAPACITY) == groups


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


@pytest.mark.parametrize("capacity", [2_048, 8_192])
def test_a_long_tailed_mix_fills_97_percent_from_a_buffer_of_1000(capacity: int) -> None:
    draw = random.Random(capacity)
    for _ in range(10):
        lengths = [min(capacity, 1 + int(draw.lognormvariate(5.5, 1.2))) for _ in range(1_000)]
        for pack in (first_fit_decreasing, best_fit, lpt_balanced):
            assert packing_efficiency(lengths, pack(lengths, capacity), capacity) >= 0.97


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


def opened(texts: Path, **settings: Any) -> Any:
    encoder = Encoder(**settings)
    return get_savable_loader(
        train_dataset(texts, num_lanes=2, batch_size=None, packing_buffer_size=30, task_encoder=encoder, repeat=False)
    )


def cut(sample: TextSample, length: int) -> TextSample:
    return TextSample.derive_from(sample, text=sample.text[:length])


def test_every_sample_of_a_finite_run_is_packed_once_and_overlong_ones_are_counted(texts: Path) -> None:
    everything = {f"{number:03d}" * (1 + number % 9) for number in range(200)}
    overlong = {text for text in everything if len(text) > PACK_LENGTH}

    for overlong_policy, settings in (("alone", {}), ("drop", {}), ("truncate", {"truncate": cut})):
        loader = opened(texts, overlong=overlong_policy, **settings)
        packs = [pack.texts for pack in loader]
        packed = [text for pack in packs for text in pack]
        assert len(packed) == len(set(packed))
        dropped = len(overlong) if overlong_policy == "drop" else 0
        truncated = len(overlong) if overlong_policy == "truncate" else 0
        assert len(packed) == 200 - dropped
        assert {text for text in packed if len(text) <= PACK_LENGTH} >= everything - overlong
        assert loader.skipped == ({"select_samples_to_pack": dropped} if dropped else {})
        assert loader.truncated == truncated
        assert all(len(pack) == 1 or sum(map(len, pack)) <= PACK_LENGTH for pack in packs)


@pytest.mark.parametrize("num_packs", [1, 10, 40])
def test_a_truncated_sample_that_waits_is_not_counted_again_after_a_resume(texts: Path, num_packs: int) -> None:
    before, after = (opened(texts, overlong="truncate", truncate=cut) for _ in range(2))
    for _ in zip(range(num_packs), before, strict=False):
        pass
    after.restore_state_rank(before.save_state_rank())
    assert list(after)
    assert before.truncated + after.truncated == sum(3 * (1 + number % 9) > PACK_LENGTH for number in range(200))


@pytest.mark.parametrize(
    ("pack", "lengths", "expected"),
    [
        (greedy, [4, 8, 1, 4, 2, 1], [[0], [1, 2], [3, 4, 5]]),
        (first_fit_decreasing, [4, 8, 1, 4, 2, 1], [[1, 4], [0, 3, 2, 5]]),
        (best_fit, [7, 6, 3, 4], [[0, 2], [1, 3]]),
        (best_fit, [5, 6, 4, 3], [[1, 2], [0, 3]]),
        (lpt_balanced, [9, 1, 1, 1], [[0], [1, 2, 3]]),
    ],
)
def test_packs_of_a_small_case_by_hand(pack: Packer, lengths: list[int], expected: list[list[int]]) -> None:
    assert pack(lengths, 10) == expected


@pytest.mark.parametrize(
    ("lengths", "groups", "expected"), [([5, 5, 4], [[0, 1], [2]], 0.7), ([20], [[0]], 1), ([], [], 1)]
)
def test_efficiency_is_the_share_of_room_that_is_filled(
    lengths: list[int], groups: list[list[int]], expected: float
) -> None:
    assert packing_efficiency(lengths, groups, 10) == expected


@pytest.mark.parametrize("pack", [first_fit_decreasing, best_fit])
def test_a_hundred_thousand_sequences_are_packed_at_once(pack: Packer) -> None:
    """Quadratic packers would take minutes."""
    draw = random.Random(0)
    lengths = [draw.randint(1, 1_000) for _ in range(100_000)]
    assert packing_efficiency(lengths, pack(lengths, 1_000), 1_000) > 0.99


WRONG = [([1, 11], 10, r"sequence 1 has 11 tokens, a pack holds 10.*Packing\(overlong")]
WRONG += [([-1], 10, "sequence 0 has -1 tokens"), ([], 0, "capacity=0")]


@pytest.mark.parametrize(("lengths", "capacity", "told"), WRONG)
@pytest.mark.parametrize("pack", PACKERS.values())
def test_what_fits_no_pack_is_an_error_that_says_what_to_do(
    pack: Packer, lengths: list[int], capacity: int, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        pack(lengths, capacity)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 0}, "capacity=0"),
        ({"overlong": "cut"}, "overlong='cut'.*'drop', 'truncate', 'alone'"),
        ({"packer": "best"}, "packer='best'.*'best_fit'"),
        ({"overlong": "truncate"}, "needs truncate="),
        ({"overlong": "drop", "truncate": str}, "other policies do not use it"),
        ({"overlong": "truncate", "truncate": lambda *_: "x" * 25}, "made a sample of length 25 out of one of 25"),
    ],
)
def test_wrong_settings_are_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        packing(**changes).admitted("x" * 25)
