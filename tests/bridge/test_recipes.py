"""The recipes of `recipes.bridge` are Bridge's own with our data, and train by Bridge's `pretrain`."""

import dataclasses
import inspect
import json
import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("megatron.bridge")

from megatron.bridge import recipes
from megatron.bridge.data.utils import get_dataset_provider
from transformers import CLIPImageProcessor

from bridge_data import ConfigError, DatasetBuildContext, DefaultTaskEncoder, EnergonDatasetBuilder
from bridge_data.datamodule.batch_schedule import megatron_has_ramps
from bridge_data.encoders import MultiModalTaskEncoder
from recipes.bridge import vlm
from tests.bridge.family_models import make_config
from tests.bridge.recipe_parts import KILLED_IN, RECIPES, SAVED_AFTER
from tests.bridge.run_parts import FAMILY
from tests.ranks import run_job
from tests.tiny_models.data import write_conversations
from tests.tiny_models.parts import tiny_image_processor, tiny_tokenizer

RECIPE = "qwen25_vl_7b_sft_config"
ENCODER = """
  task_encoder:
    class_path: bridge_data.encoders.QwenVLTaskEncoder
    init_args: {family: {class_path: bridge_data.encoders.Qwen2_5VL}}"""


class Plain(DefaultTaskEncoder[Any, Any, Any, Any]):
    """An encoder of the user, whose batches have a layout of its own."""

    def __init__(self, seq_length: int) -> None:
        super().__init__()
        self.seq_length = seq_length


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a YAML of data beside the config of a tiny model, which Bridge's recipes find by the name of theirs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    make_config(FAMILY).save_pretrained("Qwen/Qwen2.5-VL-7B-Instruct")
    for part in (tiny_tokenizer(FAMILY), tiny_image_processor(FAMILY)):
        part.save_pretrained("parts")
    write_conversations(tmp_path / "chats")

    def write(settings: str = "", encoder: str = ENCODER) -> str:
        Path("my.yaml").write_text(
            f"data:\n  path: chats\n  tokenizer: parts\n  image_processor: parts\n  num_workers: 0{encoder}\n{settings}"
        )
        return "my.yaml"

    return write


def test_a_yaml_is_the_data_of_a_recipe_and_its_sizes_hold(write: Any, caplog: pytest.LogCaptureFixture) -> None:
    data = write("  seq_length: 512\n  global_batch_size: 8\n  packing_buffer_size: 8\n  num_lanes: 4\n")
    with caplog.at_level(logging.WARNING, logger="recipes.bridge.vlm"):
        config = vlm.main([RECIPE, "--data", data, "train.train_iters=7", "dataset.shuffle_buffer_size=50"])
    assert "my.yaml: seq_length=512, micro_batch_size=1, global_batch_size=8 instead of 4096, 2, 32 of" in caplog.text
    assert (config.model.seq_length, config.train.micro_batch_size, config.train.global_batch_size) == (512, 1, 8)
    dataset = config.dataset
    assert (dataset.path, dataset.seq_length, dataset.micro_batch_size) == ("chats", 512, 1)
    assert (dataset.shuffle_buffer_size, dataset.dataset_kwargs, config.train.train_iters) == (50, {"num_lanes": 4}, 7)
    assert config.tokenizer.tokenizer_model == "parts"


def test_what_is_overridden_in_a_recipe_is_in_its_batches(write: Any) -> None:
    data = write("  seq_length: 512\n  packing_buffer_size: 8\n")
    image = "+dataset.task_encoder.init_args.family.init_args.max_pixels"
    sizes = []
    for overrides in ([], ["dataset.seq_length=256", f"{image}=512"]):
        config = vlm.main([RECIPE, "--data", data, *overrides])
        config.dataset.finalize()
        train, _, _ = get_dataset_provider(config.dataset)([8, 0, 0], config.dataset, tiny_tokenizer(FAMILY))
        batches = [next(train) for _ in range(8)]
        sizes.append((max(batch["total_tokens"] for batch in batches), _most_patches(batches)))
    (length, patches), (shorter, fewer) = sizes
    assert 256 < length <= 512 and shorter <= 256 and fewer < patches


