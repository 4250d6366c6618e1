"""One micro-batch through the demo model: the Megatron forward step, whose outputs hold the keys of its batch."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from recipes.demo_attention import sequence_numbers


def forward_step(iterator: Iterator[Any], model: torch.nn.Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Run the next micro-batch; every stage draws it, so that the data state of all ranks agrees."""
    batch = next(iterator)
    batch = batch.to(next(model.parameters()).device, non_blocking=True)
    sequences = sequence_numbers(batch.cu_seqlens, batch.tokens.shape[1])
    output = model(batch.tokens, batch.images, sequences, batch.labels)

    def loss(losses: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        local = _demo_model(model).local_positions(batch.tokens.shape[1]).to(losses.device)
        mask = batch.loss_mask[:, local]
        loss_sum, num_tokens = (losses.float() * mask).sum(), mask.sum().int()
        outputs = {"loss_sum": loss_sum.detach(), "num_tokens": num_tokens, "keys": sample_keys(batch)}
        return loss_sum, num_tokens.clone(), outputs

    return output, loss


def sample_keys(batch: Any) -> list[str]:
    """The keys of all samples of a batch, in order; a pack names its samples with commas between them."""
    return [key for row in batch.__key__ for key in row.split(",")]


def _demo_model(model: Any) -> Any:
    """The model inside Megatron's wrappers."""
    while hasattr(model, "module"):
        model = model.module
    return model
