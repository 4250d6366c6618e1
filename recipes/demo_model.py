"""A small vision-language model: a CLIP vision tower, a linear projection and a megatron-core GPT; about 100k weights.

Enters: token ids with a run of placeholder tokens for each image, the images, and the number of each position's
sequence in the pack. Leaves: the loss of each token. It runs under tensor, pipeline and context parallelism, on the
CPU as well as on CUDA.
"""

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.enums import ModelType
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from transformers import CLIPVisionConfig, CLIPVisionModel

from recipes.demo_attention import PackedAttention, zigzag_positions
from recipes.recipe import ModelConfig

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection


class DemoModel(MegatronModule):
    """This rank's stage of the model; the first stage has the vision tower, the last one the loss."""

    def __init__(
        self,
        config: ModelConfig,
        groups: "ProcessGroupCollection",
        *,
        seq_length: int,
        image_size: int,
        image_token_id: int,
    ) -> None:
        super().__init__(config=_transformer_config(config, groups))
        self.image_token_id = image_token_id
        self.cp = groups.cp
        self.pre_process = groups.pp.rank() == 0
        self.post_process = groups.pp.rank() == groups.pp.size() - 1
        self.model_type = ModelType.encoder_or_decoder
        self.share_embeddings_and_output_weights = False
        layer = get_gpt_layer_local_spec()
        layer.submodules.self_attention.submodules.core_attention = PackedAttention
        self.language = GPTModel(
            config=self.config,
            transformer_layer_spec=layer,
            vocab_size=config.vocab_size,
            max_sequence_length=seq_length,
            pre_process=self.pre_process,
            post_process=self.post_process,
            position_embedding_type="rope",
            pg_collection=groups,
        )
        self.vision: CLIPVisionModel | None = None
        self.projection: torch.nn.Linear | None = None
        if self.pre_process:
            self.vision = CLIPVisionModel(
                CLIPVisionConfig(
                    hidden_size=config.vision_hidden_size,
                    intermediate_size=2 * config.vision_hidden_size,
                    num_hidden_layers=config.vision_layers,
                    num_attention_heads=2,
                    image_size=image_size,
                    patch_size=config.patch_size,
                )
            )
            _drop_unused(self.vision)
            self.projection = torch.nn.Linear(config.vision_hidden_size, config.hidden_size)

    def set_input_tensor(self, input_tensor: Any) -> None:
        """Called by Megatron's schedule: the activations of the stage before."""
        self.language.set_input_tensor(input_tensor)

    def forward(self, tokens: Tensor, images: Tensor | None, sequences: Tensor, labels: Tensor) -> Tensor:
        """Loss of each token, float32 (batch, local length) on the last stage; activations on the others.

        `tokens`, `sequences` and `labels` are int64 (batch, length); `images` float32 (images, 3, size, size), in the
        order of their placeholders, or None. Under context parallelism the losses are those of `local_positions`.
        """
        local = self.local_positions(tokens.shape[1]).to(tokens.device)
        output: Tensor = self.language(
            input_ids=None,
            position_ids=None,
            attention_mask=sequences,
            decoder_input=self._embed(tokens, images)[local] if self.pre_process else None,
            labels=labels[:, local].contiguous() if self.post_process else None,
        )
        return output

    def local_positions(self, length: int) -> Tensor:
        """The positions of a sequence that this context-parallel rank works on."""
        return zigzag_positions(length, self.cp.rank(), self.cp.size())

    def _embed(self, tokens: Tensor, images: Tensor | None) -> Tensor:
        """Embeddings of tokens and images, (length, batch, hidden)."""
        embedded: Tensor = self.language.embedding(input_ids=tokens, position_ids=None)
        if images is None or images.shape[0] == 0 or self.vision is None or self.projection is None:
            return embedded
        patches = self.vision(pixel_values=images).last_hidden_state[:, 1:]
        features = self.projection(patches).flatten(0, 1)
        placeholders = tokens == self.image_token_id
        if int(placeholders.sum()) != features.shape[0]:
            raise ValueError(
                f"{int(placeholders.sum())} image tokens for {images.shape[0]} images of {patches.shape[1]} patches "
                "each; the encoder's patch_size must be the model's"
            )
        batch_first = embedded.transpose(0, 1).masked_scatter(placeholders[..., None], features.to(embedded.dtype))
        return batch_first.transpose(0, 1).contiguous()


def _drop_unused(vision: CLIPVisionModel) -> None:
    """Only patches are used, never the pooled class token: its norm would be a weight without a gradient."""
    for module in vision.modules():
        if hasattr(module, "post_layernorm"):
            module.post_layernorm = torch.nn.Identity()


def _transformer_config(config: ModelConfig, groups: "ProcessGroupCollection") -> TransformerConfig:
    dtype = torch.bfloat16 if config.bf16 else torch.float32
    return TransformerConfig(
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_heads,
        ffn_hidden_size=config.ffn_hidden_size,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        bf16=config.bf16,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        tensor_model_parallel_size=groups.tp.size(),
        pipeline_model_parallel_size=groups.pp.size(),
        context_parallel_size=groups.cp.size(),
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # the only one that allows variable lengths, used or not
        calculate_per_token_loss=True,
    )
