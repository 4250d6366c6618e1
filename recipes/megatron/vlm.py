"""A vision-language model of megatron-core: CLIP's tower, a projector, and a GPT. Yours takes its place.

Reads packs of `FamilyTaskEncoder` with the family `Llava`, which writes one image token for each patch of an image.
Returns the loss of each token.
"""

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.enums import ModelType
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec as gpt_layer
from megatron.core.models.vision.clip_vit_model import CLIPViTModel
from megatron.core.models.vision.vit_layer_specs import get_vit_layer_with_transformer_engine_spec as vit_layer
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer import MegatronModule, TransformerConfig
from megatron.core.transformer.torch_norm import WrappedTorchNorm

from bridge_data import ConfigError, EnergonMultiModalDataModule


@dataclass(frozen=True)
class Sizes:
    """Of the model; in pairs, of the language model and of the tower. `image_token` is the id of the token that stands
    for a patch; `image` and `patch` are in pixels. The defaults are those of LLaVA 1.5, 7B."""

    vocabulary: int = 32064
    image_token: int = 32000
    layers: tuple[int, int] = (32, 23)
    hidden: tuple[int, int] = (4096, 1024)
    heads: tuple[int, int] = (32, 16)
    image: int = 336
    patch: int = 14

    def config(self, of: int, **settings: Any) -> TransformerConfig:
        """Megatron's config of the language model (0) or of the tower (1)."""
        sizes = {"num_layers": self.layers[of], "hidden_size": self.hidden[of], "num_attention_heads": self.heads[of]}
        return TransformerConfig(**sizes, hidden_dropout=0.0, attention_dropout=0.0, **settings)

    def check(self, data: EnergonMultiModalDataModule) -> None:
        """Check that the model fits the data.

        Raises:
            ConfigError: if not, with the setting that does.
        """
        encoder: Any = data.task_encoder
        num_tokens, image_text = len(encoder.tokenizer), encoder.family.image_token
        image = encoder.tokenizer.convert_tokens_to_ids(image_text)
        if data.micro_batch_size != 1:
            raise ConfigError(
                f"micro_batch_size={data.micro_batch_size}: this model takes one pack at a time: set it to 1 (how many "
                "a step has: global_batch_size)"
            )
        if num_tokens > self.vocabulary:
            raise ConfigError(
                f"--model.vocabulary {self.vocabulary}: the tokenizer has {num_tokens} tokens: give as many or more, a "
                "multiple of --tensor_parallel"
            )
        if image != self.image_token:
            raise ConfigError(f"--model.image_token {self.image_token}: {image_text} is token {image}: give that")
        num_patches, in_data = (
            (self.image // self.patch) ** 2,
            getattr(encoder.family, "num_tokens", "a varying number of"),
        )
        if num_patches != in_data:
            raise ConfigError(
                f"--model.image {self.image} --model.patch {self.patch}: an image has {num_patches} patches, and "
                f"{in_data} tokens in the data: give the pixels of the image processor's images, and the patch_size of "
                "the family"
            )


LLAVA_7B = Sizes()


class VisionLanguageModel(MegatronModule):
    """The model under data and tensor parallelism, without pipeline and context parallelism."""

    def __init__(self, sizes: Sizes, data: EnergonMultiModalDataModule, **settings: Any) -> None:
        sizes.check(data)
        super().__init__(sizes.config(0, calculate_per_token_loss=True, **settings))
        self.model_type, self.image_token = ModelType.encoder_or_decoder, sizes.image_token
        image = {"patch_dim": sizes.patch, "img_h": sizes.image, "img_w": sizes.image}
        self.tower = CLIPViTModel(sizes.config(1, **settings), vit_layer(), WrappedTorchNorm, **image)
        self.projector = torch.nn.Linear(sizes.hidden[1], sizes.hidden[0])
        self.language = GPTModel(
            self.config, gpt_layer(), sizes.vocabulary, data.seq_length, position_embedding_type="rope"
        )

    def set_input_tensor(self, tensor: Any) -> None:
        """Called by Megatron's schedules; of use to pipeline parallelism alone."""

    def forward(self, batch: Any) -> torch.Tensor:
        """The losses, float32 (1, length), of a batch of one pack."""
        embedded = self.language.embedding(input_ids=batch.tokens, position_ids=None)  # (length, 1, hidden)
        if "pixel_values" in batch.media:
            patches = self.tower(batch.media["pixel_values"].to(embedded.dtype))[:, 1:]  # without the class token
            is_patch = batch.tokens.eq(self.image_token).T[..., None]
            assert is_patch.sum() == patches[..., 0].numel(), "image_token, image or patch is not that of the data"
            embedded = embedded.masked_scatter(is_patch, self.projector(patches))
        ends, longest = batch.cu_seqlens[0], int(batch.max_seqlen[0])
        pack = PackedSeqParams("thd", ends, ends, max_seqlen_q=longest, max_seqlen_kv=longest)
        losses: torch.Tensor = self.language(
            None, None, None, decoder_input=embedded, labels=batch.labels, packed_seq_params=pack
        )
        return losses


def forward_step(batches: Any, model: Any) -> tuple[torch.Tensor, Any]:
    """Megatron's forward step: the losses of the next batch, and the function that sums them up, which also reports
    the keys of the samples."""
    batch = next(batches).to(torch.cuda.current_device(), non_blocking=True)

    def loss(losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        total, tokens = (losses.float() * batch.loss_mask).sum(), batch.loss_mask.sum()
        return total, tokens.int(), {"sums": torch.stack([total.detach(), tokens]), "keys": batch.__key__}

    return model(batch), loss
