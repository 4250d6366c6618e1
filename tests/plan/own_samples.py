"""Sample classes such as a user has in a module of his own."""

import torch

from bridge_data.samples import Sample, edataclass


@edataclass
class Pair(Sample):
    left: torch.Tensor
    right: torch.Tensor | None = None


NOT_A_CLASS = 5
