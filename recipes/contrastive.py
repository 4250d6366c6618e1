"""CLIP and SigLIP. The negatives of a pair are the others of its micro-batch."""

from recipes.encoders import PairEncoderSettings
from recipes.recipe import Recipe, hub_recipe, tiny_recipe
from recipes.run_config import DataConfig

_DATA = DataConfig(path="data/captions", micro_batch_size=256, global_batch_size=2048, packing_buffer_size=None)


def clip(*, tiny: bool = False) -> Recipe:
    """CLIP, ViT-B/32: texts of 77 tokens."""
    return _recipe("clip", "openai/clip-vit-base-patch32", tiny)


def siglip(*, tiny: bool = False) -> Recipe:
    """SigLIP, B/16: texts of 64 tokens."""
    return _recipe("siglip", "google/siglip-base-patch16-224", tiny)


def _recipe(family: str, hub_id: str, tiny: bool) -> Recipe:
    encoder = PairEncoderSettings()
    recipe = hub_recipe(family, hub_id, encoder, _DATA, auto_class="AutoModel", learning_rate=1e-5)
    return tiny_recipe(recipe, encoder) if tiny else recipe
