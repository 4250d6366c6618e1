"""The recipes, and the sides that compute them: a program each, all in the environment of Megatron-Bridge."""

from dataclasses import dataclass

from benchmarks.speed.programs import BARE, ENVIRONMENTS, OURS, Library

BRIDGE, TRANSFORMERS = "Megatron-Bridge", "transformers"
Sides = dict[str, Library]

HOME = "bridge" if (ENVIRONMENTS / "bridge/.bridge").exists() else ""
SIDES: Sides = {
    OURS: Library(HOME, "recipe_ours.py"),
    BRIDGE: Library("bridge", "recipe_bridge.py", made_by="`make bench-recipes`"),
    TRANSFORMERS: Library(HOME, "recipe_transformers.py"),
    BARE: Library(HOME, "recipe_bare.py"),
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe: its name in tables, its data, and whether Bridge has an encoder for it that works without a GPU."""

    label: str
    data: str = "recipe_photos"
    has_bridge: bool = False

    @property
    def has_images(self) -> bool:
        """Whether its chats are about photos."""
        return self.data == "recipe_photos"


RECIPES = {
    "qwen": Recipe(label="Qwen2.5-VL: chats about 1 or 2 photos, 8 packed", has_bridge=True),
    "llava": Recipe(label="LLaVA-1.5: the same at 336 × 336, 8 padded"),
    "tiles": Recipe(label="LLaVA-NeXT: the same in tiles, 4 padded"),
    "sft": Recipe(label="text SFT: chats, 32 packed", data="recipe_texts", has_bridge=True),
}


def available(recipe: Recipe, workers: int) -> Sides:
    """The sides of a recipe: the bare loop is one process."""
    left_out = {*(() if recipe.has_bridge else (BRIDGE,)), *((BARE,) if workers else ())}
    return {name: side for name, side in SIDES.items() if name not in left_out}
