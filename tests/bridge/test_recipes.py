"""The recipes of `recipes.bridge` are Bridge's own with our data, and train by Bridge's `pretrain`."""

import json
from pathlib import Path

import pytest

pytest.importorskip("megatron.bridge")

from tests.ranks import run_job
from tests.tiny_models.data import write_conversations


@pytest.mark.parametrize("recipe", ["qwen25_vl_7b_sft_config"])
def test_a_recipe_trains_on_its_data_with_its_overrides(recipe: str, tmp_path: Path) -> None:
    data = str(write_conversations(tmp_path / "conversations"))
    status, output = run_job("tests.bridge.recipe_job", recipe, data, str(tmp_path), timeout_s=240)
    assert status == 0, output
    lines = [json.loads(line) for line in (tmp_path / f"{recipe}-0.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    keys = [key for line in lines for batch in line["micro_batches"] for key in batch["keys"]]
    assert len(keys) == 8 and any("," in key for key in keys), "packs of four micro-batches a step"
