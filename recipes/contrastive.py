"""CLIP and SigLIP. The negatives of a pair are the others of its micro-batch."""

from recipes.encoders import PairEncoderSettings
from recipes.family_recipe import FamilyRecipe, family_recipe, tiny_recipe
from recipes.recipe import DataConfig

_DATA = DataConfig(path="data/captions", micro_batch_size=256, global_batch_size=2048, packing_buffer_size=None)


def clip(*, tiny: bool = False) -> FamilyRecipe:
    """CLIP, ViT-B/32: texts of 77 tokens."""
    return _recipe("clip", "openai/clip-vit-base-patch32", tiny)


def siglip(*, tiny: bool = False) -> FamilyRecipe:
    """SigLIP, B/16: texts of 64 tokens."""
    return _recipe("siglip", "google/siglip-base-patch16-224", tiny)


def _recipe(family: str, hub_id: str, tiny: bool) -> FamilyRecipe:
    encoder = PairEncoderSettings()
    recipe = family_recipe(family, hub_id, encoder, _DATA, auto_class="AutoModel", learning_rate=1e-5)
    return tiny_recipe(recipe, encoder) if tiny else recipe
