"""The length of passes: `len`, `LimitDataset` and `RepeatDataset`."""

import functools
import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data import (
    LaneDataset,
    Packing,
    SavableDataLoader,
    SkipSample,
    WorkerConfig,
    get_loader,
    get_savable_loader,
)
from bridge_data.energon import LimitDataset, RepeatDataset
from bridge_data.errors import ConfigError, StateError
from bridge_data.order.state import merge_states
from tests.prepared import encoder_with, train_dataset, val_dataset, write_blend, write_texts


@given(
    size=st.integers(1, 120),
    lanes=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    settings=st.fixed_dictionaries(
        {"batch_size": st.sampled_from([None, 1, 4, 7]), "batch_drop_last": st.booleans()}
        | {"max_samples_per_sequence": st.sampled_from([None, 5]), "shuffle_buffer_size": st.sampled_from([None, 20])}
    ),
)
def test_the_length_of_shuffled_data_that_end_is_the_number_of_batches(
    tmp_path_factory: pytest.TempPathFactory, size: int, lanes: tuple[int, int], settings: dict[str, Any]
) -> None:
    """Before and after a pass: the last batches of several lanes may be smaller."""
    path, (world_size, num_lanes) = write_texts(tmp_path_factory.mktemp("data"), size, per_shard=33), lanes
    for rank in range(world_size):
        given = {"rank": rank, "world_size": world_size, "num_lanes": world_size * num_lanes, "repeat": False}
        loader = get_loader(train_dataset(path, **given, **settings))
        length = len(loader)
        assert [sum(1 for _ in loader) for _ in range(2)] == [length, len(loader)]


@pytest.mark.parametrize("ranks", [(2, 1), (1, 2), (3, 2)])
def test_the_length_after_a_resume_on_other_ranks_is_that_of_the_lanes_of_the_state(
    tmp_path: Path, ranks: tuple[int, int]
) -> None:
    path = write_texts(tmp_path / "a", 103)

    def loaders(world_size: int) -> list[SavableDataLoader]:
        made = (
            train_dataset(path, rank=n, world_size=world_size, batch_size=4, repeat=False) for n in range(world_size)
        )
        return [get_savable_loader(dataset) for dataset in made]

    before = loaders(ranks[0])
    for loader in before:
        for _ in itertools.islice(loader, 2):
            pass
    state = merge_states([loader.save_state_rank() for loader in before])
    for loader in loaders(ranks[1]):
        loader.restore_state_rank(state)
        rest = sum(1 for _ in loader)
        assert sum(1 for _ in loader) == len(loader) >= rest
    dataset = train_dataset(path, batch_size=4, repeat=False)
    assert len(dataset) > 3 and len(dataset.first(3)) == len(RepeatDataset(dataset.first(3), repeats=1)) == 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_texts(folder / "a", 50)
    write_texts(folder / "b", 7)
    write_blend(folder / "twice.yaml", {"a": 2, "b": 1.5}, epochized=True)
    return folder


ONE = WorkerConfig(0, 1, 0, num_lanes=2)


def val(path: Path, *, world_size: int = 1, **settings: Any) -> LaneDataset:
    return val_dataset(path, world_size=world_size, num_lanes=2 * world_size, **({"batch_size": 4} | settings))


def train(path: Path, *, world_size: int = 1, **settings: Any) -> LaneDataset:
    return train_dataset(path, world_size=world_size, num_lanes=2 * world_size, **({"batch_size": 4} | settings))


def texts(dataset: LaneDataset, num_passes: int = 1) -> list[list[str]]:
    loader = get_loader(dataset)
    return [[text for batch in loader for text in batch.text] for _ in range(num_passes)]


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize(
    "settings", [{}, {"batch_size": None}, {"batch_size": 7}, {"batch_drop_last": True}, {"limit": 1}, {"limit": 99}]
)
def test_the_length_of_validation_is_the_number_of_its_batches(
    folder: Path, world_size: int, settings: dict[str, Any]
) -> None:
    for rank in range(world_size):
        loader = get_loader(val(folder / "a", rank=rank, world_size=world_size, **settings))
        assert len(loader) == len(loader.dataset) == len(list(loader))
        assert loader and loader.dataset, "also without a batch"


def test_the_length_of_training_is_that_of_a_virtual_epoch_or_of_an_epoch(folder: Path) -> None:
    assert len(train(folder / "a", virtual_epoch_length=3)) == 3
    assert len(train(folder / "a")) == 13
    assert [len(train(folder / "a", rank=rank, world_size=2)) for rank in (0, 1)] == [7, 7]
    assert len(train(folder / "twice.yaml", batch_size=None)) == 2 * 50 + 10
    once = get_loader(train(folder / "a", batch_size=None, repeat=False))
    assert len(once) == len(list(once)) == 50


def twice(self: Any, sample: Any) -> Any:
    yield from (sample, sample)


def says_so(self: Any, sample: Any) -> "Iterator[Any]":
    return twice(self, sample)


