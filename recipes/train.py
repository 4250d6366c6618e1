"""Train a recipe: `python -m recipes.train --config configs/demo.yaml trainer=megatron data.seq_length=512`.

Settings come from the recipe function that the YAML names, then from the YAML, then from `key=value` arguments. Run it
under torchrun for more than one rank. Nothing heavy is imported outside `main()`: checkpoint writers import this file
again.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recipes.recipe import Recipe


def load_recipe(config: Path | None, arguments: Sequence[str]) -> "Recipe":
    """The recipe that `config` names (`recipe: clip_gpt` if it names none) with its changes and those of `arguments`.

    Raises:
        ConfigError: for an unknown recipe or setting, or a value that does not fit.
    """
    from bridge_data.errors import ConfigError
    from recipes.clip_gpt import clip_gpt
    from recipes.overrides import override, parse_arguments, read_yaml

    recipes = {"clip_gpt": clip_gpt}
    changes = read_yaml(config) if config is not None else {}
    name = changes.pop("recipe", "clip_gpt")
    if name not in recipes:
        raise ConfigError(f"{config}: there is no recipe {name!r}; there are: {', '.join(recipes)}")
    recipe = override(recipes[name](), changes, str(config))
    return override(recipe, parse_arguments(arguments), "command line")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, or with --print-config print the settings and exit."""
    parser = argparse.ArgumentParser(prog="python -m recipes.train", description=__doc__.partition("\n")[0])
    parser.add_argument("--config", type=Path, help="YAML with settings, such as configs/demo.yaml")
    parser.add_argument("--print-config", action="store_true", help="print all settings as YAML, and train nothing")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="dotted settings, such as data.seq_length=512"
    )
    chosen = parser.parse_args(arguments)

    from bridge_data.errors import ConfigError
    from recipes.overrides import to_yaml

    try:
        recipe = load_recipe(chosen.config, chosen.overrides)
    except ConfigError as error:
        print(f"recipes.train: {error}", file=sys.stderr)
        return 2
    if chosen.print_config:
        print(to_yaml(recipe), end="")
    elif recipe.trainer == "megatron":
        from recipes.train_megatron import train_megatron

        train_megatron(recipe)
    else:
        from recipes.train_lightning import train_lightning

        train_lightning(recipe)
    return 0


if __name__ == "__main__":
    sys.exit(main())
