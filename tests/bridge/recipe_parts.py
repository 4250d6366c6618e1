"""The recipes of `recipes.bridge` that `recipe_job.py` runs, one of each family, and the data of each."""

import dataclasses

GLOBAL_BATCH, NUM_STEPS, SAVED_AFTER = 4, 4, 2
KILLED_IN = 3
"""The number of the step within which the run is killed, counted from 0: one step after the save is lost."""

_QWEN = """
    class_path: bridge_data.encoders.QwenVLTaskEncoder
    init_args: {{family: {{class_path: bridge_data.encoders.{}}}}}"""

_ANY = """
    class_path: bridge_data.encoders.HFTaskEncoder
    init_args: {{processor: parts, config: {}}}"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried:
    """A recipe in small."""

    family: str
    """Of its tiny model."""
    checkpoint: str
    """Whose config Bridge's recipe reads."""
    encoder: str
    """In the YAML."""
    buffer: str = "8"
    """The packing buffer; `null` without packing."""
    settings: str = "  image_processor: parts\n"
    """Others in the YAML."""


RECIPES = {
    "qwen25_vl_7b_sft_config": Tried(
        family="qwen2_5_vl", checkpoint="Qwen/Qwen2.5-VL-7B-Instruct", encoder=_QWEN.format("Qwen2_5VL")
    ),
    "qwen3_vl_8b_sft_config": Tried(
        family="qwen3_vl", checkpoint="Qwen/Qwen3-VL-8B-Instruct", encoder=_QWEN.format("Qwen3VL")
    ),
    "qwen35_vl_2b_sft_config": Tried(family="qwen3_5", checkpoint="Qwen/Qwen3.5-2B", encoder=_QWEN.format("Qwen3VL")),
    "gemma3_vl_4b_sft_config": Tried(
        family="gemma3",
        checkpoint="google/gemma-3-4b-it",
        encoder=_ANY.format("{pixels: bfloat16, pad_to_multiple_of: 16}"),
        buffer="null",
        settings="  micro_batch_size: 2\n",
    ),
    "gemma4_vl_26b_sft_config": Tried(
        family="gemma4",
        checkpoint="google/gemma-4-26B-A4B-it",
        encoder=_ANY.format("{pad_to_multiple_of: 16}"),
        buffer="null",
        settings="  micro_batch_size: 2\n",
    ),
    "ministral3_3b_sft_config": Tried(
        family="ministral3",
        checkpoint="mistralai/Ministral-3-3B-Instruct-2512",
        encoder=_ANY.format("{pad_to_multiple_of: 4}"),
        settings="",
    ),
}
