from typing import Any

import pytest

from bridge_data import ConfigError, SampleError, SkipSample
from bridge_data.encoders import (
    ConversationSample,
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
    SamplePolicies,
    text_encoder,
)
from bridge_data.encoders.conversations import conversation_of
from tests.encoders.multimodal_parts import CONFIG, make_encoder
from tests.encoders.parts import CASES, make_tokenizer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiModalSampleConfig(tokens_per_image=0), "tokens_per_image=0"),
        (lambda: MultiModalSampleConfig(patch_size=-1), "patch_size=-1"),
        (lambda: MultiModalSampleConfig(ignore_place_holder=0), "expected a negative number"),
        (lambda: ImageToken(token_str=""), "expected the text that stands for an image"),
        (lambda: ConversationTemplateConfig(roles=("user", "user")), "expected two different names"),
    ],
)
def test_settings_out_of_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_ignored_label_is_what_losses_ignore_by_default() -> None:
    assert MultiModalSampleConfig().ignore_place_holder == -100


ASK, ANSWER, NOTHING = (
    {"role": "user", "content": "what is this ?"},
    {"role": "assistant", "content": "a boat"},
    {"role": "assistant", "content": " "},
)


def outcome(messages: list[dict[str, str]], **policies: Any) -> Any:
    config = MultiModalSampleConfig(policies=SamplePolicies(**policies))
    return conversation_of(ConversationSample(__key__="k", messages=messages), config).messages


@pytest.mark.parametrize(
    "messages", [[ASK, ANSWER], [{"role": "system", "content": "a"}, ASK, ANSWER], [ASK, ANSWER, ASK, ANSWER, ASK]]
)
def test_what_is_in_order_stays(messages: list[dict[str, str]]) -> None:
    assert outcome(messages) == messages


@pytest.mark.parametrize(
    "messages", [[ANSWER, ASK], [ASK, ANSWER, ANSWER], [{"role": "human", "content": "a"}, ANSWER]]
)
def test_roles_out_of_order(messages: list[dict[str, str]]) -> None:
    with pytest.raises(SampleError, match=r"its roles are .*; expected one 'system' at most, then 'user'"):
        outcome(messages)
    with pytest.raises(SkipSample):
        outcome(messages, roles_out_of_order="skip")
    assert outcome(messages, roles_out_of_order="keep") == messages


def test_empty_answers() -> None:
    messages = [ASK, ANSWER, ASK, NOTHING]
    with pytest.raises(SkipSample):
        outcome(messages)
    with pytest.raises(SampleError, match="answer 2 of 2 has no words"):
        outcome(messages, empty_answer="error")
    assert outcome(messages, empty_answer="keep") == messages
    with pytest.raises(SkipSample):
        outcome([ASK, NOTHING], empty_answer="keep")


def test_too_long_for_the_default_encoder() -> None:
    sample = ConversationSample(__key__="k", messages=[ASK, ANSWER])
    length = len(make_encoder().preencode_sample(sample).tokens)
    for policy, error in (("skip", SkipSample), ("error", SampleError)):
        config = MultiModalSampleConfig(patch_size=8, policies=SamplePolicies(overlong=policy))
        assert len(make_encoder(config=config, seq_length=length).preencode_sample(sample).tokens) == length
        with pytest.raises(error):
            make_encoder(config=config, seq_length=length - 1).preencode_sample(sample)
    assert len(make_encoder(config=CONFIG, seq_length=length - 1).preencode_sample(sample).tokens) == length - 1


@pytest.mark.parametrize("name", ["image_mismatch", "roles_out_of_order", "empty_answer", "overlong"])
def test_other_words_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"SamplePolicies\({name}='drop'\): expected one of"):
        SamplePolicies(**{name: "drop"})


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
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def named(name: str) -> FamilyConfig:
    return FamilyConfig(conversation_template_config=ConversationTemplateConfig(chat_template=name))
