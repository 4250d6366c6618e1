"""The data and the model of the runs of `run_job.py`."""

from typing import Any

from bridge_data import Cooker, EnergonMultiModalDataModule
from bridge_data.encoders import FamilyConfig, FamilyTaskEncoder, Llava, cook_conversation
from recipes.tiny_parts import PATCH, tiny_image_processor, tiny_model, tiny_tokenizer

NUM_RANKS = {"uninterrupted": 2, "killed": 2, "fewer": 1, "more": 4}
"""The data-parallel ranks of each run."""

NUM_STEPS, GLOBAL_BATCH, SEQ_LENGTH = 20, 4, 512
SAVED_AFTER = 10
"""The steps that were done when the run that is killed was saved."""

KILLED_IN = 12
"""The number of the step within which it is killed, counted from 0: two steps after the save are lost."""


def make_data(data: str, groups: Any) -> EnergonMultiModalDataModule:
    """Packs of conversations with and without images, in the layout that Bridge's step takes."""
    tokenizer, image_processor = tiny_tokenizer("llava"), tiny_image_processor("llava")
    family = Llava(image_processor, patch_size=PATCH)
    encoder = FamilyTaskEncoder(tokenizer, family, FamilyConfig(layout="bridge"), seq_length=SEQ_LENGTH)
    encoder.cookers = [Cooker(cook_conversation)]
    return EnergonMultiModalDataModule(
        data,
        tokenizer,
        image_processor,
        seq_length=SEQ_LENGTH,
        micro_batch_size=1,
        global_batch_size=GLOBAL_BATCH,
        num_workers=0,
        num_val_workers=0,
        pin_memory=False,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        task_encoder=encoder,
        packing_buffer_size=8,
        pg_collection=groups,
        num_lanes=4,
    )


def make_model() -> Any:
    """The model of transformers whose weights are trained."""
    return tiny_model("llava", tiny_tokenizer("llava"), seed=7)
