from typing import Any

import pytest

from bridge_data import ConfigError
from bridge_data.encoders import (
    ConversationTemplateConfig,
    FamilyConfig,
    FamilyTaskEncoder,
    Idefics3,
    ImageLimits,
    InternVL,
    Llava,
    LlavaNext,
    PretrainingTaskEncoder,
    SamplePolicies,
    text_encoder,
)
from tests.encoders.parts import CASES, make_tokenizer


def images(name: str) -> Any:
    return CASES[name].make().image_processor  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImageLimits(max_pixels=0), r"ImageLimits\(max_pixels=0\): expected at least 1"),
        (lambda: ImageLimits(min_pixels=9, max_pixels=8), r"min_pixels=9\): more than max_pixels=8"),
        (lambda: ImageLimits(extreme_image="keep"), r"extreme_image='keep'\): expected one of 'skip', 'error'"),
        (lambda: SamplePolicies(overlong="drop"), r"overlong='drop'\): expected one of 'truncate', 'skip', 'error'"),
        (lambda: Llava(images("llava"), patch_size=0), r"Llava\(patch_size=0\)"),
        (lambda: Llava(images("llava"), 4, "cls"), r"vision_feature_select_strategy='cls'\): expected one of"),
        (lambda: LlavaNext(images("llava"), patch_size=4), "it has no image_grid_pinpoints"),
        (lambda: Idefics3(images("llava")), "expected one with size"),
        (lambda: Idefics3(images("idefics3"), image_seq_len=0), "image_seq_len=0"),
        (lambda: InternVL(images("llava")), "it has no max_patches"),
        (lambda: InternVL(images("internvl"), image_seq_length=0), "image_seq_length=0"),
        (lambda: text_encoder(make_tokenizer(template="{{ 1 }}"), seq_length=0), "seq_length=0"),
        (lambda: text_encoder(["words"]), "expected a tokenizer of transformers"),
        (lambda: text_encoder(make_tokenizer()), "has no chat template"),
        (lambda: PretrainingTaskEncoder(make_tokenizer(), seq_length=1), "seq_length=1"),
        (
            lambda: FamilyTaskEncoder(make_tokenizer(), Llava(images("llava"), 4, image_token="<pic>")),
            "placeholder '<pic>' is no token",
        ),
        (lambda: FamilyTaskEncoder(make_tokenizer(), config=named("tool_use")), "'tool_use' is neither a template"),
        (lambda: FamilyTaskEncoder(make_tokenizer(), config=FamilyConfig(image_placeholder="")), "token_str=''"),
        (lambda: FamilyTaskEncoder(make_tokenizer(), config=FamilyConfig(packer="fast")), "packer='fast'"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def named(name: str) -> FamilyConfig:
    return FamilyConfig(conversation_template_config=ConversationTemplateConfig(chat_template=name))
