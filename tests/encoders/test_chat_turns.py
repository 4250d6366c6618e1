"""Whether a template reads turns as parts or as text is tried."""

from typing import Any

import pytest

from bridge_data.encoders import PLAIN_CHAT_TEMPLATE
from bridge_data.encoders.chat_turns import messages_for, roles_in_parts
from bridge_data.encoders.families import IDEFICS3_TEMPLATE, INTERNVL_TEMPLATE, LLAVA_TEMPLATE
from bridge_data.plugins.encoders.qwen_families import QWEN2_VL_TEMPLATE, QWEN3_VL_TEMPLATE
from tests.encoders.multimodal_parts import TURNS

WITH_TYPES_OF_TOOLS = """\
{%- for turn in messages -%}{{ '<' + turn.role + '>' + turn.content }}
{%- for call in turn.tool_calls or [] if call.type == 'function' %}{{ call['type'] }}{% endfor %}{%- endfor -%}
"""
"""As those of DeepSeek-V3 and gpt-oss: the types are those of calls, and content is text."""

WRITES_LISTS = (
    "{% for turn in messages %}{{ turn.content }}{{ turn.tool_calls[0].type if turn.tool_calls }}{% endfor %}"
)
WRITES_JSON = WRITES_LISTS.replace("turn.content", "turn.content | tojson")

OF_EITHER_FORM = """\
{%- for turn in messages -%}{{ '<' + turn.role + '>' }}
{%- if turn.content is string %}{{ turn.content }}
{%- else %}{% for part in turn.content %}{{ part.text if part.type == 'text' else '<image>' }}{% endfor %}{% endif %}
{%- endfor -%}
"""

ONLY_QUESTIONS = """\
{%- for turn in messages -%}
{%- if turn.role == 'user' %}{% for part in turn.content %}{{ part['text'] if part['type'] == 'text' }}{% endfor %}
{%- else %}{{ '<' + turn.content + '>' }}{% endif -%}
{%- endfor -%}
"""


@pytest.mark.parametrize(
    ("template", "roles"),
    [
        *(
            (template, set())
            for template in (TURNS, PLAIN_CHAT_TEMPLATE, WITH_TYPES_OF_TOOLS, WRITES_LISTS, WRITES_JSON)
        ),
        (LLAVA_TEMPLATE, {"user", "assistant", "system", "tool"}),
        (IDEFICS3_TEMPLATE, {"user", "assistant", "system", "tool"}),
        (OF_EITHER_FORM, {"user", "assistant"}),
        (ONLY_QUESTIONS, {"user"}),
    ],
)
def test_roles_in_parts_are_those_whose_parts_are_read(template: str, roles: set[str]) -> None:
    assert roles_in_parts(template) == roles


def test_the_templates_of_families_read_pictures_in_parts() -> None:
    for template in (INTERNVL_TEMPLATE, QWEN2_VL_TEMPLATE, QWEN3_VL_TEMPLATE):
        assert roles_in_parts(template) >= {"user", "assistant"}


def test_turns_are_in_the_form_of_their_role() -> None:
    turns: list[dict[str, Any]] = [
        {"role": "system", "content": "brief"},
        {"role": "user", "content": "<image>\nwhat?"},
        {"role": "assistant", "content": "", "tool_calls": [{}]},
        {"role": "critic", "content": "<image>"},
    ]
    media = {"<image>": ("image", "<|pad|>")}
    made = messages_for(OF_EITHER_FORM, turns, media)
    assert [turn["content"] for turn in made] == [
        "brief",
        [{"type": "image"}, {"type": "text", "text": "what?"}],
        "",
        [{"type": "image"}],
    ]
    assert messages_for(OF_EITHER_FORM, turns[3:], {})[0]["content"] == [{"type": "text", "text": "<image>"}]
    assert [turn["content"] for turn in messages_for(TURNS, turns, media)] == ["brief", "<|pad|>\nwhat?", "", "<|pad|>"]
