import dataclasses
from typing import Any

import pytest

from bridge_data import ConfigError
from bridge_data.encoders import (
    ConversationTemplateConfig,
    FamilyConfig,
    FamilyTaskEncoder,
    Idefics3,
    ImageLimits,
    ImageToken,
    InternVL,
    Llava,
    LlavaNext,
    MultiModalSampleConfig,
    PretrainingTaskEncoder,
    Qwen3VL,
    SamplePolicies,
    VideoSampling,
    text_encoder,
)
from tests.encoders.multimodal_parts import CONFIG, make_encoder
from tests.encoders.parts import CASES, make_tokenizer
from tests.encoders.qwen_parts import image_processor as qwen_images


def images(name: str) -> Any:
    return CASES[name].make().image_processor  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImageLimits(max_pixels=0), r"ImageLimits\(max_pixels=0\): expected at least 1"),
        (lambda: ImageLimits(min_pixels=9, max_pixels=8), r"min_pixels=9\): more than max_pixels=8"),
        (lambda: ImageLimits(extreme_image="keep"), r"extreme_image='keep'\): expected one of 'skip', 'error'"),
        (
            lambda: SamplePolicies(overlong="drop"),
            r"overlong='drop'\): expected one of 'truncate', 'split', 'skip', 'error'",
        ),
        (lambda: Llava(images("llava"), patch_size=0), r"Llava\(patch_size=0\)"),
        (lambda: Llava(images("llava"), 4, "cls"), r"vision_feature_select_strategy='cls'\): expected one of"),
        (lambda: LlavaNext(images("llava"), patch_size=4), r"LlavaNext\(image_processor=.*image_grid_pinpoints"),
        (lambda: Idefics3(images("llava")), r"Idefics3\(image_processor="),
        (lambda: Idefics3(images("idefics3"), image_seq_len=0), "image_seq_len=0"),
        (lambda: InternVL(images("llava")), r"InternVL\(image_processor=.*max_patches"),
        (lambda: InternVL(images("internvl"), image_seq_length=0), "image_seq_length=0"),
        (lambda: text_encoder(make_tokenizer(template="{{ 1 }}"), seq_length=0), "seq_length=0"),
        (lambda: text_encoder(["words"]), "expected a tokenizer of transformers"),
        (lambda: text_encoder(make_tokenizer()), "has no chat template"),
        (lambda: PretrainingTaskEncoder(make_tokenizer(), seq_length=1), "seq_length=1"),
        (
            lambda: FamilyTaskEncoder(make_tokenizer(), Llava(images("llava"), 4, image_token="<pic>")),
            "placeholder '<pic>' is not a token",
        ),
        (lambda: FamilyTaskEncoder(make_tokenizer(), config=named("tool_use")), "'tool_use' is neither a template"),
        (lambda: FamilyConfig(image_placeholder=""), r"FamilyConfig\(image_placeholder=''\)"),
        (lambda: FamilyTaskEncoder(make_tokenizer(), config=FamilyConfig(packer="fast")), "packer='fast'"),
        (lambda: MultiModalSampleConfig(tokens_per_image=0), "tokens_per_image=0"),
        (lambda: MultiModalSampleConfig(patch_size=-1), "patch_size=-1"),
        (lambda: MultiModalSampleConfig(ignore_place_holder=0), "expected a negative number"),
        (lambda: ImageToken(token_str=""), "expected the text that stands for an image"),
        (lambda: ConversationTemplateConfig(roles=("user", "user")), "expected two different names"),
        (lambda: VideoSampling(fps=0), "fps=0"),
        (lambda: VideoSampling(min_frames=0), "min_frames=0"),
        (lambda: VideoSampling(min_frames=9, max_frames=8), "min_frames=9"),
        (lambda: Qwen3VL(qwen_images(), min_pixels=5000), "min_pixels=5000, max_pixels=2048"),
        (lambda: Qwen3VL(qwen_images(), max_pixels=63), "at least 64, the pixels of one token"),
        (
            lambda: Qwen3VL(qwen_images(), max_frame_pixels=100),
            "min_frame_pixels=8192, max_frame_pixels=100.* the defaults are 128 and 768 tokens",
        ),
        (lambda: make_encoder(seq_length=3), "an image takes 4 tokens, so none fits into seq_length=3"),
        (lambda: make_encoder(seq_length=0), "seq_length=0"),
        (lambda: make_encoder(decoder_seq_length=0), "decoder_seq_length=0"),
        *(
            (lambda config=config: make_encoder(config=config, decoder_seq_length=8), "leave out decoder_seq_length")
            for config in (
                dataclasses.replace(CONFIG, layout="bridge"),
                dataclasses.replace(CONFIG, pack_in_batch=True),
            )
        ),
        (lambda: make_encoder(config=MultiModalSampleConfig()), "set .*patch_size"),
        (lambda: make_encoder(object()), "expected a tokenizer of transformers"),
        (
            lambda: make_encoder(config=dataclasses.replace(CONFIG, image_token=ImageToken(token_str="<pic>"))),
            "placeholder '<pic>' is not a token .* Add it",
        ),
        (
            lambda: make_encoder(config=dataclasses.replace(CONFIG, pad_to_multiple_of=8), seq_length=60),
            "seq_length=60 is no multiple of pad_to_multiple_of=8",
        ),
        (lambda: FamilyConfig(layout="thd"), r"layout='thd'\): expected one of 'native', 'bridge'"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def named(name: str) -> FamilyConfig:
    return FamilyConfig(conversation_template_config=ConversationTemplateConfig(chat_template=name))