@functools.wraps(twice)
def in_disguise(self: Any, sample: Any) -> Any:
    return twice(self, sample)


def two_batches(self: Any, samples: list[Any]) -> Any:
    yield from (samples[:1], samples[1:])


def of_one_text(self: Any, sample: Any) -> tuple[str, int]:
    return sample.text, 1


@pytest.mark.parametrize(
    "hooks",
    [
        *({"encode_sample": hook} for hook in (twice, says_so, in_disguise)),
        {"batch": two_batches},
        {"batch_group_criterion": of_one_text},
    ],
)
def test_a_loader_that_may_yield_more_than_the_samples_make_has_no_length(folder: Path, hooks: dict[str, Any]) -> None:
    loader = get_loader(val(folder / "a", task_encoder=encoder_with(**hooks)))
    with pytest.raises(TypeError, match="not known before it is read"):
        len(loader)
    assert len(list(loader)) > len(loader.dataset) == 13
    check_no_length(folder, task_encoder=encoder_with(**hooks))


def check_no_length(folder: Path, **settings: Any) -> None:
    """That no loader knows its length but by virtual_epoch_length, also one of endless data."""
    for dataset in (val(folder / "a", **settings), train(folder / "a", **settings)):
        with pytest.raises(TypeError, match="virtual_epoch_length"):
            len(get_loader(dataset))
    assert len(get_loader(train(folder / "a", virtual_epoch_length=3, **settings))) == 3


def test_a_loader_of_packs_has_no_length(folder: Path) -> None:
    packing = Packing(length=lambda sample: len(sample.text), capacity=10, overlong="drop")
    hooks = {"select_samples_to_pack": packing, "pack_selected_samples": lambda self, samples: samples[0]}
    check_no_length(folder, packing_buffer_size=4, task_encoder=encoder_with(**hooks))


def test_that_a_plain_function_returned_generators_is_seen_at_the_end_of_a_pass(folder: Path) -> None:
    loader = get_loader(val(folder / "a", task_encoder=encoder_with(encode_sample=lambda self, one: twice(self, one))))
    assert len(loader) == 13
    assert len(list(loader)) == 25
    with pytest.raises(TypeError, match="not known before it is read"):
        len(loader)


