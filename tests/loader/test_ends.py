import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bridge_data import Batch, ConfigError, DefaultTaskEncoder, WorkerConfig, edataclass, get_loader, get_val_dataset
from tests.loader.ends_job import Encoder
from tests.prepared import write_texts


@edataclass
class Masked(Batch):
    tokens: torch.Tensor
    loss_mask: torch.Tensor


@pytest.mark.parametrize(("samples", "num_workers"), [(37, 2), (1, 0)])
def test_ranks_with_unequal_shares_end_together_and_lose_nothing(
    tmp_path: Path, samples: int, num_workers: int
) -> None:
    data = write_texts(tmp_path / "data", samples, per_shard=10)
    world_size = 3
    arguments = [str(tmp_path / "meet"), str(data), str(num_workers)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.loader.ends_job", str(rank), str(world_size), *arguments],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for rank in range(world_size)
    ]
    config = WorkerConfig(0, 1, 0, num_lanes=2 * world_size)
    dataset = get_val_dataset(data, split_part="train", worker_config=config, batch_size=2, task_encoder=Encoder())
    alone = [batch.__key__ for batch in get_loader(dataset)]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world_size
    for steps in zip(*(json.loads(output.splitlines()[-1]) for output in outputs), strict=True):
        assert len({len(of_rank) for of_rank in steps}) == 1
        keys = [key for of_rank in steps for step_keys, _, _ in of_rank for key in step_keys]
        kept = [number for number in range(samples) if number % 8 not in (1, 3, 5)]
        assert sorted(key.rpartition("/")[2] for key in keys) == [f"{number:06d}" for number in kept]
        empty = [weight for of_rank in steps for step_keys, weight, _ in of_rank if not step_keys]
        assert empty
        assert set(empty) == {0.0}
        assert all(total > 0 for of_rank in steps for _, _, total in of_rank)
        in_order = [step_keys for step in zip(*steps, strict=True) for step_keys, _, _ in step if step_keys]
        assert in_order == alone


def test_an_empty_batch_keeps_its_form_and_counts_for_nothing() -> None:
    encoder = DefaultTaskEncoder()
    batch = Masked(__key__=["a", "b"], tokens=torch.ones(2, 5), loss_mask=torch.ones(2, 5))
    empty = encoder.empty_batch(batch)
    assert empty.__key__ == []
    assert empty.loss_mask.shape == (2, 5)
    assert empty.loss_mask.sum() == 0
    assert torch.equal(empty.tokens, batch.tokens)
    assert batch.loss_mask.sum() == 10
    plain = encoder.empty_batch({"loss_mask": torch.ones(3), "__key__": ["a"], "tokens": 1})
    assert (plain["loss_mask"].sum(), plain["__key__"], plain["tokens"]) == (0, [], 1)


def test_a_batch_without_a_loss_mask_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="Override empty_batch in DefaultTaskEncoder"):
        DefaultTaskEncoder().empty_batch({"tokens": 1})


def test_ranks_that_cannot_meet_are_refused(tmp_path: Path) -> None:
    data = write_texts(tmp_path / "data", 10)
    dataset = get_val_dataset(data, split_part="train", worker_config=WorkerConfig(0, 2, 0), batch_size=2)
    with pytest.raises(ConfigError, match="init_process_group"):
        get_loader(dataset, ends="even")
    with pytest.raises(ConfigError, match="ends='odd'"):
        get_loader(dataset, ends="odd")  # type: ignore[arg-type]


def test_one_rank_ends_by_itself(tmp_path: Path) -> None:
    data = write_texts(tmp_path / "data", 10)
    dataset = get_val_dataset(data, split_part="train", worker_config=WorkerConfig(0, 1, 0), batch_size=4)
    assert [len(batch.text) for batch in get_loader(dataset, ends="even")] == [4, 4, 2]
