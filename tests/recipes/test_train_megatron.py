"""Recipes under Megatron, on gloo: what one rank trains is what two train, whichever way they share it; and length,
evaluation and encoders by the settings of a recipe."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from recipes.run_log import read_lines
from recipes.tiny_data import write_tiny_data
from tests.ranks import run_job

NUM_STEPS = 3


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data of tiny recipes."""
    folder = tmp_path_factory.mktemp("recipes")
    write_tiny_data(folder / "tiny_data")
    return folder


def train(data: Path, recipe: str, *settings: str, num_ranks: int | None = None, check: bool = True) -> str:
    """What a tiny recipe prints under Megatron."""
    command = ["recipes.train", "--recipe", recipe, "--tiny", "trainer=megatron", *settings]
    status, output = run_job(*command, num_ranks=num_ranks, cwd=data, timeout_s=250)
    assert not check or status == 0, output
    return output


def steps(data: Path, recipe: str, name: str, *settings: str, num_ranks: int | None = None) -> list[dict[str, Any]]:
    """The log of rank 0 of a run of `NUM_STEPS` steps, with the keys of all ranks."""
    folder = data / recipe / name
    train(data, recipe, f"log_dir={folder}", f"training.train_steps={NUM_STEPS}", *settings, num_ranks=num_ranks)
    first, *others = (read_lines(file) for file in sorted(folder.glob("steps_*.jsonl")))
    for lines in others:
        for line, other in zip(first, lines, strict=True):
            line["keys"] |= other["keys"]
    return first


SINGLE: dict[str, list[dict[str, Any]]] = {}
"""The runs on one rank, by recipe: each is made once."""

SETTINGS = {
    # every sample, and so every pack, can be cut for two context-parallel ranks
    "llava": ["encoder.conversation.pad_to_multiple_of=4"],
    "qwen2_5_vl": ["encoder.conversation.pad_to_multiple_of=4"],
    "text_sft": ["encoder.conversation.pad_to_multiple_of=4"],
    "text_pretraining": [],
}
CASES = [
    *(("llava", kind) for kind in ("data", "tensor", "context", "pipeline")),
    *(("qwen2_5_vl", kind) for kind in ("data", "tensor", "context", "pipeline")),
    *(("text_sft", "data"), ("text_sft", "context"), ("text_sft", "pipeline"), ("text_pretraining", "tensor")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "kind"), CASES)
def test_two_ranks_train_packs_as_one_does(data: Path, recipe: str, kind: str) -> None:
    settings = SETTINGS[recipe]
    if recipe not in SINGLE:
        SINGLE[recipe] = steps(data, recipe, "single", *settings)
    split = [] if kind == "data" else [f"parallel.{kind}_parallel_size=2"]
    alone, together = SINGLE[recipe], steps(data, recipe, kind, *settings, *split, num_ranks=2)
    assert len(alone) == len(together) == NUM_STEPS
    assert any(len(names) > 1 for line in alone for names in line["keys"].values()), "no pack holds several samples"
    for one, two in zip(alone, together, strict=True):
        assert (one["keys"], one["num_tokens"]) == (two["keys"], two["num_tokens"])
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["llava", "qwen2_5_vl", "text_sft"])
def test_four_ranks_of_two_kinds_train_as_one_does(data: Path, recipe: str) -> None:
    alone = steps(data, recipe, "single4", *SETTINGS[recipe])
    sizes = ["parallel.tensor_parallel_size=2", "parallel.pipeline_parallel_size=2"]
    together = steps(data, recipe, "tp2pp2", *SETTINGS[recipe], *sizes, num_ranks=4)
    assert [line["keys"] for line in together] == [line["keys"] for line in alone]
    assert [line["loss"] for line in together] == pytest.approx([line["loss"] for line in alone], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["llava_next", "idefics3", "smolvlm", "internvl", "qwen2_vl", "text_pretraining"])
def test_the_other_families_train_too(data: Path, recipe: str) -> None:
    losses = [line["loss"] for line in steps(data, recipe, "run")]
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_samples_are_counted_then_a_checkpoint_is_evaluated_without_training(data: Path) -> None:
    run = [f"training.checkpoint_dir={data / 'checkpoints'}", "training.train_steps=null", "training.train_samples=7"]
    encoder = ["task_encoder=bridge_data.encoders:MultiModalTaskEncoder"]
    arguments = {"multimodal_sample_config": {"patch_size": 4, "conversation_template_config": {"chat_template": CHAT}}}
    encoder.append(f"encoder={json.dumps(arguments)}")
    captions = "data.path=tiny_data/captions"
    printed = train(data, "llava", captions, *run, *encoder, "training.save_interval=10", "training.eval_interval=10")
    assert re.findall(r"^step (\d+): loss", printed, re.M) == ["0", "1", "2"], "two samples a step, of seven"
    evaluated = re.findall(r"^after (\d+) steps: validation loss ([\d.]+)$", printed, re.M)
    again = train(data, "llava", captions, *run, *encoder, "training.skip_train=true")
    assert "step 0" not in again and "step 3" not in again
    assert re.findall(r"^after (\d+) steps: validation loss ([\d.]+)$", again, re.M) == evaluated
    assert len(evaluated) == 1 and evaluated[0][0] == "3"


CHAT = "{% for message in messages %}{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}"
CHAT += "{% endgeneration %}{% else %}{{ message['content'] }}{% endif %}{% endfor %}"


@pytest.mark.slow
def test_what_the_ranks_cannot_share_says_what_to_set(data: Path) -> None:
    for settings, message in (
        (["parallel.tensor_parallel_size=3"], "2 ranks cannot be divided into replicas of 3"),
        (["parallel.context_parallel_size=2"], "encoder.conversation.pad_to_multiple_of=4"),
    ):
        assert message in train(data, "llava", *settings, num_ranks=2, check=False)
