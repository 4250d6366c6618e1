"""Train a recipe: `python -m recipes.train --recipe llava --tiny trainer=megatron`.

Settings come from the recipe that `--recipe` or the YAML names (in small with `--tiny` or `tiny: true`), then
from the YAML, then from `key=value` arguments. Run it under torchrun for more than one rank. Nothing heavy is imported
outside `main()`: checkpoint writers import this file again.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recipes.recipe import Recipe

CONFIG_FILE = "config.yaml"
"""What a run writes all its settings to, in its `log_dir`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, or with --print-config print the settings and exit."""
    from bridge_data.errors import ConfigError
    from recipes.recipe import RECIPES, load_recipe, read_config, to_yaml

    parser = argparse.ArgumentParser(prog="python -m recipes.train", description=__doc__.partition("\n")[0])
    parser.add_argument("--config", type=Path, help="YAML with settings, such as one that --print-config wrote")
    parser.add_argument("--recipe", help=f"one of {', '.join(RECIPES)}; else the YAML names it")
    parser.add_argument("--tiny", action="store_true", help="the recipe in small, with parts made on the spot")
    parser.add_argument("--print-config", action="store_true", help="print all settings as YAML, and train nothing")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="dotted settings, such as data.seq_length=512"
    )
    chosen = parser.parse_args(arguments)

    try:
        recipe = load_recipe(chosen.config, chosen.overrides, recipe=chosen.recipe, tiny=chosen.tiny)
    except ConfigError as error:
        print(f"recipes.train: {error}", file=sys.stderr)
        return 2
    settings = f"recipe: {read_config(chosen.config, chosen.recipe)[0]}\n{to_yaml(recipe)}"
    if chosen.print_config:
        print(settings, end="")
        return 0
    from torch.distributed.elastic.multiprocessing.errors import record

    try:
        _write_settings(recipe, settings)
        record(_train)(recipe)  # under torchrun, an exception is also written to the rank's error file
    except ConfigError as error:
        print(f"recipes.train: {error}", file=sys.stderr)
        return 2
    return 0


def _write_settings(recipe: "Recipe", settings: str) -> None:
    """Write the settings of a run to its `log_dir`, by the first rank."""
    from bridge_data.errors import ConfigError
    from bridge_data.storage.atomic import write_file

    if recipe.log_dir is None or os.environ.get("RANK", "0") != "0":
        return
    try:
        Path(recipe.log_dir).mkdir(parents=True, exist_ok=True)
        write_file(Path(recipe.log_dir, CONFIG_FILE), settings.encode())
    except OSError as error:
        raise ConfigError(f"log_dir={recipe.log_dir}: cannot be written: {error.strerror}") from error


def _train(recipe: "Recipe") -> None:
    """Train with the trainer that the recipe names."""
    if recipe.trainer == "megatron":
        from recipes.train_megatron import train_megatron

        train_megatron(recipe)
    else:
        from recipes.train_lightning import train_lightning

        train_lightning(recipe)


if __name__ == "__main__":
    sys.exit(main())
