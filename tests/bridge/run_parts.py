"""The data and the tokenizer of the runs of `run_job.py`, and what the runs share."""

import dataclasses
from typing import Any

from bridge_data import Cooker, EnergonDatasetConfig
from bridge_data.encoders import FamilyConfig, Qwen2_5VL, QwenVLTaskEncoder, cook_conversation
from tests.tiny_models.parts import tiny_image_processor

NUM_RANKS = {"uninterrupted": 2, "killed": 2, "fewer": 1, "more": 4}
"""The data-parallel ranks of each run."""

NUM_STEPS, GLOBAL_BATCH, SEQ_LENGTH = 20, 4, 512
SAVED_AFTER = 10
"""The steps that were done when the run that is killed was saved."""

KILLED_IN = 12
"""The number of the step within which it is killed, counted from 0: two steps after the save are lost."""

FAMILY = "qwen2_5_vl"


@dataclasses.dataclass
class TinyQwenEncoderConfig:
    """A `TaskEncoderConfig`: conversations in the layout that Bridge's step takes."""

    def build(self, dataset: EnergonDatasetConfig, tokenizer: Any) -> QwenVLTaskEncoder:
        family = Qwen2_5VL(tiny_image_processor(FAMILY))
        encoder = QwenVLTaskEncoder(tokenizer, family, FamilyConfig(layout="bridge"), seq_length=dataset.seq_length)
        encoder.cookers = [Cooker(cook_conversation)]
        return encoder


def make_dataset(data: str) -> EnergonDatasetConfig:
    """Packs of conversations with and without images."""
    return EnergonDatasetConfig(
        path=data,
        seq_length=SEQ_LENGTH,
        micro_batch_size=1,
        global_batch_size=GLOBAL_BATCH,
        task_encoder=TinyQwenEncoderConfig(),
        packing_buffer_size=8,
        num_workers=0,
        num_val_workers=0,
        pin_memory=False,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        do_validation=False,
        dataset_kwargs={"num_lanes": 4},
    )
