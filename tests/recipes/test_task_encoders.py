import dataclasses
from typing import Any

import pytest

from bridge_data.encoders import ConversationTaskEncoder, FamilyConfig, FamilyTaskEncoder, MultiModalTaskEncoder
from bridge_data.errors import ConfigError
from bridge_data.task import DefaultTaskEncoder, TaskEncoder
from recipes.task_encoders import named_encoder
from recipes.tiny_parts import tiny_image_processor, tiny_tokenizer

HERE = __name__
LLAVA = "bridge_data.encoders:MultiModalTaskEncoder"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    longest: int = 5
    words: tuple[str, ...] = ()


class Short(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Takes what every recipe has, and some of its own."""

    def __init__(self, seq_length: int, *, share: float, limits: Limits | None = None) -> None:
        super().__init__()
        self.seq_length, self.share, self.limits = seq_length, share, limits


def make_short(**options: Any) -> Any:
    return Short(1, **options)


def make_nothing() -> dict[str, int]:
    return {}


def build(name: str, arguments: dict[str, Any] | None = None) -> TaskEncoder:
    provided = {"tokenizer": tiny_tokenizer("llava"), "image_processor": tiny_image_processor("llava")}
    return named_encoder(name, arguments or {}, {**provided, "seq_length": 77})


@pytest.mark.parametrize(
    ("name", "arguments", "made"),
    [
        ("Short", {"share": 0.5, "limits": {"longest": 3}}, (77, 0.5, Limits(longest=3))),
        ("Short", {"share": 1, "seq_length": 5}, (5, 1, None)),  # an argument comes before what the recipe has
        ("make_short", {"share": 2}, (1, 2, None)),  # what takes anything gets the arguments alone
    ],
)
def test_a_maker_gets_what_it_has_parameters_for_and_its_own_arguments(
    name: str, arguments: dict[str, Any], made: tuple[Any, ...]
) -> None:
    encoder = build(f"{HERE}:{name}", arguments)
    assert isinstance(encoder, Short)
    assert (encoder.seq_length, encoder.share, encoder.limits) == made


def test_encoders_of_ours_are_made_with_configs_within_configs() -> None:
    images = build(LLAVA, {"multimodal_sample_config": {"patch_size": 4, "image_token": {"token_str": "<image>"}}})
    assert isinstance(images, MultiModalTaskEncoder) and images.seq_length == 77
    assert (images.config.patch_size, images.config.image_token.token_str) == (4, "<image>")
    template = "{% generation %}{{ messages }}{% endgeneration %}"
    config = {"policies": {"overlong": "skip"}, "conversation_template_config": {"chat_template": template}}
    text = build("bridge_data.encoders:FamilyTaskEncoder", {"config": config})
    assert isinstance(text, FamilyTaskEncoder) and isinstance(text, ConversationTaskEncoder)
    assert isinstance(text.config, FamilyConfig) and text.config.policies.overlong == "skip"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("Short", {}, "expected package.module:Name"),
        ("no.such.module:Short", {}, "no module 'no'"),
        (f"{HERE}:Shrt", {}, "has no Shrt; there is .*Short"),
        (f"{HERE}:HERE", {}, "got .*, expected a class or function"),
        (f"{HERE}:Short", {}, "it needs encoder.share"),
        (f"{HERE}:Short", {"share": 1, "limit": {}}, "encoder.limit: .* no such parameter; did you mean 'limits'"),
        (f"{HERE}:Short", {"share": 1, "limits": {"longst": 1}}, "limits.longst: Limits has no such field; did you"),
        (f"{HERE}:make_nothing", {}, "it makes a dict, expected a TaskEncoder"),
    ],
)
def test_what_does_not_fit_is_a_config_error(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(name, arguments)
