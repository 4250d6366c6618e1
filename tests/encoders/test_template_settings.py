"""What a run sets in a chat template."""

import datetime
import json
import logging
from typing import Any

import pytest

from bridge_data.encoders import ConversationTemplateConfig
from bridge_data.encoders.chat import chat_template_of, render_conversation
from bridge_data.encoders.template_settings import _tell_of_date, with_settings
from bridge_data.errors import ConfigError
from tests.encoders.multimodal_parts import TURNS, TURNS_WITHOUT_MARKS, make_tokenizer

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "what ?"}, {"role": "assistant", "content": "a boat"}]
DATED = """\
{%- if not date_string is defined %}
{%- if strftime_now is defined %}{% set date_string = strftime_now("%d %b %Y") %}{% endif %}
{%- endif -%}
{{ date_string }} {{ strftime_now("%B %d, %Y, %A, %-d%%") }}"""
"""As Llama 3's template finds the date, and others write it."""


def written(template: str, **settings: Any) -> tuple[str, list[str]]:
    tokenizer = make_tokenizer(template)
    config = ConversationTemplateConfig(**settings)
    text, spans = render_conversation(tokenizer, MESSAGES, chat_template_of(tokenizer, config), "assistant")
    return text, [text[start:end] for start, end in spans]


@pytest.mark.parametrize("turns", [TURNS, TURNS_WITHOUT_MARKS])
def test_a_template_writes_the_date_of_the_settings_and_never_the_current_one(turns: str) -> None:
    text, learnt = written(DATED + turns, date="2026-02-03")
    assert text.startswith("03 Feb 2026 February 03, 2026, Tuesday, 3%<user>")
    assert learnt == ["a boat <end>"]
    default, _ = written(DATED + turns)
    assert default.startswith("26 Jul 2024 ")
    assert str(datetime.date.today().year) not in default
    assert written(DATED + turns, chat_template_kwargs={"date_string": "red"}, date="2026-02-03")[0].startswith("red ")


def test_that_a_date_is_written_which_nobody_set_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    _tell_of_date.cache_clear()
    with caplog.at_level(logging.WARNING, "bridge_data"):
        written(TURNS)
        written(DATED + TURNS, date="2026-02-03")
        assert not caplog.messages
        for _ in range(2):
            written(DATED + TURNS)
    (message,) = caplog.messages
    assert "writes 2024-07-26 in all of them. ConversationTemplateConfig(date=...) sets another" in message


@pytest.mark.parametrize("turns", [TURNS, TURNS_WITHOUT_MARKS])
@pytest.mark.parametrize("value", [True, False, None, 3, 0.5, 'it\'s "a"\n\\ \U0001f600', ["a", {"b": None}]])
def test_variables_have_their_values(turns: str, value: Any) -> None:
    text, learnt = written("{{ given | tojson }}|{{ given is none }}" + turns, chat_template_kwargs={"given": value})
    assert text.startswith(f"{json.dumps(value, ensure_ascii=False)}|{value is None}<user>")
    assert learnt == ["a boat <end>"]


def test_a_template_without_settings_stays_as_it_is() -> None:
    assert with_settings(TURNS, {}, "2026-02-03") == TURNS
    template = "\n\n a" + TURNS
    assert written(template, chat_template_kwargs={"b": 1}) == written(template)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chat_template_kwargs": {"a b": 1}}, r"ConversationTemplateConfig\(chat_template_kwargs=.*got 'a b'"),
        (
            {"chat_template_kwargs": {"a": {1}}},
            r"ConversationTemplateConfig\(chat_template_kwargs=\{'a': \{1\}\}\): expected p",
        ),
        ({"date": "3 Feb 2026"}, r"ConversationTemplateConfig\(date='3 Feb 2026'\): expected a date such as"),
        ({"date": 3}, r"date=3\): expected a date"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ConversationTemplateConfig(**settings)
