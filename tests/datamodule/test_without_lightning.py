"""Megatron needs no Lightning: where that is not installed, or broken, the DataModule is a plain class and works."""

import json
from pathlib import Path

import pytest

from tests.datamodule.test_jobs import check_ranks_of_megatron
from tests.ranks import run_job

pytestmark = pytest.mark.processes

MEGATRON_JOB = """
import runpy, sys
sys.modules["lightning"] = sys.modules["pytorch_lightning"] = None
runpy.run_module("tests.datamodule.megatron_job", run_name="__main__", alter_sys=True)
"""

ALONE = """
import json, sys
sys.modules["lightning"] = sys.modules["pytorch_lightning"] = None
from tests.datamodule.parts import draw, make_module, take

def module():
    return make_module(sys.argv[1], num_workers=1, num_val_workers=0, seed=3)

first, seen = module(), {}
seen["bases"] = [base.__name__ for base in type(first).__bases__]
train, val = first.build()
seen["before"] = draw(train, 3)
state = json.loads(json.dumps(first.state_dict()))
seen["next"] = draw(train, 3)
seen["evaluated"] = take(val, 4)
second = module()
second.load_state_dict(state)
seen["loaded"] = second.state_dict() == state
seen["resumed"] = draw(second.train_dataloader(), 3)
import bridge_data
try:
    bridge_data.MetricsCallback()
except Exception as error:
    seen["callback"] = f"{type(error).__name__}: {error}"
print(json.dumps(seen))
"""

BROKEN = """
import sys
sys.path.insert(0, sys.argv[1])
sys.modules["pytorch_lightning"] = None
from bridge_data.datamodule.module import EnergonMultiModalDataModule
print([base.__name__ for base in EnergonMultiModalDataModule.__bases__])
"""


def run(code: str, *arguments: object, num_ranks: int | None = None) -> str:
    """What a program prints that imports the package, and Lightning, by itself."""
    packages = "bridge_data", "lightning", "recipes", "tests"
    status, output = run_job("-c", code, *map(str, arguments), num_ranks=num_ranks, anew=packages)
    assert status == 0, output
    return output


def test_ranks_of_megatron_see_the_same_without_it(path: Path, tmp_path: Path) -> None:
    run(MEGATRON_JOB, tmp_path, path, num_ranks=2)
    check_ranks_of_megatron([json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)], path)


def test_loaders_and_their_state_need_none(path: Path) -> None:
    seen = json.loads(run(ALONE, path).splitlines()[-1])
    assert seen["bases"] == ["object"]
    assert seen["loaded"] and seen["resumed"] == seen["next"] != seen["before"]
    assert seen["evaluated"] == [[96], [97], [98], [99]]
    assert seen["callback"].startswith("ConfigError: ") and "pip install lightning" in seen["callback"]


def test_a_broken_one_is_warned_of(tmp_path: Path) -> None:
    """It would else be missed only by a `Trainer` that takes no plain class."""
    package = tmp_path / "lightning" / "pytorch"
    package.mkdir(parents=True)
    (tmp_path / "lightning" / "__init__.py").touch()
    (package / "__init__.py").write_text("import torchmetrics_that_nobody_has")
    printed = run(BROKEN, tmp_path)
    assert "torchmetrics_that_nobody_has" in printed and printed.endswith("['object']\n")
