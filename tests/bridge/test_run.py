"""Bridge's step for vision-language models trains on our batches, by Megatron's schedule, on two ranks."""

import json
from pathlib import Path

import pytest
import torch

from recipes.tiny_data import write_tiny_data

pytest.importorskip("megatron.bridge")

from tests.bridge.run_job import GLOBAL_BATCH, NUM_STEPS, make_data, make_model
from tests.datamodule.launch import on_ranks, run_job


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_tiny_data(folder)
    return folder / "conversations"


@pytest.fixture(scope="module")
def losses(data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[float, int]]:
    """The mean loss of each step, and over how many tokens."""
    folder = tmp_path_factory.mktemp("run")
    status, output = run_job(*on_ranks(2, "tests.bridge.run_job"), str(data), str(folder))
    assert status == 0, output
    return [(loss, num_tokens) for loss, num_tokens in json.loads((folder / "losses.json").read_text())]


def test_two_ranks_learn_for_twenty_steps(losses: list[tuple[float, int]]) -> None:
    assert len(losses) == NUM_STEPS
    assert losses[-1][0] < 0.6 * losses[0][0]


def test_the_first_global_batch_has_the_loss_of_transformers(data: Path, losses: list[tuple[float, int]]) -> None:
    model, loader = make_model(), make_data(str(data), None).train_dataloader()
    total = num_tokens = num_images = 0.0
    for _ in range(GLOBAL_BATCH):
        batch = next(loader)
        assert len(batch["cu_seqlens_q"]) > 2, "a pack of several conversations"
        media = batch["visual_inputs"].normalized_for_model()
        num_images += len(media.get("pixel_values", ()))
        with torch.no_grad():
            logits = model(
                input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False, **media
            ).logits
        each = torch.nn.functional.cross_entropy(logits[0], batch["labels"][0], reduction="none")
        total += float((each * batch["loss_mask"][0]).sum())
        num_tokens += int(batch["loss_mask"].sum())
    assert num_images > 0
    loss, tokens = losses[0]
    assert tokens == num_tokens
    assert loss == pytest.approx(total / num_tokens, rel=1e-5)
