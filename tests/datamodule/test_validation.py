from pathlib import Path

import pytest

from bridge_data import DatasetError, SavableDataLoader, WorkerConfig, get_savable_loader, get_val_dataset
from bridge_data.datamodule import ValidationDataloader
from tests.datamodule.parts import draw, take, write_numbers

EXPECTED = [list(range(start, start + 5)) for start in range(96, 116, 5)] + [[116, 117, 118, 119]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("numbers"))


def make_loader(path: Path, *, cyclic: bool, eval_batches: int | None = None, world_size: int = 1, batch_size: int = 5):
    config = WorkerConfig(rank=world_size - 1, world_size=world_size, num_workers=0)
    dataset = get_val_dataset(path, worker_config=config, batch_size=batch_size)
    return ValidationDataloader(get_savable_loader(dataset), cyclic=cyclic, eval_batches=eval_batches)


def test_every_pass_has_every_sample_once_and_in_order(path: Path) -> None:
    loader = make_loader(path, cyclic=False)
    for _ in range(3):
        assert take(loader, 99) == EXPECTED


def test_a_pass_begins_at_the_first_sample_wherever_the_last_one_stopped(path: Path) -> None:
    loader = make_loader(path, cyclic=False)
    assert take(loader, 2) == EXPECTED[:2]
    assert take(loader, 99) == EXPECTED


def test_a_cyclic_one_goes_round_until_it_is_restarted(path: Path) -> None:
    loader = make_loader(path, cyclic=True)
    assert draw(loader, 7) == EXPECTED + EXPECTED[:2]
    loader.restart()
    assert draw(loader, 6) == EXPECTED + EXPECTED[:1]


@pytest.mark.parametrize("eval_batches", [1, 3, 5, 7])
def test_a_cyclic_one_restarts_by_itself_after_so_many_draws(path: Path, eval_batches: int) -> None:
    loader = make_loader(path, cyclic=True, eval_batches=eval_batches)
    once = (EXPECTED * 2)[:eval_batches]
    assert draw(loader, 3 * eval_batches) == 3 * once
    draw(loader, 1)
    loader.restart()
    assert draw(loader, eval_batches + 1) == once + EXPECTED[:1]


def test_a_rank_without_any_batch_gets_none_or_an_error_but_never_an_endless_loop(path: Path) -> None:
    assert list(make_loader(path, cyclic=False, world_size=2, batch_size=100)) == []
    with pytest.raises(DatasetError, match="no batch for data-parallel rank 1 of 2"):
        next(make_loader(path, cyclic=True, world_size=2, batch_size=100))


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
    before = make_loader(path, cyclic=False)
    assert take(before, 99) == EXPECTED
    for cyclic in (False, True):
        after = make_loader(path, cyclic=cyclic)
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
