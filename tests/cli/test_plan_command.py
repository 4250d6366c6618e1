"""`bridge-data plan`: of data with options, and of a recipe whose length is given in tokens or epochs."""

import json
from pathlib import Path
from typing import Any

import pytest

from bridge_data import WorkerConfig
from bridge_data.datamodule.batch_schedule import BatchSchedule
from recipes.recipe import load_recipe
from tests.cli.runner import run_command
from tests.prepared import write_blend, write_texts
from tests.tools.plan_parts import measure, run

WORDS = ("--task-encoder", "tests.tools.plan_parts:words")


def write_data(folder: Path) -> Path:
    """A blend of 170 and 90 texts, measured."""
    write_texts(folder / "a", 170)
    write_texts(folder / "b", 90)
    blend = write_blend(folder / "blend.yaml", {"a": 3, "b": 1})
    measure(blend)
    return blend


def test_a_plan_of_data_is_a_table_or_json(tmp_path: Path) -> None:
    blend = write_data(tmp_path)
    options = (blend, *WORDS, "--packing", "planned", "--world-size", 2, "--batch-size", 2, "--seed", 0, "--steps", 40)
    shown = run_command("plan", *options, "--exact-steps", 30)
    assert shown.exit_code == 0, shown.output
    for told in ("first 30 steps", "the run, about", "tokens", "words", "too long", "b/train", "full", "of 2 ranks"):
        assert told in shown.output
    found = json.loads(run_command("plan", *options, "--balance", "attention", "--json").output)
    assert (found["version"], found["is_exact"], found["load"], found["is_assigned"]) == (1, True, "attention", True)
    assert found["run"]["units"] == 160
    assert found["assigned"]["mean"] < found["in_turn"]["mean"]
    assert found["run"]["epochs"] == [
        drawn / size for drawn, size in zip(found["run"]["drawn"], (170, 90), strict=True)
    ]
    page = tmp_path / "plan.html"
    assert run_command("plan", *options, "--exact-steps", 30, "--html", page).output.startswith(shown.output[:40])
    html = page.read_text()
    assert "src=" not in html and html.count("<svg") == 6 and "<td>40</td>" in html  # of epochs, and of steps
    assert "cannot be written" in run_command("plan", *options, "--html", tmp_path / "none" / "plan.html").stderr
    online = run_command("plan", blend, *WORDS, "--packing-buffer-size", 20, "--steps", 4)
    assert online.exit_code == 0 and "--packing" in online.stderr
    unmeasured = run_command("plan", blend, "--epochs", 2, "--epochs-of", "b/train")
    assert unmeasured.exit_code == 0 and "measure" in unmeasured.stderr
    refused = run_command("plan", blend, *WORDS, "--packing-buffer-size", 20, "--tokens", 400)
    assert refused.exit_code == 1 and "steps" in refused.stderr


@pytest.mark.parametrize("length", [{"max_tokens": 9000}, {"max_epochs": 2, "epochs_of": "b/train"}])
def test_a_recipe_trains_as_many_steps_as_have_its_tokens_or_epochs(tmp_path: Path, length: dict[str, Any]) -> None:
    blend = write_data(tmp_path)
    config = tmp_path / "run.yaml"
    config.write_text(
        f"recipe: text_sft\ntiny: true\ntask_encoder: tests.tools.plan_parts:words\nencoder: {{}}\n"
        f"data: {{path: {blend}, micro_batch_size: 1, global_batch_size: 4, packing: planned, balance: attention}}\n"
        f"training: {json.dumps({'train_steps': None, **length})}\n"
    )
    found = json.loads(run_command("plan", config, "--world-size", 2, "--json").output)
    recipe = load_recipe(config)
    data = recipe.build_data(None, recipe.build_tokenizer())
    steps = recipe.training_in_steps(data, 2).train_steps
    assert steps is not None and (found["run"]["steps"], found["is_exact"]) == (steps, True)
    ranks = [data.datasets_provider(WorkerConfig(rank, 2, 0), "train") for rank in range(2)]
    taken, _ = run(ranks, BatchSchedule(4, 1), steps)
    tokens = [sum(one["tokens"] for rank in step for one in rank) for step in taken]
    assert (len(taken), sum(tokens)) == (steps, found["run"]["costs"]["tokens"])
    assert found["run"]["samples"] == sum(len(rank) for step in taken for rank in step)
    before = json.loads(run_command("plan", config, "--steps", steps - 1, "--json").output)["run"]
    if "max_tokens" in length:
        assert sum(tokens[:-1]) == before["costs"]["tokens"] < 9000 <= sum(tokens)
    else:
        assert before["epochs"][1] < 2 <= found["run"]["epochs"][1]