def _most_patches(batches: list[dict[str, Any]]) -> int:
    grids = [batch["visual_inputs"].image_grid_thw for batch in batches if batch["visual_inputs"] is not None]
    return max(int(grid.prod(dim=1).max()) for grid in grids if grid is not None and len(grid))


def test_sizes_that_a_yaml_leaves_out_are_bridge_s_and_its_encoder_may_have_the_length(write: Any) -> None:
    config = vlm.main([RECIPE, "--data", write()])
    assert (config.dataset.seq_length, config.model.seq_length, config.train.global_batch_size) == (4096, 4096, 32)
    encoder = "\n  task_encoder: {class_path: tests.bridge.test_recipes.Plain, init_args: {seq_length: 64}}"
    config = vlm.main([RECIPE, "--data", write(encoder=encoder), "dataset.num_val_workers=0"])
    assert (config.dataset.seq_length, config.model.seq_length, config.dataset.task_encoder.init_args) == (64, 64, {})
    with pytest.raises(ConfigError, match="seq_length is 128, and 64 in init_args"):
        vlm.main([RECIPE, "--data", write("  seq_length: 128\n", encoder)])


def test_a_yaml_without_an_encoder_has_the_default_one_in_bridge_s_layout(write: Any) -> None:
    CLIPImageProcessor(size={"height": 8, "width": 8}, crop_size={"height": 8, "width": 8}).save_pretrained("clip")
    data = write("  multimodal_sample_config: {patch_size: 2}\n", encoder="")
    token = "dataset.multimodal_sample_config.image_token.token_str='<|image_pad|>'"
    config = vlm.main([RECIPE, "--data", data, "dataset.image_processor=clip", token])
    config.dataset.finalize()
    context = DatasetBuildContext(train_samples=8, valid_samples=0, tokenizer=tiny_tokenizer(FAMILY))
    encoder: Any = EnergonDatasetBuilder(config.dataset).datamodule(context).task_encoder
    assert isinstance(encoder, MultiModalTaskEncoder)
    assert (encoder.config.layout, encoder.config.patch_size, encoder.seq_length) == ("bridge", 2, 4096)
    assert encoder.config.placeholder == "<|image_pad|>"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("  decoder_seq_length: 64\n", "data.decoder_seq_length: no effect under Megatron-Bridge"),
        (f"  validation_{ENCODER.strip()}\n", "data.validation_task_encoder: no effect under Megatron-Bridge"),
        ("  num_lane: 4\n", "no setting 'num_lane'; did you mean 'num_lanes'"),
    ],
)
def test_a_setting_that_bridge_has_no_use_for_is_refused(settings: str, message: str, write: Any) -> None:
    with pytest.raises(ConfigError, match=message):
        vlm.main([RECIPE, "--data", write(settings)])


@pytest.mark.skipif(megatron_has_ramps(), reason="this megatron-core follows ramps")
def test_a_ramp_that_megatron_ignores_is_refused(write: Any) -> None:
    with pytest.raises(ConfigError, match=r"train.rampup_batch_size=\[8, 8, 64\]: this megatron-core ignores it"):
        vlm.main([RECIPE, "--data", write(), "train.rampup_batch_size=[8,8,64]"])


def test_skipped_iterations_are_refused_with_middle_stages_which_would_not_skip_them(write: Any) -> None:
    arguments = [RECIPE, "--data", write(), "train.iterations_to_skip=[3]"]
    assert vlm.main([*arguments, "model.pipeline_model_parallel_size=2"]).train.iterations_to_skip == [3]
    with pytest.raises(ConfigError, match=r"train.iterations_to_skip=\[3\]: .* middle stages"):
        vlm.main([*arguments, "model.pipeline_model_parallel_size=4"])


