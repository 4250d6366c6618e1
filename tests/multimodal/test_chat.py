from typing import Any

import pytest

from bridge_data.errors import ConfigError
from bridge_data.multimodal import PLAIN_CHAT_TEMPLATE, ConversationTemplateConfig
from bridge_data.multimodal.chat import tokenize_conversation, tokenize_text
from tests.multimodal.parts import END, TURNS, TURNS_WITHOUT_MARKS, VOCABULARY, SlowTokenizer, make_tokenizer

CONFIG = ConversationTemplateConfig()
MESSAGES = [
    {"role": "user", "content": "what is this ?"},
    {"role": "assistant", "content": "a boat"},
    {"role": "user", "content": "what is on the boat ?"},
    {"role": "assistant", "content": "the sea"},
]
WHOLE = "<user> what is this ? <bot> a boat <end> <user> what is on the boat ? <bot> the sea <end>"


def answers(tokenizer: Any, messages: list[dict[str, str]] = MESSAGES, config: Any = CONFIG) -> tuple[str, str]:
    """All words, and those of answers."""
    marked = tokenize_conversation(tokenizer, messages, config)
    names = {number: word for word, number in VOCABULARY.items()}
    learnt = [names[i] for i, is_answer in zip(marked.ids, marked.is_answer, strict=True) if is_answer]
    return " ".join(names[i] for i in marked.ids), " ".join(learnt)


def test_a_template_with_generation_marks_says_what_the_answers_are() -> None:
    assert answers(make_tokenizer(TURNS)) == (WHOLE, "a boat <end> the sea <end>")


def test_without_marks_the_answers_are_found_by_rendering_what_is_before_them() -> None:
    assert answers(make_tokenizer(TURNS_WITHOUT_MARKS)) == (WHOLE, "a boat <end> the sea <end>")


@pytest.mark.parametrize("template", [TURNS, TURNS_WITHOUT_MARKS])
def test_a_tokenizer_without_offsets_finds_the_same(template: str) -> None:
    tokenizer = SlowTokenizer(chat_template=template)
    assert not tokenizer.is_fast
    assert answers(tokenizer) == (WHOLE, "a boat <end> the sea <end>")


def test_without_a_prompt_to_answer_the_role_is_marked_too() -> None:
    template = TURNS_WITHOUT_MARKS.partition("{%- if add_generation_prompt")[0]
    assert answers(make_tokenizer(template))[1] == "<bot> a boat <end> <bot> the sea <end>"


def test_a_template_that_changes_earlier_turns_is_refused_with_the_way_out() -> None:
    fickle = TURNS_WITHOUT_MARKS.replace("<bot> {{", "<bot> {% if not loop.last %}red{% endif %} {{")
    with pytest.raises(ConfigError, match=r"put \{% generation %\}"):
        answers(make_tokenizer(fickle))


def test_a_tokenizer_without_template_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"has no chat template.*PLAIN_CHAT_TEMPLATE"):
        answers(make_tokenizer(None))


def test_the_template_of_the_settings_comes_first() -> None:
    plain = ConversationTemplateConfig(chat_template=PLAIN_CHAT_TEMPLATE)
    for tokenizer in (make_tokenizer(None), make_tokenizer(TURNS)):
        assert answers(tokenizer, MESSAGES[:2], plain) == ("what is this ? a boat <end>", "a boat <end>")
    assert answers(make_tokenizer(None, end=False), MESSAGES[:2], plain)[1] == "a boat"


def test_text_ends_with_the_end_token_where_there_is_one() -> None:
    assert tokenize_text(make_tokenizer(), "a boat").ids == [VOCABULARY["a"], VOCABULARY["boat"], END]
    assert tokenize_text(make_tokenizer(), "a boat <end>").ids[-2:] == [VOCABULARY["boat"], END]
    assert tokenize_text(make_tokenizer(end=False), "a boat").ids == [VOCABULARY["a"], VOCABULARY["boat"]]
    assert all(tokenize_text(make_tokenizer(), "a boat").is_answer)
