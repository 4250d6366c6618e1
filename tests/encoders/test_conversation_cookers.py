"""Conversations of crude data."""

from typing import Any

import pytest

from bridge_data.encoders import ConversationSample, FamilyTaskEncoder, VideoConversationSample, cook_conversation
from bridge_data.errors import ConfigError, SampleError
from bridge_data.samples import CrudeSample
from tests.encoders.parts import CASES, make_tokenizer

TURNS = [{"role": "user", "content": "what"}, {"role": "assistant", "content": "a boat"}]


def crude(**parts: Any) -> CrudeSample:
    return CrudeSample({"__key__": "a/1", **parts})


@pytest.mark.parametrize("content", [TURNS, {"messages": TURNS}, {"conversations": TURNS}])
def test_turns_are_where_people_put_them(content: Any) -> None:
    sample = cook_conversation(crude(json=content))
    assert type(sample) is ConversationSample
    assert (sample.__key__, sample.messages, sample.images) == ("a/1", TURNS, [])


def test_turns_of_llava_are_understood() -> None:
    turns = [{"from": "human", "value": "what"}, {"from": "gpt", "value": "a boat"}]
    assert cook_conversation(crude(json=turns)).messages == TURNS


def test_images_and_videos_are_in_the_order_of_their_numbers() -> None:
    sample = cook_conversation(crude(json=TURNS, **{"10.jpg": b"c", "2.png": b"b", "1.jpg": b"a", "clip.mp4": b"v"}))
    assert isinstance(sample, VideoConversationSample)
    assert (sample.images, sample.videos) == ([b"a", b"b", b"c"], [b"v"])


def test_a_family_without_videos_says_so() -> None:
    family = CASES["llava"].make()
    encoder = FamilyTaskEncoder(make_tokenizer(template=family.chat_template), family)
    with pytest.raises(ConfigError, match="got VideoConversationSample"):
        encoder.preencode_sample(cook_conversation(crude(json=TURNS, mp4=b"v")))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"txt": "hello"}, "'a/1': expected a part json .* got no such part"),
        ({"json": {"text": "hello"}}, "at 'messages' or 'conversations', got {'text'"),
        ({"json": []}, r"got \[\]"),
        ({"json": ["hello"]}, "'a/1': a turn is 'hello'; expected texts at 'role' and 'content'"),
        ({"json": [{"role": "user", "content": None}]}, "a turn is {'role'"),
    ],
)
def test_what_holds_no_turns_is_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(SampleError, match=message):
        cook_conversation(crude(**parts))
