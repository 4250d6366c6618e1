"""A recipe of a family: a model of transformers under `lightning.Trainer`."""

from typing import Any

import torch

from recipes.family_recipe import FamilyRecipe
from recipes.train_lightning import LoggedLightningModule, fit


class FamilyLightningModule(LoggedLightningModule):
    """A model of transformers, which makes its own loss of what a batch gives as `model_inputs()`."""

    recipe: FamilyRecipe

    def configure_model(self) -> None:
        """Build the model."""
        if self.model is None:
            self.model = self.recipe.build_model(self.tokenizer).train()

    def losses(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The mean that the model gives, times the number of targets: labels, or pairs where there are none."""
        inputs = batch.model_inputs()
        loss = self.model(**inputs).loss
        if "labels" not in inputs:
            num_targets = torch.tensor(len(batch.__key__), device=loss.device)
        elif "input_features" in inputs:  # the model shifts by putting a start token before
            num_targets = (inputs["labels"] >= 0).sum()
        else:
            num_targets = (inputs["labels"][:, 1:] >= 0).sum()
        return loss * num_targets, num_targets


def train_family(recipe: FamilyRecipe) -> None:
    """Train the recipe to its end, from the newest checkpoint where there is one.

    Raises:
        ConfigError: if its parts or its data are not as it says.
    """
    tokenizer = recipe.build_tokenizer()
    fit(FamilyLightningModule(recipe, tokenizer), recipe.build_data(tokenizer))
