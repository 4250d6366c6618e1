import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    DatasetError,
    EnergonDataloader,
    StateError,
    WorkerConfig,
    cyclic_iter,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from bridge_data.datamodule import ValidationDataloader
from tests.datamodule.parts import draw, make_module, take, write_numbers
from tests.prepared import write_blend


def make_loader(path: Path, **options: Any) -> EnergonDataloader:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=2)
    chosen = {"worker_config": config, "batch_size": 4, "shuffle_buffer_size": 8, "max_samples_per_sequence": 4}
    return EnergonDataloader(get_savable_loader(get_train_dataset(path, **{**chosen, **options})))


def test_it_never_ends_and_iterating_it_goes_on(path: Path) -> None:
    expected = draw(make_loader(path), 60)
    loader = make_loader(path)
    assert take(loader, 30) + take(loader, 30) == expected
    with pytest.raises(TypeError, match="this loader is endless"):
        len(loader)
    assert len(make_loader(path, virtual_epoch_length=7)) == 7
    state = loader.save_state()
    again = draw(loader, 3)
    loader.restore_state(state)
    assert draw(loader, 3) == again
    with pytest.raises(StateError, match="not a loader state of bridge_data"):
        loader.restore_state({"micro_batch_index": 3})


def test_what_is_called_before_the_first_batch_is_called_once(path: Path) -> None:
    called: list[int] = []
    loader = EnergonDataloader(make_loader(path).dataloader, before_first=lambda: called.append(loader.num_draws))
    draw(loader, 3)
    assert (called, loader.num_draws, loader.num_handed_out_before) == ([0], 3, 0)


def test_finite_data_begins_again_also_when_it_was_saved_at_its_end(path: Path) -> None:
    loader = make_loader(path, repeat=False)
    epoch = draw(loader, 24)
    assert sorted(number for batch in epoch for number in batch) == list(range(96))
    again = make_loader(path, repeat=False)
    again.restore_state(loader.save_state())
    assert take(again.dataloader, 24) == epoch == draw(loader, 24)
    with pytest.raises(DatasetError, match="yielded nothing"):
        next(make_loader(path, repeat=False, batch_size=200, batch_drop_last=True))


class Consumer:
    """Draws `ahead` batches before it needs them, as Lightning does."""

    def __init__(self, loader: EnergonDataloader, ahead: int) -> None:
        self.loader, self.num_delivered = loader, 0
        loader.follow(lambda: self.num_delivered)
        self.waiting: list[list[int]] = []
        self.begin(ahead)

    def begin(self, ahead: int) -> None:
        self.waiting = take(iter(self.loader), ahead)

    def next(self) -> list[int]:
        self.waiting += draw(self.loader, 1)
        self.num_delivered += 1
        return self.waiting.pop(0)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_what_was_drawn_ahead_is_not_in_the_state_and_comes_again(path: Path, ahead: int) -> None:
    expected = draw(make_loader(path), 40)
    consumer = Consumer(make_loader(path), ahead)
    for step in range(8):
        resumed = make_loader(path)
        resumed.restore_state(json.loads(json.dumps(consumer.loader.save_state())))
        assert draw(resumed, 3) == expected[step : step + 3]
        assert resumed.num_handed_out_before == step
        if step == 3:
            consumer.begin(ahead)  # as at the end of an epoch
        assert consumer.next() == expected[step]
    other = Consumer(consumer.loader, ahead)
    assert [other.next() for _ in range(5)] == expected[8:13]