def test_ranks_that_end_together_have_one_length(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    ranks = [val(folder / "b", rank=rank, world_size=3) for rank in range(3)]
    assert [len(get_loader(rank)) for rank in ranks] == [1, 1, 0]
    assert [len(get_loader(rank, ends="even")) for rank in ranks] == [1, 1, 1]


def test_a_limited_data_set_begins_anew_with_each_pass(folder: Path) -> None:
    first, second = texts(LimitDataset(val(folder / "a"), 3, worker_config=ONE), 2)
    assert first == second == [str(number) for number in range(12)]
    one, other = texts(LimitDataset(train(folder / "a"), 3), 2)
    assert one == other and len(one) == 12
    assert len(LimitDataset(train(folder / "a", virtual_epoch_length=2), 5)) == 2


def test_a_repeated_data_set_goes_on_with_its_first_batch(folder: Path) -> None:
    dataset = LimitDataset(RepeatDataset(val(folder / "b"), worker_config=ONE), 5, reset_after_epoch=True)
    assert len(get_loader(dataset)) == 5
    whole = [str(number) for number in range(7)]
    assert texts(dataset, 2) == [[*whole, *whole, "0", "1", "2", "3"]] * 2


@pytest.mark.parametrize("repeats", [1, 2, 3, 0.5, 2.5, 1.01])
def test_a_data_set_is_repeated_so_many_times(folder: Path, repeats: float) -> None:
    dataset = RepeatDataset(val(folder / "b", batch_size=2), repeats=repeats, worker_config=ONE)
    whole = [batch.text for batch in get_loader(val(folder / "b", batch_size=2))]
    expected = whole * int(repeats) + whole[: int(len(whole) * (repeats % 1))]
    loader = get_loader(dataset)
    assert [[batch.text for batch in loader] for _ in range(2)] == [expected] * 2
    assert len(loader) == len(dataset) == len(expected)


def test_a_state_of_more_repetitions_than_there_are_now_ends_with_its_own(folder: Path) -> None:
    once = train_dataset(folder / "a", repeat=False, batch_size=2)
    whole = [batch.text for batch in get_loader(once)]
    with get_savable_loader(RepeatDataset(once, repeats=3)) as loader:
        batches = iter(loader)
        for _ in range(2 * len(whole) + 1):
            next(batches)
        state = loader.save_state_rank()
    with get_savable_loader(once) as resumed:
        resumed.restore_state_rank(state)
        assert [batch.text for batch in resumed] == whole[1:]
        assert len(resumed) == len(whole)  # the pass was not longer than a pass is


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize(("repeats", "batch_size"), [(2.5, 4), (0.3, 5), (1 / 3, 1), (1.1, 7), (0.02, 1)])
def test_a_fraction_is_of_the_batches_of_the_job_on_any_number_of_ranks(
    folder: Path, repeats: float, batch_size: int, world_size: int
) -> None:
    def read(rank: int, world_size: int) -> list[list[str]]:
        once = val(folder / "a", rank=rank, world_size=world_size, batch_size=batch_size)
        loader = get_loader(RepeatDataset(once, repeats=repeats))
        first, second = ([batch.text for batch in loader] for _ in range(2))
        assert len(first) == len(loader) and first == second
        return first

    whole = [batch.text for batch in get_loader(val(folder / "a", batch_size=batch_size))]
    num_expected = Fraction(repeats).limit_denominator(1000) * len(whole) // 1
    found = sorted(text for rank in range(world_size) for batch in read(rank, world_size) for text in batch)
    assert found == sorted(text for batch in itertools.islice(itertools.cycle(whole), num_expected) for text in batch)


def only_two(self: Any, sample: Any) -> Any:
    if sample.text not in ("0", "3"):
        raise SkipSample
    return sample


SOME = encoder_with(encode_sample=only_two)


def test_whole_repetitions_need_no_length(folder: Path) -> None:
    dataset = RepeatDataset(val(folder / "b", batch_size=2, task_encoder=SOME), repeats=2)
    (whole,) = texts(val(folder / "b", batch_size=2, task_encoder=SOME))
    assert texts(dataset, 2) == [whole * 2] * 2


def test_a_repeated_data_set_of_which_all_is_left_out_ends(folder: Path) -> None:
    def nothing(self: Any, sample: Any) -> Any:
        yield from ()

    dataset = RepeatDataset(val(folder / "b", task_encoder=encoder_with(encode_sample=nothing)))
    assert list(get_loader(dataset)) == []


def test_ranks_that_end_together_repeat_the_same_fraction(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    found = []
    for rank in range(2):
        once = val(folder / "b", rank=rank, world_size=2, batch_size=1)
        loader = get_loader(RepeatDataset(once, repeats=1.5), ends="even")
        for _ in range(2):
            passed = list(loader)
            assert len(loader) == len(passed) == 6  # 4 steps, then 2: of 7 and of 3 samples
        assert loader.even_ends is not None
        assert loader.even_ends.num_filled == 4 * rank  # the last step of each repetition, in two passes
        found += [text for batch in passed[: 6 - rank] for text in batch.text]
    assert sorted(found[:6]) == sorted(["0", "2", "4", "6", "0", "2"])


def test_states_of_ranks_in_different_repetitions_are_refused_with_the_way_out(folder: Path) -> None:
    ranks = [RepeatDataset(val(folder / "b", rank=rank, world_size=2, batch_size=None), repeats=2) for rank in (0, 1)]
    loaders = [get_loader(rank) for rank in ranks]  # with 4 and 3 batches in a repetition
    for loader in loaders:
        list(itertools.islice(loader, 4))
    with pytest.raises(StateError, match=r'has repetition 1, .*RepeatDataset before the others.*ends="even"'):
        merge_states([loader.save_state_rank() for loader in loaders])


@pytest.mark.parametrize(
    "make",
    [
        lambda path: LimitDataset(RepeatDataset(val(path)), 5),
        lambda path: RepeatDataset(val(path, batch_size=2), repeats=2),
        lambda path: RepeatDataset(val(path, batch_size=2), repeats=2.5),
        lambda path: RepeatDataset(val(path, batch_size=None, task_encoder=SOME), repeats=2),  # its end is left out
    ],
)
@pytest.mark.parametrize("num_before", range(10))
def test_a_repetition_is_restored_anywhere(folder: Path, make: Callable[[Path], LaneDataset], num_before: int) -> None:
    def batches(loader: Any) -> Iterator[Any]:
        while True:
            yield from (batch.text for batch in loader)
            yield "end"

    loader = get_loader(make(folder / "b"))
    passing = batches(loader)
    for _ in range(num_before):
        while next(passing) == "end":
            pass
    state = loader.state_dict()
    restored = get_loader(make(folder / "b"))
    restored.load_state_dict(state)
    expected, found = list(itertools.islice(passing, 25)), list(itertools.islice(batches(restored), 25))
    if expected[0] == "end":  # the pass was over when it was saved, and the loader begins the next
        found, expected = found[: len(expected) - 1], expected[1:]
    assert found == expected


@pytest.mark.parametrize(
    ("wrap", "told"),
    [
        (lambda data: LimitDataset(data, 0), "LimitDataset: length=0: expected an integer of at least 1"),
        *(
            (lambda data, repeats=repeats: RepeatDataset(data, repeats=repeats), "expected a positive number|leave it")
            for repeats in (0, -1, float("inf"), float("nan"))
        ),
        (lambda data: RepeatDataset(data, repeats=2, restart=False), "every pass starts from the beginning"),
        (lambda data: RepeatDataset(LimitDataset(data, 2)), "limit the repeated data set instead"),
    ],
)
def test_wrong_lengths_and_repeats_are_errors(folder: Path, wrap: Callable[[LaneDataset], Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        wrap(val(folder / "b"))
