import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_data import (
    DatasetError,
    EnergonDataloader,
    SavableDataLoader,
    SkipSample,
    StateError,
    TextSample,
    WorkerConfig,
    cyclic_iter,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
)
from bridge_data.datamodule import ValidationDataloader
from bridge_data.errors import FatalSampleError
from bridge_data.task import DefaultTaskEncoder
from tests.datamodule.parts import draw, make_module, take, write_numbers
from tests.prepared import write_blend


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("numbers"))


def make_loader(path: Path, **options: Any) -> EnergonDataloader:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_lanes=2)
    chosen = {"worker_config": config, "batch_size": 4, "shuffle_buffer_size": 8, "max_samples_per_sequence": 4}
    return EnergonDataloader(get_savable_loader(get_train_dataset(path, **{**chosen, **options})))


def test_it_never_ends_and_iterating_it_goes_on(path: Path) -> None:
    expected = draw(make_loader(path), 60)
    loader = make_loader(path)
    assert take(loader, 30) + take(loader, 30) == expected
    assert sorted(n for batch in draw(make_loader(path, repeat=False), 24) for n in batch) == list(range(96))


def test_finite_data_begins_again(path: Path) -> None:
    loader = make_loader(path, repeat=False)
    first = draw(loader, 24)
    assert draw(loader, 24) == first


def test_it_has_a_length_where_iterations_end(path: Path) -> None:
    assert len(make_loader(path, virtual_epoch_length=7)) == 7
    with pytest.raises(TypeError, match="this loader is endless"):
        len(make_loader(path))


def test_a_restored_state_goes_on_after_the_last_batch(path: Path) -> None:
    expected = draw(make_loader(path), 30)
    loader = make_loader(path)
    for step in range(12):
        state = json.loads(json.dumps(loader.save_state()))
        resumed = make_loader(path)
        resumed.restore_state(state)
        assert draw(resumed, 4) == expected[step : step + 4]
        assert resumed.first_micro_batch == step
        draw(loader, 1)


def test_a_restore_in_the_middle_goes_back(path: Path) -> None:
    loader = make_loader(path)
    state = loader.save_state()
    expected = draw(loader, 10)
    loader.restore_state(state)
    assert draw(loader, 10) == expected


def test_a_state_of_something_else_is_refused(path: Path) -> None:
    with pytest.raises(StateError, match="not a loader state of bridge_data"):
        make_loader(path).restore_state({"next_slot": 3})


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
        resumed.restore_state(consumer.loader.save_state())
        assert draw(resumed, 3) == expected[step : step + 3]
        if step == 3:
            consumer.begin(ahead)  # as at the end of an epoch
        assert consumer.next() == expected[step]
    other = Consumer(consumer.loader, ahead)
    assert [other.next() for _ in range(5)] == expected[8:13]


class SkipAll(DefaultTaskEncoder[Any, Any, Any, Any]):
    def encode_sample(self, sample: TextSample) -> TextSample:
        raise SkipSample


def test_data_of_which_nothing_is_left_is_an_error_and_no_endless_loop(path: Path) -> None:
    with pytest.raises(FatalSampleError, match="were all left out"):
        next(make_loader(path, task_encoder=SkipAll()))


def test_what_is_left_out_is_counted(path: Path) -> None:
    class SkipSome(DefaultTaskEncoder[Any, Any, Any, Any]):
        def encode_sample(self, sample: TextSample) -> TextSample:
            if sample.__restore_key__[2] % 2:
                raise SkipSample
            return sample

    loader = make_loader(path, task_encoder=SkipSome())
    draw(loader, 3)
    assert loader.skipped["encode_sample"] > 0


def test_a_rank_without_any_batch_is_an_error_and_no_endless_loop(path: Path) -> None:
    with pytest.raises(DatasetError, match="yielded nothing"):
        next(make_loader(path, repeat=False, batch_size=200, batch_drop_last=True))


def test_finite_data_that_is_saved_at_its_end_begins_anew_when_restored(path: Path) -> None:
    loader = make_loader(path, repeat=False)
    epoch = draw(loader, 24)
    again = make_loader(path, repeat=False)
    again.restore_state(loader.save_state())
    assert take(again.dataloader, 24) == epoch
    assert draw(again, 24) == epoch


def test_it_goes_round_and_round() -> None:
    assert list(itertools.islice(cyclic_iter([1, 2, 3]), 7)) == [1, 2, 3, 1, 2, 3, 1]


def test_one_empty_pass_is_forgiven_as_after_a_restore_at_the_end() -> None:
    passes = iter([[], [1, 2], [3]])

    class Restored:
        def __iter__(self) -> Iterator[int]:
            return iter(next(passes))

    assert list(itertools.islice(cyclic_iter(Restored()), 3)) == [1, 2, 3]


def test_nothing_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(DatasetError, match="passes 1 and 2 through the list yielded nothing"):
        next(cyclic_iter([]))


def test_what_can_be_iterated_only_once_is_an_error_when_it_is_over() -> None:
    items = cyclic_iter(iter([1]))
    assert next(items) == 1
    with pytest.raises(DatasetError, match="can be iterated more than once"):
        next(items)


class Faltering:
    """Fails once between its two items."""

    def __init__(self) -> None:
        self.items: list[int | Exception] = [1, ValueError("once"), 2]

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if not self.items:
            raise StopIteration
        item = self.items.pop(0)
        if isinstance(item, Exception):
            raise item
        return item


