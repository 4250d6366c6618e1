import subprocess
import sys
from pathlib import Path

import pytest

from bridge_data.errors import ConfigError
from recipes.demo_tokenizer import train_tokenizer
from recipes.run_config import DataConfig, ImageProcessorConfig, ModelConfig, TokenizerConfig
from recipes.tiny_parts import tiny_image_processor, tiny_tokenizer


def test_a_tokenizer_comes_from_a_folder(tmp_path: Path) -> None:
    train_tokenizer(["a grey crop of the cat"], tmp_path, 300)
    built = TokenizerConfig(pretrained=str(tmp_path)).build("llava")
    assert built.decode(built("a grey crop").input_ids) == "a grey crop"
    assert built.name_or_path == str(tmp_path)


def test_an_image_processor_comes_from_a_folder(tmp_path: Path) -> None:
    tiny_image_processor("llava").save_pretrained(tmp_path)
    built = ImageProcessorConfig(pretrained=str(tmp_path)).build("llava")
    assert dict(built.crop_size) == {"height": 16, "width": 16}


def test_making_tiny_parts_prints_no_warnings() -> None:
    code = (
        "from recipes.tiny_parts import *\nfor family in ('llava', 'smolvlm', 'qwen2_vl'): tiny_image_processor(family)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_a_missing_tokenizer_says_where_one_comes_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)tokenizer.pretrained=.*make demo.*or 'tiny'"):
        TokenizerConfig(pretrained=str(tmp_path / "none")).build("llava")


def test_an_unknown_automatic_class_is_named() -> None:
    with pytest.raises(ConfigError, match="transformers has no such class"):
        ModelConfig(pretrained="x", auto_class="AutoModelForNothing").build("text", tiny_tokenizer("text"))


def test_the_weights_of_a_tiny_model_have_the_dtype() -> None:
    import torch

    model = ModelConfig(pretrained="tiny").build("text", tiny_tokenizer("text"))
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_batch_sizes_grow_as_the_data_say() -> None:
    schedule = DataConfig(path="x", global_batch_size=8, rampup_batch_size=[2, 2, 12]).batch_schedule
    assert (schedule.size_after(0), schedule.size_after(100)) == (2, 8)
