"""The form in which a chat template reads turns: their content as text, or as parts.

Reads a template, and turns with placeholders for media. Returns the turns as the template reads them. Which roles it
reads in parts is tried, without a tokenizer.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from bridge_data.encoders.tool_calls import TOOL

WORD = "qzvx"
"""A text that no template writes by itself."""

Media: TypeAlias = Mapping[str, tuple[str, str]]
"""By placeholder, the type of its part and its token: {"<image>": ("image", "<|image_pad|>")}."""

_TYPES = re.compile(r"""\[\s*['"]type['"]\s*\]|\.type\b|['"]type['"]""")
_CALL = {"type": "function", "function": {"name": "f", "arguments": {}}, "id": "call12345"}


def said(turn: Mapping[str, Any]) -> str:
    """The text of a turn of either form."""
    content = turn["content"]
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def in_form_of(turn: Mapping[str, Any], text: str) -> str | list[dict[str, str]]:
    """A text in the form of the content of a turn."""
    return text if isinstance(turn["content"], str) else [{"type": "text", "text": text}]


@functools.lru_cache(maxsize=64)
def roles_in_parts(template: str) -> frozenset[str]:
    """The roles of which a template reads the content as parts (`{"type": "image"}`, `{"type": "text", ...}`), as those
    of processors do, rather than as text; a system's and a tool's text only if it does not read it as such."""
    found: set[str] = set()
    if not _TYPES.search(template):
        return frozenset()

    def is_read(role: str, *, in_parts: bool) -> bool:
        def turn(role: str, text: str, *, in_parts: bool) -> dict[str, Any]:
            return {"role": role, "content": [{"type": "text", "text": text}] if in_parts else text}

        user, answer = (turn(other, "a", in_parts=other in found) for other in ("user", "assistant"))
        own = turn(role, WORD, in_parts=in_parts)
        before = {"assistant": [user], TOOL: [user, {**answer, "tool_calls": [_CALL]}]}.get(role, [])
        own |= {"tool_call_id": _CALL["id"], "name": "f"} if role == TOOL else {}
        return _is_read(template, [*before, own, *([user] if role == "system" else [])])

    for role in ("user", "assistant", "system", TOOL):
        if is_read(role, in_parts=True) and not (role in ("system", TOOL) and is_read(role, in_parts=False)):
            found.add(role)
    return frozenset(found)


def _is_read(template: str, turns: list[dict[str, Any]]) -> bool:
    """Whether a template writes the `WORD` in some turns, not in the list or the JSON of parts."""
    from transformers.utils.chat_template_utils import render_jinja_template

    tokens = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "")
    try:
        (text,), _ = render_jinja_template(conversations=[turns], chat_template=template, **tokens)
    except Exception:  # it is made for the other form
        return False
    return WORD in text and not any(f"{quote}{WORD}{quote}" in text for quote in "'\"")


def messages_for(template: str, messages: list[dict[str, Any]], media: Media) -> list[dict[str, Any]]:
    """The messages in the form that `template` reads: parts, or text with the token of each image in it."""
    return messages_in_form(template, messages, media, _parts)


def messages_in_form(
    template: str, messages: list[dict[str, Any]], media: Media, parts_of: Callable[[str, Media], list[dict[str, str]]]
) -> list[dict[str, Any]]:
    """As `messages_for`, with the parts that `parts_of` makes of a text."""
    roles, turns = roles_in_parts(template), list[dict[str, Any]]()
    for turn in messages:
        content: Any = turn["content"]
        role = turn["role"] if turn["role"] in ("system", "assistant", TOOL) else "user"
        if role in roles and (content or "tool_calls" not in turn):
            content = parts_of(content, media)
        else:
            for placeholder, (_, token) in media.items():
                content = content.replace(placeholder, token)
        turns.append({**turn, "content": content})
    return turns


def _parts(content: str, media: Media) -> list[dict[str, str]]:
    """The content as texts and images, without the line breaks between them: templates write their own."""
    placeholders = "|".join(map(re.escape, media))
    parts: list[dict[str, str]] = []
    for piece in re.split(rf"\n?({placeholders})\n?", content) if media else [content]:
        if piece in media:
            parts.append({"type": media[piece][0]})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return parts or [{"type": "text", "text": ""}]