def test_an_exception_does_not_end_it() -> None:
    items = cyclic_iter(Faltering())
    assert next(items) == 1
    with pytest.raises(ValueError, match="once"):
        next(items)
    assert next(items) == 2


def test_a_state_of_another_micro_batch_size_is_refused_as_steps_would_be_miscounted(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "numbers")
    state = make_module(path).train_dataloader().save_state()
    with pytest.raises(StateError, match="micro-batches of 1, this run of 2"):
        make_module(path, micro_batch_size=2).train_dataloader().restore_state(state, strict=False)


def test_restoring_another_blend_is_as_strict_as_the_module_says(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "numbers")
    blend = write_blend(tmp_path / "blend.yaml", {str(path): 1, str(write_numbers(tmp_path / "more")): 1})
    trained = make_module(path).train_dataloader()
    next(trained)
    state = trained.save_state()
    with pytest.raises(StateError, match="strict_restore=False"):
        make_module(blend).train_dataloader().restore_state(state)
    loose = make_module(blend, strict_restore=False).train_dataloader()
    with pytest.raises(StateError, match="other data"):
        loose.restore_state(state, strict=True)
    loose.restore_state(state)
    assert loose.save_state()["next_slot"] == 1


EXPECTED = [list(range(start, start + 5)) for start in range(96, 116, 5)] + [[116, 117, 118, 119]]


def validation_loader(
    path: Path, *, cyclic: bool, eval_batches: int | None = None, world_size: int = 1, batch_size: int = 5
):
    config = WorkerConfig(rank=world_size - 1, world_size=world_size, num_workers=0)
    dataset = get_val_dataset(path, worker_config=config, batch_size=batch_size)
    return ValidationDataloader(get_savable_loader(dataset), cyclic=cyclic, eval_batches=eval_batches)


def test_every_pass_has_every_sample_once_and_in_order(path: Path) -> None:
    loader = validation_loader(path, cyclic=False)
    for _ in range(3):
        assert take(loader, 99) == EXPECTED


def test_a_pass_begins_at_the_first_sample_wherever_the_last_one_stopped(path: Path) -> None:
    loader = validation_loader(path, cyclic=False)
    assert take(loader, 2) == EXPECTED[:2]
    assert take(loader, 99) == EXPECTED


def test_a_cyclic_one_goes_round_until_it_is_restarted(path: Path) -> None:
    loader = validation_loader(path, cyclic=True)
    assert draw(loader, 7) == EXPECTED + EXPECTED[:2]
    loader.restart()
    assert draw(loader, 6) == EXPECTED + EXPECTED[:1]


@pytest.mark.parametrize("eval_batches", [1, 3, 5, 7])
def test_a_cyclic_one_restarts_by_itself_after_so_many_draws(path: Path, eval_batches: int) -> None:
    loader = validation_loader(path, cyclic=True, eval_batches=eval_batches)
    once = (EXPECTED * 2)[:eval_batches]
    assert draw(loader, 3 * eval_batches) == 3 * once
    draw(loader, 1)
    loader.restart()
    assert draw(loader, eval_batches + 1) == once + EXPECTED[:1]


def test_a_rank_without_any_batch_gets_none_or_an_error_but_never_an_endless_loop(path: Path) -> None:
    assert list(validation_loader(path, cyclic=False, world_size=2, batch_size=100)) == []
    with pytest.raises(DatasetError, match="no batch for data-parallel rank 1 of 2"):
        next(validation_loader(path, cyclic=True, world_size=2, batch_size=100))


def test_it_begins_anew_when_there_was_training_in_between(path: Path) -> None:
    num_trained = 0
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    dataset = get_val_dataset(path, worker_config=config, batch_size=5)
    loader = ValidationDataloader(get_savable_loader(dataset), cyclic=True, num_trained=lambda: num_trained)
    assert draw(loader, 2) == EXPECTED[:2]
    num_trained = 3
    assert draw(loader, 3) == EXPECTED[:3]
    assert draw(loader, 2) == EXPECTED[3:]
    loader.cyclic = False
    num_trained = 4
    loader.restart()
    assert draw(loader, 2) == EXPECTED[:2]


def test_a_loader_restored_from_the_end_of_a_validation_gives_the_next_one_whole(path: Path) -> None:
    before = validation_loader(path, cyclic=False)
    assert take(before, 99) == EXPECTED
    for cyclic in (False, True):
        after = validation_loader(path, cyclic=cyclic)
        after.dataloader.restore_state_rank(before.dataloader.save_state_rank())
        assert take(after, len(EXPECTED)) == EXPECTED


@pytest.mark.parametrize("limit", [2, 4])
def test_a_limit_of_the_whole_job_is_kept_on_other_ranks(path: Path, limit: int) -> None:
    def ranks(world_size: int) -> list[SavableDataLoader]:
        configs = [WorkerConfig(rank, world_size, 0, num_lanes=world_size) for rank in range(world_size)]
        datasets = [get_val_dataset(path, worker_config=config, batch_size=5, limit=limit) for config in configs]
        return [get_savable_loader(dataset) for dataset in datasets]

    first = ranks(1)[0]
    found = take(first, 1)
    rest = ranks(3)
    for loader in rest:
        loader.restore_state_rank(first.save_state_rank())
    found += [batch for rank in (1, 2, 0) for batch in take(rest[rank], 99)]  # micro-batch 1 is of rank 1
    assert found == EXPECTED[:limit]
