"""The model needs the CPU shim, which changes torch: it is tried in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json
import torch
from recipes import cpu_shim
cpu_shim.install()
cpu_shim.install()
from recipes.trainer.config import MegatronTrainerConfig
from recipes.trainer.parallel import initialize_parallel
from recipes.demo_model import DemoModel
from recipes.recipe import ModelConfig

groups = initialize_parallel(MegatronTrainerConfig(train_steps=1))
model = DemoModel(ModelConfig(), groups, seq_length=64, image_size=32, image_token_id=1)
tokens = torch.arange(2, 66).reshape(1, 64)
tokens[:, 4:20] = 1
images = torch.rand(1, 3, 32, 32)
first, second = torch.zeros(1, 64, dtype=torch.long), torch.tensor([[0] * 32 + [1] * 32])
labels = tokens.roll(-1, 1)

found = {"weights": sum(p.numel() for p in model.parameters())}
loss = model(tokens, images, second, labels)
found["shape"] = list(loss.shape)
loss.sum().backward()
found["without gradient"] = [name for name, p in model.named_parameters() if p.grad is None]
other = tokens.clone()
other[:, 20:32] = 99
found["sees its own sequence"] = not torch.equal(model(other, images, second, labels)[:, 24:32], loss[:, 24:32])
found["is blind to the other"] = torch.equal(model(other, images, second, labels)[:, 32:], loss[:, 32:])
found["sees it if it is one"] = not torch.equal(
    model(other, images, first, labels)[:, 32:], model(tokens, images, first, labels)[:, 32:]
)
found["sees the image"] = not torch.equal(model(tokens, 1 - images, second, labels)[:, 20:32], loss[:, 20:32])
try:
    model(tokens, torch.rand(2, 3, 32, 32), second, labels)
except ValueError as error:
    found["error"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    printed = subprocess.check_output(command, cwd=ROOT, text=True, timeout=100)
    return dict(json.loads(printed.splitlines()[-1]))


def test_it_has_about_a_hundred_thousand_weights_and_all_of_them_learn(found: dict[str, Any]) -> None:
    assert 80_000 < found["weights"] < 130_000
    assert found["without gradient"] == []


def test_it_makes_a_loss_for_each_token(found: dict[str, Any]) -> None:
    assert found["shape"] == [1, 64]


@pytest.mark.parametrize(
    "what", ["sees its own sequence", "is blind to the other", "sees it if it is one", "sees the image"]
)
def test_attention_stays_within_a_sequence_of_the_pack(found: dict[str, Any], what: str) -> None:
    assert found[what] is True


def test_images_without_their_tokens_are_an_error(found: dict[str, Any]) -> None:
    assert found["error"].startswith("16 image tokens for 2 images of 16 patches each")
