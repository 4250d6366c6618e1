from typing import Any

import pytest
import torch

from bridge_data import CaptioningSample, ConfigError, ImageSample, SampleError, SkipSample, TextSample, VQASample
from bridge_data.encoders import (
    ConversationSample,
    ConversationTemplateConfig,
    MultiModalSampleConfig,
)
from bridge_data.encoders.conversations import conversation_of

CONFIG = MultiModalSampleConfig(caption_prompt="What is this?")
IMAGE = torch.zeros(3, 4, 4)


def contents(sample: Any, config: MultiModalSampleConfig = CONFIG) -> list[tuple[str, str]]:
    return [(turn["role"], turn["content"]) for turn in conversation_of(sample, config).messages]


def caption(text: str, image: Any = IMAGE) -> CaptioningSample:
    return CaptioningSample(__key__="k", image=image, caption=text)


def question(context: str, answers: list[str] | None, **more: Any) -> VQASample:
    return VQASample(__key__="k", image=IMAGE, context=context, answers=answers, **more)


def test_a_caption_answers_the_prompt_about_its_image() -> None:
    assert contents(caption(" a boat\n")) == [("user", "<image>\nWhat is this?"), ("assistant", "a boat")]
    assert conversation_of(caption("a boat"), CONFIG).images == [IMAGE]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_caption_is_left_out(text: str) -> None:
    with pytest.raises(SkipSample):
        conversation_of(caption(text), CONFIG)


def test_a_sample_without_image_is_a_conversation_in_words() -> None:
    assert contents(caption("a boat", image=None))[0] == ("user", "What is this?")
    assert conversation_of(caption("a boat", image=None), CONFIG).images == []


def test_the_answer_with_the_largest_weight_is_learnt_the_first_of_equals() -> None:
    weights = torch.tensor([0.2, 0.4, 0.4])
    assert contents(question("What?", ["x", "y", "z"], answer_weights=weights))[1] == ("assistant", "y")
    assert contents(question("What?", ["x", "y"]))[1] == ("assistant", "x")


@pytest.mark.parametrize("answers", [None, [], [""]])
def test_a_question_without_answer_is_left_out(answers: list[str] | None) -> None:
    with pytest.raises(SkipSample):
        conversation_of(question("What?", answers), CONFIG)


def test_an_answer_that_is_no_text_is_a_failure_of_the_sample() -> None:
    with pytest.raises(SampleError, match="sample 'k': answer 1 of 1 is None, expected text"):
        conversation_of(question("What?", [None]), CONFIG)  # type: ignore[list-item]


def test_a_placeholder_in_the_question_says_where_the_image_is() -> None:
    assert contents(question("Look: <image> What?", ["a"]))[0] == ("user", "Look: <image> What?")


@pytest.mark.parametrize(
    "sample",
    [
        question("<image> or <image>?", ["a"]),
        caption("a sign that says <image>"),
        TextSample(__key__="k", text="a text about <image>"),
        ConversationSample(__key__="k", messages=[{"role": "assistant", "content": "<image>"}]),
    ],
)
def test_another_number_of_placeholders_than_images_is_a_failure_of_the_sample(sample: Any) -> None:
    with pytest.raises(SampleError, match=r"sample 'k'.*placeholder"):
        conversation_of(sample, CONFIG)


def test_a_text_is_learnt_whole() -> None:
    said = conversation_of(TextSample(__key__="k", text="a text"), CONFIG)
    assert (said.text, said.messages) == ("a text", [])
    with pytest.raises(SkipSample):
        conversation_of(TextSample(__key__="k", text=" "), CONFIG)


def test_a_conversation_may_have_several_turns_and_images() -> None:
    turns = [
        {"role": "user", "content": "What?"},
        {"role": "assistant", "content": "a boat"},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "a sea"},
    ]
    sample = ConversationSample(__key__="k", messages=turns, images=[IMAGE, IMAGE])
    assert contents(sample)[0] == ("user", "<image>\n<image>\nWhat?")
    assert [text for _, text in contents(sample)[1:]] == ["a boat", "And?", "a sea"]
    assert turns[0]["content"] == "What?", "the sample itself must stay as it is"


def test_system_stop_string_and_roles_are_those_of_the_settings() -> None:
    template = ConversationTemplateConfig(system="Be brief.", roles=("human", "gpt"), stop_string="###")
    config = MultiModalSampleConfig(conversation_template_config=template, caption_prompt="What?")
    assert contents(caption("a boat"), config) == [
        ("system", "Be brief."),
        ("human", "<image>\nWhat?"),
        ("gpt", "a boat###"),
    ]


def test_other_classes_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="got ImageSample; add a cooker"):
        conversation_of(ImageSample(__key__="k", image=IMAGE), CONFIG)
