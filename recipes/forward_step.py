"""One micro-batch through a `MegatronModel`: Megatron's forward step, whose outputs hold the keys of its batch."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from bridge_data.errors import ConfigError
from recipes.packed_attention import sequence_numbers
from recipes.run_log import sample_keys

SEQUENCE_FIELDS = ("tokens", "labels", "loss_mask", "position_ids", "cu_seqlens")
POSITION_MEDIA = ("second_per_grid_ts",)
"""Media that only the positions are worked out of."""


def forward_step(iterator: Iterator[Any], model: torch.nn.Module) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Run the next micro-batch; every stage draws it, so that the data state of all ranks agrees.

    Raises:
        ConfigError: if the batches are no sequences, or cannot be cut for context parallelism.
    """
    batch = next(iterator)
    missing = [name for name in SEQUENCE_FIELDS if not hasattr(batch, name)]
    if missing:
        raise ConfigError(
            f"task_encoder: it makes batches of {type(batch).__name__} without {', '.join(missing)}; trainer=megatron "
            "takes those of bridge_data.encoders (SequenceBatch)"
        )
    batch = batch.to(next(model.parameters()).device, non_blocking=True)
    length, whole = batch.tokens.shape[1], _unwrapped(model)
    num_parts = 2 * whole.cp.size() if whole.cp.size() > 1 else 1
    if length % num_parts:
        raise ConfigError(
            f"a sequence of {length} tokens cannot be cut for parallel.context_parallel_size={whole.cp.size()}; set "
            f"encoder.conversation.pad_to_multiple_of={num_parts} (data.seq_length must be a multiple of it too)"
        )
    sequences = sequence_numbers(batch.cu_seqlens, length)
    output = model(batch.tokens, media_of(batch), sequences, batch.labels, batch.position_ids)

    def loss(losses: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        mask = batch.loss_mask[:, whole.local_positions(length).to(losses.device)]
        loss_sum, num_tokens = (losses.float() * mask).sum(), mask.sum().int()
        outputs = {"loss_sum": loss_sum.detach(), "num_tokens": num_tokens, "keys": sample_keys(batch)}
        return loss_sum, num_tokens.clone(), outputs

    return output, loss


def media_of(batch: Any) -> Mapping[str, Tensor]:
    """What the tower takes: the media of a `FamilyBatch`, or the images of an `ImageTextBatch`."""
    if hasattr(batch, "media"):
        return {name: value for name, value in batch.media.items() if name not in POSITION_MEDIA}
    images = getattr(batch, "images", None)
    return {} if images is None or not len(images) else {"pixel_values": images}


def _unwrapped(model: Any) -> Any:
    """The model inside Megatron's wrappers."""
    while hasattr(model, "module"):
        model = model.module
    return model
