"""Megatron-Bridge's `pretrain` trains its own tiny Qwen2.5-VL on our batches on two ranks. Saved by Bridge, killed, and
loaded by Bridge, it gets the same global batches on other numbers of ranks."""

import itertools
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from click.testing import CliRunner

from bridge_data import EnergonDatasetBuilder
from bridge_data.cli import main as bridge_data_command
from bridge_data.datamodule.bridge import DatasetBuildContext
from tests.tiny_models.data import write_conversations
from tests.tiny_models.parts import tiny_tokenizer

pytest.importorskip("megatron.bridge")

from tests.bridge.qwen_model import make_original
from tests.bridge.run_parts import FAMILY, GLOBAL_BATCH, KILLED_IN, NUM_RANKS, NUM_STEPS, SAVED_AFTER, make_dataset
from tests.ranks import run_job


class Step(NamedTuple):
    loss: float
    """The mean loss of its tokens."""
    num_tokens: int
    keys: list[list[str]]
    """Of the samples of each micro-batch, in the order of the global batch."""


Steps = dict[int, Step]
"""By the number of steps that were done before."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_conversations(tmp_path_factory.mktemp("data") / "conversations")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def runs(data: Path, folder: Path) -> dict[str, Steps]:
    """The steps of each run, by the name that `run_job` gives it."""
    module, arguments = "tests.bridge.run_job", (str(data), str(folder))
    status, output = run_job(module, *arguments, "uninterrupted", "killed", timeout_s=240)
    assert status == -signal.SIGKILL, output
    saved, written = (folder / name / f"iter_{SAVED_AFTER:07d}" for name in ("checkpoints/energon", "wider"))
    redist = ["checkpoint", "redist", str(saved), str(written), "--world-size", str(NUM_RANKS["more"])]
    result = CliRunner().invoke(bridge_data_command, redist)
    assert result.exit_code == 0, result.output
    status, output = run_job(module, *arguments, "fewer", "more", timeout_s=240)
    assert status == 0, output
    return {
        name: steps_of([folder / f"{name}-{rank}.jsonl" for rank in range(number)])
        for name, number in NUM_RANKS.items()
    }


def steps_of(files: list[Path]) -> Steps:
    """The steps that the ranks of a run have written to their files."""
    steps: Steps = {}
    for lines in zip(*(path.read_text().splitlines() for path in files), strict=True):
        ranks = [json.loads(line) for line in lines]
        (number,), (loss,) = ({rank[name] for rank in ranks} for name in ("step", "loss"))
        micro_batches = [one for row in zip(*(rank["micro_batches"] for rank in ranks), strict=True) for one in row]
        assert len(micro_batches) == GLOBAL_BATCH
        num_tokens = sum(one["num_tokens"] for one in micro_batches)
        assert loss == pytest.approx(sum(one["loss_sum"] for one in micro_batches) / num_tokens, rel=1e-5)
        steps[number] = Step(loss, num_tokens, [one["keys"] for one in micro_batches])
    return steps


def test_two_ranks_learn_for_twenty_steps(runs: dict[str, Steps]) -> None:
    steps = runs["uninterrupted"]
    assert sorted(steps) == list(range(NUM_STEPS))
    assert steps[NUM_STEPS - 1].loss < 0.6 * steps[0].loss


def test_metrics_reported_at_the_end_of_steps_count_what_the_ranks_were_given(
    folder: Path, runs: dict[str, Steps]
) -> None:
    """From Bridge's callbacks; the reporter is given the settings, as Bridge builds the loader."""
    lines = [json.loads(line) for line in (folder / "uninterrupted-metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 10, 15, 20]
    for line in lines:
        keys = [keys for step in range(line["step"]) for keys in runs["uninterrupted"][step].keys]
        num_samples = sum(len(pack.split(",")) for packs in keys for pack in packs)
        assert (line["batches"], line["samples"]) == (len(keys), num_samples)
        assert line["tokens"] > 0


def test_the_first_global_batch_has_the_loss_of_transformers(data: Path, runs: dict[str, Steps]) -> None:
    """Which gets the samples of a pack one by one."""
    model = make_original()
    loader, _, _ = EnergonDatasetBuilder(make_dataset(str(data))).build(
        DatasetBuildContext(train_samples=1, valid_samples=0, tokenizer=tiny_tokenizer(FAMILY))
    )
    total = num_tokens = num_images = 0.0
    for _ in range(GLOBAL_BATCH):
        batch = next(loader)
        assert len(batch["cu_seqlens_q"]) > 2, "a pack of several conversations"
        for inputs, labels, loss_mask in unpacked(batch, model.config.image_token_id):
            num_images += len(inputs.get("image_grid_thw", ()))
            with torch.no_grad():
                logits = model(**inputs, use_cache=False).logits[0]
            each = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
            total += float((each * loss_mask).sum())
            num_tokens += int(loss_mask.sum())
    assert num_images > 0
    first = runs["uninterrupted"][0]
    assert first.num_tokens == num_tokens
    assert first.loss == pytest.approx(total / num_tokens, rel=1e-5)


def unpacked(batch: dict[str, Any], image_id: int) -> Iterator[tuple[dict[str, Any], torch.Tensor, torch.Tensor]]:
    """The inputs of transformers' model, the labels and the loss mask of each sample of a pack."""
    media = batch["visual_inputs"].as_model_kwargs()
    grids = iter(media.get("image_grid_thw", torch.zeros(0, 3, dtype=torch.int64)))
    first_patch = 0
    for start, end in itertools.pairwise(batch["cu_seqlens_q"].tolist()):
        ids = batch["input_ids"][:, start:end]
        is_image = ids == image_id
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": is_image.int()}
        num_patches, own = 4 * int(is_image.sum()), []
        while sum(int(grid.prod()) for grid in own) < num_patches:
            own.append(next(grids))
        if own:
            inputs["pixel_values"] = media["pixel_values"][first_patch : first_patch + num_patches]
            inputs["image_grid_thw"] = torch.stack(own)
            first_patch += num_patches
        yield inputs, batch["labels"][0, start:end], batch["loss_mask"][0, start:end]
    assert next(grids, None) is None


def test_no_global_batch_is_like_another(runs: dict[str, Steps]) -> None:
    """Otherwise the tests below could not tell where a run went on."""
    steps = runs["uninterrupted"].values()
    assert all(first.keys != second.keys for first, second in itertools.combinations(steps, 2))
    assert all(keys for step in steps for keys in step.keys)


def test_saving_changes_nothing_of_the_run_that_is_then_killed(runs: dict[str, Steps]) -> None:
    assert runs["killed"] == {step: runs["uninterrupted"][step] for step in range(KILLED_IN)}


@pytest.mark.parametrize("run", ["fewer", "more"])
def test_a_killed_run_goes_on_with_the_same_global_batches_on_other_ranks(runs: dict[str, Steps], run: str) -> None:
    resumed, uninterrupted = runs[run], runs["uninterrupted"]
    assert sorted(resumed) == list(range(SAVED_AFTER, NUM_STEPS))
    for number, step in resumed.items():
        assert step.keys == uninterrupted[number].keys, f"step {number}"
        assert step.num_tokens == uninterrupted[number].num_tokens
        assert step.loss == pytest.approx(uninterrupted[number].loss, rel=1e-5)
