"""Samples as conversations: what is asked, what is answered, and which samples have no conversation."""

from typing import Any

import pytest
import torch

from bridge_data import CaptioningSample, ConfigError, ImageSample, SampleError, SkipSample, TextSample, VQASample
from bridge_data.encoders import ConversationSample, ConversationTemplateConfig, MultiModalSampleConfig
from bridge_data.encoders.conversations import conversation_of

CONFIG = MultiModalSampleConfig(caption_prompt="What is this?")
TEMPLATE = ConversationTemplateConfig(system="Be brief.", roles=("human", "gpt"), stop_string="###")
IMAGE = torch.zeros(3, 4, 4)


def caption(text: str, image: Any = IMAGE) -> CaptioningSample:
    return CaptioningSample(__key__="k", image=image, caption=text)


def question(context: str, answers: Any, **more: Any) -> VQASample:
    return VQASample(__key__="k", image=IMAGE, context=context, answers=answers, **more)


def talk(*said: str, images: int = 0) -> ConversationSample:
    messages = [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(said)]
    return ConversationSample(__key__="k", messages=messages, images=[IMAGE] * images)


@pytest.mark.parametrize(
    ("sample", "said", "num_images"),
    [
        (caption(" a boat\n"), ["<image>\nWhat is this?", "a boat"], 1),
        (caption("a boat", image=None), ["What is this?", "a boat"], 0),
        # the answer with the largest weight, the first of equals
        (question("What?", ["x", "y", "z"], answer_weights=torch.tensor([0.2, 0.4, 0.4])), ["<image>\nWhat?", "y"], 1),
        (question("What?", ["x", "y"]), ["<image>\nWhat?", "x"], 1),
        (question("Look: <image> What?", ["a"]), ["Look: <image> What?", "a"], 1),
        (talk("What?", "a boat", "And?", "a sea", images=2), ["<image>\n<image>\nWhat?", "a boat", "And?", "a sea"], 2),
    ],
)
def test_a_sample_is_a_conversation(sample: Any, said: list[str], num_images: int) -> None:
    before = [dict(turn) for turn in getattr(sample, "messages", [])]
    made = conversation_of(sample, CONFIG)
    assert [turn["role"] for turn in made.messages] == ["user", "assistant"] * (len(said) // 2)
    assert [turn["content"] for turn in made.messages] == said
    assert len(made.images) == num_images
    assert getattr(sample, "messages", []) == before, "the sample itself must stay as it is"


def test_system_stop_string_and_roles_are_those_of_the_settings() -> None:
    config = MultiModalSampleConfig(conversation_template_config=TEMPLATE, caption_prompt="What?")
    assert [(turn["role"], turn["content"]) for turn in conversation_of(caption("a boat"), config).messages] == [
        ("system", "Be brief."),
        ("human", "<image>\nWhat?"),
        ("gpt", "a boat###"),
    ]
    said = conversation_of(TextSample(__key__="k", text="a text"), CONFIG)
    assert (said.text, said.messages) == ("a text", []), "a text is learnt whole"


@pytest.mark.parametrize(
    ("sample", "error", "message"),
    [
        *((caption(text), SkipSample, "") for text in ("", "  \n")),
        *((question("What?", answers), SkipSample, "") for answers in (None, [], [""])),
        (TextSample(__key__="k", text=" "), SkipSample, ""),
        (question("What?", [None]), SampleError, "sample 'k': answer 1 of 1 is None, expected text"),
        (question("<image> or <image>?", ["a"]), SampleError, r"sample 'k'.*placeholder"),
        (caption("a sign that says <image>"), SampleError, r"sample 'k'.*placeholder"),
        (TextSample(__key__="k", text="a text about <image>"), SampleError, r"sample 'k'.*placeholder"),
        (talk("What?", "<image>"), SampleError, r"sample 'k'.*placeholder"),
        (ImageSample(__key__="k", image=IMAGE), ConfigError, "got ImageSample; add a cooker"),
    ],
)
def test_what_is_no_conversation_is_left_out_or_a_failure(sample: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        conversation_of(sample, CONFIG)
