import subprocess
import sys
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from recipes.demo_tokenizer import train_tokenizer
from recipes.recipe import Pretrained, Recipe, load_recipe
from recipes.tiny_parts import tiny_image_processor, tiny_tokenizer


def recipe_of(*changes: str, name: str = "llava") -> Recipe:
    return load_recipe(None, changes, recipe=name, tiny=True)


def test_a_tokenizer_comes_from_a_folder(tmp_path: Path) -> None:
    train_tokenizer(["a grey crop of the cat"], tmp_path, 300)
    built = recipe_of(f"tokenizer.pretrained={tmp_path}").build_tokenizer()
    assert built.decode(built("a grey crop").input_ids) == "a grey crop"
    assert built.name_or_path == str(tmp_path)


def test_an_image_processor_comes_from_a_folder(tmp_path: Path) -> None:
    tiny_image_processor("llava").save_pretrained(tmp_path)
    built = recipe_of(f"image_processor.pretrained={tmp_path}").build_image_processor()
    assert dict(built.crop_size) == {"height": 16, "width": 16}


def test_making_tiny_parts_prints_no_warnings() -> None:
    code = (
        "from recipes.tiny_parts import *\nfor family in ('llava', 'smolvlm', 'qwen2_vl'): tiny_image_processor(family)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_a_missing_tokenizer_says_where_one_comes_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)tokenizer.pretrained=.*make demo.*or 'tiny'"):
        recipe_of(f"tokenizer.pretrained={tmp_path / 'none'}").build_tokenizer()


def test_an_unknown_automatic_class_is_named() -> None:
    with pytest.raises(ConfigError, match="transformers has no such class"):
        Pretrained(pretrained="x").load("AutoModelForNothing", "model")


def test_the_weights_of_a_tiny_model_have_the_dtype() -> None:
    import torch

    model = recipe_of("model.dtype=bfloat16", name="text_sft").build_model(tiny_tokenizer("text"))
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
