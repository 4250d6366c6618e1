"""Bridge's step for vision-language models trains on our batches, by Megatron's schedule, on two ranks; killed and
resumed by Bridge's loading on other numbers of ranks, it gets the same global batches."""

import itertools
import json
import signal
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from click.testing import CliRunner

from bridge_data.tools.cli import main as bridge_data_command
from recipes.tiny_data import write_tiny_data

pytest.importorskip("megatron.bridge")

from tests.bridge.run_parts import GLOBAL_BATCH, KILLED_IN, NUM_RANKS, NUM_STEPS, SAVED_AFTER, make_data, make_model
from tests.datamodule.launch import run_job


class Step(NamedTuple):
    loss: float
    """The mean loss of its tokens."""
    num_tokens: int
    keys: list[list[str]]
    """Of the samples of each micro-batch, in the order of the global batch."""


Steps = dict[int, Step]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_tiny_data(folder)
    return folder / "conversations"


@pytest.fixture(scope="module")
def runs(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Steps]:
    """The steps of each run, by the name that `run_job` gives it."""
    folder = tmp_path_factory.mktemp("runs")
    module, arguments = "tests.bridge.run_job", (str(data), str(folder))
    status, output = run_job("-m", module, *arguments, "uninterrupted", "killed")
    assert status == -signal.SIGKILL, output
    saved, written = (folder / name / f"iter_{SAVED_AFTER:07d}" for name in ("checkpoints/energon", "wider"))
    redist = ["checkpoint", "redist", str(saved), str(written), "--world-size", str(NUM_RANKS["more"])]
    result = CliRunner().invoke(bridge_data_command, redist)
    assert result.exit_code == 0, result.output
    status, output = run_job("-m", module, *arguments, "fewer", "more")
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
        (step,), (loss,), (num_tokens,) = ({rank[name] for rank in ranks} for name in ("step", "loss", "num_tokens"))
        keys = {int(number): each for rank in ranks for number, each in rank["keys"].items()}
        assert sorted(keys) == list(range(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH))
        steps[step] = Step(loss, num_tokens, [keys[number] for number in sorted(keys)])
    return steps


def test_two_ranks_learn_for_twenty_steps(runs: dict[str, Steps]) -> None:
    steps = runs["uninterrupted"]
    assert sorted(steps) == list(range(NUM_STEPS))
    assert steps[NUM_STEPS - 1].loss < 0.6 * steps[0].loss


def test_the_first_global_batch_has_the_loss_of_transformers(data: Path, runs: dict[str, Steps]) -> None:
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
    first = runs["uninterrupted"][0]
    assert first.num_tokens == num_tokens
    assert first.loss == pytest.approx(total / num_tokens, rel=1e-5)


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
