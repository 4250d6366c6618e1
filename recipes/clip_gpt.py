"""The family of the demo: a CLIP vision tower in front of a GPT, on captions and questions."""

from recipes.recipe import DataConfig, LightningTrainerConfig, Recipe, TokenizerConfig
from recipes.trainer.config import MegatronTrainerConfig


def clip_gpt() -> Recipe:
    """A hundred thousand weights on the demo's data, packed into sequences of 256 tokens."""
    return Recipe(
        tokenizer=TokenizerConfig(path="demo_run/tokenizer"),
        data=DataConfig(path="demo_run/data/blend.yaml"),
        megatron=MegatronTrainerConfig(train_steps=40, learning_rate=3e-3, warmup_steps=4),
        lightning=LightningTrainerConfig(train_steps=40, learning_rate=3e-3),
    )
