"""Conversations as a model family writes them: messages, rendered, tokenized, with marks on the answers.

Enters: the turns of a sample, with one placeholder for an image in all data. Leaves: marked tokens, in which each image
is one token still. Guarantee: ids and marks are those that transformers' processors give (`apply_chat_template`), the
beginning-of-sequence token included.
"""

import re
from typing import Any

from bridge_data.encoders.chat import (
    MarkedTokens,
    Span,
    render_conversation,
    takes_parts,
    tokenize_spans,
    tokenize_text,
)
from bridge_data.encoders.conversation import Conversation


def messages_for(template: str, messages: list[dict[str, str]], placeholder: str, token: str) -> list[dict[str, Any]]:
    """The messages as `template` wants them: with parts, or with `token` in the text for an image."""
    if takes_parts(template):
        return [{**turn, "content": _parts(turn["content"], placeholder)} for turn in messages]
    return [{**turn, "content": turn["content"].replace(placeholder, token)} for turn in messages]


def _parts(content: str, placeholder: str) -> list[dict[str, str]]:
    """The content as texts and images, without the line breaks between them, which templates write as they like."""
    texts = re.split(rf"\n?{re.escape(placeholder)}\n?", content)
    parts: list[dict[str, str]] = []
    for number, text in enumerate(texts):
        if number:
            parts.append({"type": "image"})
        if text:
            parts.append({"type": "text", "text": text})
    return parts or [{"type": "text", "text": ""}]


def render(
    renderer: Any, said: Conversation, template: str, *, answers: str, placeholder: str, token: str
) -> tuple[str, list[Span], bool]:
    """The conversation as text; where its answers are; and whether the tokenizer should add its special tokens, since
    the template wrote no beginning-of-sequence token. `renderer` is a tokenizer or a processor."""
    messages = messages_for(template, said.messages, placeholder, token)
    text, spans = render_conversation(renderer, messages, template, answers)
    begin = getattr(renderer, "tokenizer", renderer).bos_token
    return text, spans, begin is None or not text.startswith(begin)


def tokenize(
    tokenizer: Any, said: Conversation, template: str | None, *, answers: str, placeholder: str, token: str
) -> MarkedTokens:
    """The tokens of a conversation, or of a text, which is learnt whole."""
    if not said.messages or template is None:
        return tokenize_text(tokenizer, said.text)
    names = {"answers": answers, "placeholder": placeholder, "token": token}
    text, spans, add_special_tokens = render(tokenizer, said, template, **names)
    return tokenize_spans(tokenizer, text, spans, add_special_tokens=add_special_tokens)
