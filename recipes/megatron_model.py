"""A model of transformers under Megatron: megatron-core's GPT as the language model, its own tower for images.

Reads token ids with a run of placeholder tokens for each image or video, the media of the batch, the number of each
position's sequence in the pack, and of Qwen-VL the three positions of each token (mRoPE). Returns the loss of each
token. It runs under tensor, pipeline and context parallelism, on the CPU as well as on CUDA. The first pipeline stage
has the tower (the same on all tensor-parallel ranks), the last one the loss.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from megatron.core.enums import ModelType
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from torch import Tensor

from bridge_data.datamodule.parallel import zigzag_positions
from bridge_data.errors import ConfigError
from recipes.megatron_weights import check_length, stage_weights, transformer_config
from recipes.packed_attention import PackedAttention

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection


class MegatronModel(MegatronModule):
    """This rank's stage of `original`, a causal language model of transformers, or one with images.

    The original's weights are reused, and the original is taken apart: do not use it afterwards.

    Raises:
        ConfigError: if megatron-core's GPT is another model, or the parallel sizes do not divide it.
    """

    def __init__(
        self, original: Any, groups: "ProcessGroupCollection", *, seq_length: int, dtype: torch.dtype = torch.float32
    ) -> None:
        text = original.config.get_text_config()
        check_length(text, seq_length)
        super().__init__(config=transformer_config(text, groups, dtype))
        self.cp = groups.cp
        self.pre_process = groups.pp.rank() == 0
        self.post_process = groups.pp.rank() == groups.pp.size() - 1
        self.model_type = ModelType.encoder_or_decoder
        decoder = _take_decoder(original)
        self.share_embeddings_and_output_weights = original.lm_head.weight is decoder.embed_tokens.weight
        ids = {kind: getattr(original.config, f"{kind}_token_id", None) for kind in ("image", "video")}
        self.media_tokens: dict[str, int] = {kind: token for kind, token in ids.items() if token is not None}
        layer = get_gpt_layer_local_spec(normalization="RMSNorm")
        layer.submodules.self_attention.submodules.core_attention = PackedAttention
        self.language = GPTModel(
            config=self.config,
            transformer_layer_spec=TransformerBlockSubmodules(
                layer_specs=[layer] * (text.num_hidden_layers // groups.pp.size()), layer_norm=WrappedTorchNorm
            ),
            vocab_size=text.vocab_size,
            max_sequence_length=seq_length,
            pre_process=self.pre_process,
            post_process=self.post_process,
            share_embeddings_and_output_weights=self.share_embeddings_and_output_weights,
            position_embedding_type="rope" if self.config.mrope_section is None else "mrope",
            rotary_base=text.rope_parameters["rope_theta"],
            pg_collection=groups,
        )
        self.language.rotary_pos_emb.cp_group = groups.cp  # mRoPE takes Megatron's global group otherwise
        weights = stage_weights(decoder, original.lm_head.weight, groups)
        if self.share_embeddings_and_output_weights and self.pre_process:
            weights.pop("output_layer.weight", None)  # the embedding is used
        _load(self.language, weights)
        self.tower: torch.nn.Module | None = None
        if self.pre_process and self.media_tokens:
            self.tower = original.model.to(dtype)

    def shared_embedding_or_output_weight(self) -> Tensor | None:
        """Called by Megatron, which keeps a shared embedding equal on the first and last stage."""
        weight: Tensor | None = self.language.shared_embedding_or_output_weight()
        return weight

    def set_input_tensor(self, input_tensor: Any) -> None:
        """Called by Megatron's schedule: the activations of the stage before."""
        self.language.set_input_tensor(input_tensor)

    def forward(
        self,
        tokens: Tensor,
        media: Mapping[str, Tensor],
        sequences: Tensor,
        labels: Tensor,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Loss of each token, float32 (batch, local length) on the last stage; activations on the others.

        `tokens`, `sequences` and `labels` are int64 (batch, length); `media` are what the model of transformers takes
        besides tokens, empty without images. `positions`, int64 (batch, 3, length), are read by models with mRoPE.
        Under context parallelism the losses are those of `local_positions`.

        Raises:
            ConfigError: if the batch has no such positions, or other media than the model takes.
        """
        if self.config.mrope_section is None:
            positions = None  # each position has its number
        elif positions is None or positions.ndim != 3:
            found = "missing" if positions is None else str(tuple(positions.shape))
            raise ConfigError(
                f"the model takes three positions of each token (mRoPE); position_ids are {found}; use the recipe's "
                "own encoder, or a subclass of QwenVLTaskEncoder"
            )
        local = self.local_positions(tokens.shape[1]).to(tokens.device)
        output: Tensor = self.language(
            input_ids=None,
            position_ids=None if positions is None else positions.transpose(0, 1),
            attention_mask=sequences,
            decoder_input=self._embed(tokens, media)[local] if self.pre_process else None,
            labels=labels[:, local].contiguous() if self.post_process else None,
        )
        return output

    def local_positions(self, length: int) -> Tensor:
        """The positions of a sequence that this context-parallel rank works on."""
        return zigzag_positions(length, self.cp.rank(), self.cp.size())

    def _embed(self, tokens: Tensor, media: Mapping[str, Tensor]) -> Tensor:
        """Embeddings of tokens and images, (length, batch, hidden)."""
        embedded: Tensor = self.language.embedding(input_ids=tokens, position_ids=None)
        if not media:
            return embedded
        if self.tower is None:
            raise ConfigError(f"batches have {', '.join(media)}, but the model takes text only: use another recipe")
        merged = embedded.transpose(0, 1)
        for kind, token in self.media_tokens.items():
            inputs = {name: value for name, value in media.items() if ("video" in name) == (kind == "video")}
            if inputs:
                merged = self._merge(merged, tokens.eq(token), kind, inputs)
        return merged.transpose(0, 1).contiguous()

    def _merge(self, embedded: Tensor, placeholders: Tensor, kind: str, inputs: Mapping[str, Tensor]) -> Tensor:
        """`embedded` (batch, length, hidden) with the tower's features of `inputs` at `placeholders`."""
        dtype = embedded.dtype
        output = getattr(self.tower, f"get_{kind}_features")(
            **{name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
        ).pooler_output
        features = (torch.cat(list(output)) if isinstance(output, list | tuple) else output).flatten(0, -2)
        if int(placeholders.sum()) != features.shape[0]:
            raise ConfigError(
                f"a batch has {int(placeholders.sum())} {kind} tokens, but the model makes {features.shape[0]} "
                f"features of its {kind}s; the encoder's settings (such as encoder.patch_size) must be the model's"
            )
        return embedded.masked_scatter(placeholders[..., None], features.to(dtype))


def _take_decoder(original: Any) -> Any:
    """The language model below its head, taken out of a model with images, of which the tower is left."""
    for name in ("language_model", "text_model"):
        if hasattr(original.model, name):
            decoder = getattr(original.model, name)
            delattr(original.model, name)
            return decoder
    return original.model


def _load(language: torch.nn.Module, weights: dict[str, Tensor]) -> None:
    """Load the weights; all must be there, and fit."""
    found = language.load_state_dict(weights, strict=False)
    missing = [name for name in found.missing_keys if not name.endswith("_extra_state")]
    if missing or found.unexpected_keys:
        raise ConfigError(
            f"the model of transformers does not have the layers of megatron-core's GPT: it lacks {missing}, and has "
            f"also {found.unexpected_keys}"
        )