def test_other_recipes_of_bridge_take_a_yaml(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    make_config("qwen3_vl").save_pretrained("Qwen/Qwen3-VL-8B-Instruct")
    other = "qwen3_vl_8b_pretrain_mock_config"
    config = vlm.main([other, "--data", write(), "dataset.seq_length=2048"])
    assert (config.model.tensor_model_parallel_size, config.model.seq_length, config.dataset.path) == (4, 2048, "chats")
    for arguments, told in (
        ([other], "--data my.yaml"),
        (["qwen25_vl_7b_sft_confg"], "did you mean 'qwen25_vl_7b_sft_config'"),
        ([RECIPE, "--dat", "my.yaml"], "unrecognized arguments: --dat"),
    ):
        with pytest.raises(SystemExit):
            vlm.main(arguments)
        assert told in capsys.readouterr().err


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_have_the_names_and_settings_of_bridge_s(name: str, write: Any) -> None:
    make_config(RECIPES[name].family).save_pretrained(RECIPES[name].checkpoint)
    (long,) = (other for other in vlm.RECIPES if other.startswith(name.removesuffix("_config")) and "gpu" in other)
    ours, theirs = getattr(vlm, long)(Path(write())), getattr(recipes, name)()
    changed = ("dataset", "tokenizer", "train")
    same = [part.name for part in dataclasses.fields(ours) if part.name not in changed]
    assert len(same) > 10 and all(repr(getattr(ours, part)) == repr(getattr(theirs, part)) for part in same)
    adapted = name.replace("_sft_", "_peft_")
    takes_scheme = "peft_scheme" in inspect.signature(getattr(recipes, adapted)).parameters
    peft = getattr(vlm, adapted)(**{"peft_scheme": "dora"} if takes_scheme else {})
    assert type(peft.peft).__name__ == ("DoRA" if takes_scheme else "LoRA")
    assert peft.dataset.path == "configs/conversations_blend.yaml"
    assert peft.dataset.task_encoder.class_path.rpartition(".")[2] in RECIPES[name].encoder


def test_packs_are_refused_for_gemma_3(write: Any) -> None:
    make_config("gemma3").save_pretrained("google/gemma-3-4b-it")
    recipe = "gemma3_vl_4b_sft_config"
    assert vlm.main([recipe]).dataset.packing_buffer_size is None
    for arguments in (
        [recipe, "dataset.packing_buffer_size=8"],
        [recipe, "--data", write("  packing_buffer_size: 8\n")],
    ):
        with pytest.raises(ConfigError, match="packing_buffer_size=8: the attention of Gemma 3 takes no packs"):
            vlm.main(arguments)


def test_stages_of_a_pipeline_know_that_packs_have_several_lengths(write: Any) -> None:
    for settings, is_variable in (("  packing_buffer_size: 8\n", True), ("", False)):
        config = vlm.main([RECIPE, "--data", write(settings), "model.pipeline_model_parallel_size=2"])
        config.model.finalize()
        assert config.model.variable_seq_lengths is is_variable
        config.dataset.finalize()
        train, _, _ = get_dataset_provider(config.dataset)([8, 0, 0], config.dataset, tiny_tokenizer(FAMILY))
        lengths = {next(train)["input_ids"].shape[1] for _ in range(4)}
        assert (lengths == {config.model.seq_length}) is not is_variable


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_on_its_data_and_resumes_with_the_same_losses(name: str, tmp_path: Path) -> None:
    data = str(write_conversations(tmp_path / "conversations"))
    status, output = run_job("tests.bridge.recipe_job", name, data, str(tmp_path), timeout_s=300)
    assert status == 0, output
    whole, killed, resumed = (
        [json.loads(line) for line in (tmp_path / f"{run}.jsonl").read_text().splitlines()]
        for run in ("uninterrupted", "killed", "resumed")
    )
    assert [step["step"] for step in whole] == [0, 1, 2, 3] and len({step["loss"] for step in whole}) == 4
    assert killed == whole[:KILLED_IN] and resumed == whole[SAVED_AFTER:]
    batches = [batch for step in whole for batch in step["micro_batches"]]
    if RECIPES[name].buffer == "null":
        assert [len(batch["keys"]) for batch in batches] == [2] * 8
    else:
        assert len(batches) == 16 and any("," in key for batch in batches for key in batch["keys"])
