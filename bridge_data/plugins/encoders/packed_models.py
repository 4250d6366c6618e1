"""What a model of transformers needs of rows that hold several samples: read from its class and its config.

Reads a processor, and the config of the model or none: then it is that of any model that transformers lists for such a
processor, whose class is known but not its sizes. Returns whether samples of a row stay apart, and M-RoPE positions,
which the model cannot compute itself for such a row: by the model's own `get_rope_index`.
"""

import dataclasses
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from bridge_data.encoders.pretrained import open_model_config
from bridge_data.encoders.sequences import Media
from bridge_data.errors import ConfigError

_STATES = ("conv_", "mamba_", "ssm_")
"""How settings of layers begin that have a state."""

_APART = frozenset(
    ["full_attention", "sliding_attention", "chunked_attention", "indexed_attention", "dense", "sparse", "mlp", "moe"]
)
"""Types of layers that keep samples apart by `position_ids` that restart, or that look at one token alone."""


@dataclasses.dataclass(frozen=True)
class PackedModel:
    """The model for which `owner` makes batches, with `config` (None: unknown), or those that could be."""

    owner: str
    processor: Any
    config: Any = None

    @classmethod
    def of(cls, owner: str, processor: Any, given: Any, config: Any) -> "PackedModel":
        """The model of a processor that was `given` by name or as an object, and of a config, or its folder or hub id;
        None: that next to the processor, if there is one.

        Raises:
            ConfigError: if the model has an encoder and a decoder.
        """
        made = cls(owner, processor, open_model_config(given if config is None else config, needed=config is not None))
        if getattr(made.config, "is_encoder_decoder", False):
            raise ConfigError(
                f"{owner}: {type(made.config).__name__} is of a model with an encoder and a decoder, which learns "
                "answers apart from their questions; write a task encoder"
            )
        return made

    @property
    def has_mrope(self) -> bool:
        """Whether positions are several numbers for each token, which follow from grids of images."""
        return self._rope is not None

    def check_packs(self) -> None:
        """Raise a ConfigError if the samples of a row do not stay apart, or it is unknown whether they do."""
        reasons = [reason for kind, config in self._models if (reason := _mixes(kind, config)) is not None]
        if self.config is None and (reasons or self.has_mrope or any(_may_mix(*one) for one in self._models)):
            raise ConfigError(
                f"{self.owner}: whether its models keep the samples of a row apart, and with which positions, follows "
                "from the config of the model; pass model_config=AutoConfig.from_pretrained(...), or its folder or hub "
                "id"
            )
        if reasons:
            raise ConfigError(
                f"{self.owner}: {reasons[0]}, so the samples of a row would not stay apart; leave out packing "
                "(packing_buffer_size, pack_in_batch)"
            )

    def positions(self, tokens: Tensor, aligned: Mapping[str, Tensor], media: Media) -> Tensor | None:
        """The positions of a sample, int64 (3, S); None if they are one number for each token, or unknown.

        Raises:
            ConfigError: if the types of tokens are missing.
        """
        if self.config is None or not self.has_mrope:
            return None
        types = aligned.get("mm_token_type_ids")
        if types is None:
            raise ConfigError(
                f"{self.owner}: the model wants mm_token_type_ids, which the processor leaves out; set "
                "processor_options={'return_mm_token_type_ids': True}"
            )
        kind: Any = self._rope
        taken = inspect.signature(kind.get_rope_index).parameters
        model = object.__new__(kind)  # without weights: its positions follow from the config alone
        model.__dict__["config"] = self.config
        more = {name: value for name, value in media.items() if name in taken}
        made: Tensor = kind.get_rope_index(model, tokens[None], mm_token_type_ids=types[None], **more)[0]
        return made[:, 0]

    @functools.cached_property
    def _models(self) -> list[tuple[Any, Any]]:
        """The classes of models that there could be, with their configs."""
        return [*_models_of(type(self.processor), self.config)]

    @functools.cached_property
    def _rope(self) -> Any | None:
        """The class that computes M-RoPE positions."""
        return next(filter(None, (_rope_class(kind) for kind, _ in self._models)), None)


def _models_of(processor: type[Any], config: Any) -> Iterator[tuple[Any, Any]]:
    """The classes of models that take what a class of processors makes, with the config, or their default ones."""
    import transformers
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    known = {
        **getattr(modeling_auto, "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES", {}),
        **modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }
    kinds = {kind.__name__ for kind in processor.__mro__}
    fitting = [name for name in known if PROCESSOR_MAPPING_NAMES.get(name) in kinds]
    for name in fitting if config is None else [config.model_type]:
        if name in known:
            its = transformers.CONFIG_MAPPING[name]() if config is None else config
            yield getattr(transformers, known[name]), its


def _mixes(model: Any, config: Any) -> str | None:
    """Why a model mixes the samples of a row; None if it does not."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ()
    mixing = next((kind for kind in kinds if kind not in _APART), None)
    if mixing is not None:
        return f"the model has layers of type {mixing!r}, which carry from one sample into the next"
    if getattr(text, "use_bidirectional_attention", None) is not None and _shows_images(model):
        return (
            "tokens of an image see each other, for which transformers takes the images of a row's first sample in "
            "layers of a sliding window"
        )
    return None


def _may_mix(model: Any, config: Any) -> bool:
    """Whether a model could mix the samples of a row with another config than its default one."""
    return _shows_images(model) or any(name.startswith(_STATES) for name in vars(config.get_text_config()))


def _shows_images(model: Any) -> bool:
    """Whether tokens of an image may see those after them, by a mask that is laid over that of a sliding window."""
    return hasattr(sys.modules[model.__module__], "blockwise_overlay")


def _rope_class(model: Any) -> Any | None:
    """The class beside a model's that computes M-RoPE positions from types of tokens; None if there is none."""
    for kind in vars(sys.modules[model.__module__]).values():
        if isinstance(kind, type) and "get_rope_index" in vars(kind) and kind.__module__ == model.__module__:
            return kind
    return None