def test_endless_iteration_ends_with_an_error_where_nothing_comes() -> None:
    """One empty pass is forgiven, as after a restore at the end; an exception ends nothing."""

    class Passes:
        def __init__(self, *passes: list[int]) -> None:
            self.passes = iter(passes)

        def __iter__(self) -> Iterator[int]:
            return map(given, next(self.passes))

    def given(number: int) -> int:
        if number < 0:
            raise ValueError("once")
        return number

    assert list(itertools.islice(cyclic_iter([1, 2, 3]), 7)) == [1, 2, 3, 1, 2, 3, 1]
    assert list(itertools.islice(cyclic_iter(Passes([], [1, 2], [3])), 3)) == [1, 2, 3]
    items = cyclic_iter(Passes([1, -1, 2]))
    assert next(items) == 1
    with pytest.raises(ValueError, match="once"):
        next(items)
    assert next(items) == 2
    with pytest.raises(DatasetError, match="passes 1 and 2 through the list yielded nothing"):
        next(cyclic_iter([]))
    items = cyclic_iter(iter([1]))
    assert next(items) == 1
    with pytest.raises(DatasetError, match="can be iterated more than once"):
        next(items)


def test_restoring_another_blend_is_as_strict_as_the_module_says(path: Path, tmp_path: Path) -> None:
    blend = write_blend(tmp_path / "blend.yaml", {str(path): 1, str(write_numbers(tmp_path / "more")): 1})
    trained = make_module(path).train_dataloader()
    next(trained)
    state = trained.save_state()
    with pytest.raises(StateError, match="strict_restore=False"):
        make_module(blend).train_dataloader().restore_state(state)
    loose = make_module(blend, strict_restore=False).train_dataloader()
    with pytest.raises(StateError, match="micro-batches of 1, this run of 2"):  # steps would be miscounted
        make_module(path, micro_batch_size=2).train_dataloader().restore_state(state, strict=False)
    with pytest.raises(StateError, match="other data"):
        loose.restore_state(state, strict=True)
    loose.restore_state(state)
    assert loose.save_state()["micro_batch_index"] == 1


EXPECTED = [list(range(start, start + 5)) for start in range(96, 116, 5)] + [[116, 117, 118, 119]]


def validation_loader(
    path: Path, *, cyclic: bool, eval_batches: int | None = None, world_size: int = 1, batch_size: int = 5
):
    config = WorkerConfig(rank=world_size - 1, world_size=world_size, num_workers=0)
    dataset = get_val_dataset(path, worker_config=config, batch_size=batch_size)
    return ValidationDataloader(get_savable_loader(dataset), cyclic=cyclic, eval_batches=eval_batches)


def test_a_pass_has_every_sample_once_in_order_wherever_the_last_one_stopped(path: Path) -> None:
    loader = validation_loader(path, cyclic=False)
    assert take(loader, 99) == EXPECTED
    assert take(loader, 2) == EXPECTED[:2]
    assert take(loader, 99) == EXPECTED
    assert take(validation_loader(path, cyclic=False, eval_batches=2), 99) == EXPECTED
    cyclic = validation_loader(path, cyclic=True)
    assert draw(cyclic, 7) == EXPECTED + EXPECTED[:2]
    cyclic.restart()
    assert draw(cyclic, 6) == EXPECTED + EXPECTED[:1]


@pytest.mark.parametrize("eval_batches", [1, 3, 5, 7])
def test_a_cyclic_one_restarts_by_itself_after_so_many_draws(path: Path, eval_batches: int) -> None:
    loader = validation_loader(path, cyclic=True, eval_batches=eval_batches)
    once = (EXPECTED * 2)[:eval_batches]
    assert draw(loader, 3 * eval_batches) == 3 * once
    draw(loader, 1)
    loader.restart()
    assert draw(loader, eval_batches + 1) == once + EXPECTED[:1]


def test_a_rank_without_any_batch_gets_none_or_an_error_but_never_an_endless_loop(path: Path) -> None:
    empty = validation_loader(path, cyclic=False, world_size=2, batch_size=100)
    assert list(empty) == [] and empty, "a loader without batches is a loader"
    with pytest.raises(DatasetError, match="no batch for data-parallel rank 1 of 2"):
        next(validation_loader(path, cyclic=True, world_size=2, batch_size=100))


def test_validation_begins_anew_when_there_was_training_in_between(path: Path) -> None:
    train, val = make_module(path, micro_batch_size=4).build()
    first = draw(val, 2)
    assert draw(val, 1) != first[:1], "no training: it goes on"
    draw(train, 1)
    assert draw(val, 2) == first
