"""Answers in the text of templates that write a turn otherwise once others follow, and mark no answers themselves."""

from typing import Any

import pytest

from bridge_data.encoders.chat import render_conversation
from bridge_data.encoders.chat_turns import messages_for
from bridge_data.errors import SampleError
from tests.encoders.multimodal_parts import make_tokenizer


def says(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CALL = {"type": "function", "function": {"name": "look", "arguments": {}}}
TALK = [says("user", "one?"), says("assistant", "a boat"), says("user", "two?"), says("assistant", "the sea")]
THOUGHT = [{**turn, "reasoning_content": f"hm {n}"} if n % 2 else turn for n, turn in enumerate(TALK)]
CALLED = [TALK[0], says("assistant", "", tool_calls=[CALL]), says("tool", "red"), TALK[1], *TALK[2:]]

LEAVES_OUT_THOUGHTS = """\
{%- for turn in messages -%}
{%- if turn.role == 'user' or turn.role == 'tool' -%}{{ '<|start|>' + turn.role + '\\n' + turn.content + '<|end|>\\n' }}
{%- else -%}{{ '<|start|>assistant\\n' -}}
{%- if loop.last and WRITES -%}<think>{{ turn.reasoning_content }}</think>{%- endif -%}
{{ turn.content }}{% for call in turn.tool_calls or [] %}<call>{{ call.function.name }}</call>{% endfor %}
{{- '<|end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start|>assistant\\nPROMPT' }}{%- endif -%}
"""
"""As Qwen3's (PROMPT is nothing), its thinking versions, and DeepSeek-R1's, which does not write them at all."""

CHANNELS = """\
{%- for turn in messages -%}
{%- if turn.role == 'user' -%}<|start|>user<|message|>{{ turn.content }}<|end|>
{%- elif turn.role == 'tool' -%}<|start|>look to=assistant<|message|>{{ turn.content }}<|end|>
{%- elif turn.tool_calls -%}<|start|>assistant to=look<|message|>{}<|call|>
{%- else -%}<|start|>assistant<|message|>{{ turn.content }}{{ '<|return|>' if loop.last else '<|end|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""
"""As gpt-oss's: each kind of answer is closed by a mark of its own."""

NOT_CLOSED = """\
{%- for turn in messages -%}
{%- if turn.role in ('user', 'tool') -%}<|{{ turn.role }}|>{{ turn.content }}
{%- else -%}<|assistant|><think>{{ turn.reasoning_content if loop.last }}</think>{{ turn.content }}
{%- for call in turn.tool_calls or [] %}<call>{{ call.function.name }}</call>{% endfor %}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""
"""As GLM's: the next turn closes an answer."""

ENDS_THE_TEXT = """\
{%- for turn in messages -%}<|{{ turn.role }}|>{{ turn.content }}<|end|>
{% endfor -%}
{{- '<|assistant|>' if add_generation_prompt else '<eos>' -}}
"""
"""As Phi-3's."""

SYSTEM_LAST = """\
{%- for turn in messages if turn.role != 'system' -%}
{%- if turn.role == 'user' -%}[INST]{% if loop.last or loop.index == loop.length - 1 %}{{ messages[0].content }}
{% endif %}{{ turn.content }}[/INST]{%- else -%}{{ turn.content }}</s>{%- endif -%}
{%- endfor -%}
"""
"""As Mistral's: without a generation prompt, and the system's text in the last question."""

CLOSED_AT_THE_END = """\
{%- for turn in messages -%}<|{{ turn.role }}|>{{ turn.content }}{{ '<eos>' if loop.last }}{%- endfor -%}
{{- '<|assistant|>' if add_generation_prompt -}}
"""


def learnt_by(template: str, messages: list[dict[str, Any]]) -> list[str]:
    messages = messages_for(template, messages, {})
    text, spans = render_conversation(make_tokenizer(), messages, template, "assistant")
    return [text[start:end] for start, end in spans]


@pytest.mark.parametrize(
    ("prompt", "writes", "last"),
    [
        ("", True, "<think>hm 3</think>the sea<|end|>"),
        ("<think>", True, "hm 3</think>the sea<|end|>"),
        ("<think>", False, "the sea<|end|>"),
    ],
)
def test_earlier_thoughts_are_left_out_as_the_template_does(prompt: str, writes: bool, last: str) -> None:
    template = LEAVES_OUT_THOUGHTS.replace("PROMPT", prompt).replace("WRITES", str(writes).lower())
    messages = THOUGHT if writes else [{**turn, "reasoning_content": ""} for turn in THOUGHT]
    assert learnt_by(template, messages) == ["a boat<|end|>", last]
    assert learnt_by(template, [{**messages[0]}, {**messages[1], "weight": 0}, *messages[2:]]) == [last]
    for _ in range(3):  # as a frame is made of a shape that came before
        plain = learnt_by(template, TALK)
        assert plain == ["a boat<|end|>", last.replace("hm 3", "")]
    called = [*CALLED[:-1], messages[-1]]
    assert learnt_by(template, called) == ["<call>look</call><|end|>", "a boat<|end|>", last]


def test_each_kind_of_answer_may_be_closed_otherwise() -> None:
    plain = ["<|message|>a boat<|end|>", "<|message|>the sea<|return|>"]
    assert learnt_by(CHANNELS, TALK) == plain
    assert learnt_by(CHANNELS, CALLED) == [" to=look<|message|>{}<|call|>", *plain]


def test_the_next_turn_may_close_an_answer() -> None:
    assert learnt_by(NOT_CLOSED, THOUGHT) == ["<think></think>a boat", "<think>hm 3</think>the sea"]
    called = [CALLED[0], {**CALLED[1], "reasoning_content": "hm"}, *CALLED[2:-1], THOUGHT[-1]]
    with pytest.raises(SampleError, match="so the answers cannot be found"):  # what the tool returned would be learnt
        learnt_by(NOT_CLOSED, called)


def test_what_ends_the_text_ends_no_turn() -> None:
    assert learnt_by(ENDS_THE_TEXT, TALK) == ["a boat<|end|>", "the sea<|end|>"]


def test_the_system_text_may_be_in_the_last_question() -> None:
    assert learnt_by(SYSTEM_LAST, [says("system", "brief"), *TALK]) == ["a boat</s>", "the sea</s>"]
    more = [says("system", "brief"), *TALK, *TALK]
    assert learnt_by(SYSTEM_LAST, more) == ["a boat</s>", "the sea</s>"] * 2


def test_an_answer_that_only_ends_with_the_text_is_not_found() -> None:
    with pytest.raises(SampleError, match=r"put \{% generation %\} and \{% endgeneration %\} around the answers"):
        learnt_by(CLOSED_AT_THE_END, TALK)


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("mark", ["<|start|>assistant\n", "<|end|>"])
def test_a_mark_in_a_text_is_refused_where_it_would_be_taken_for_one(number: int, mark: str) -> None:
    template = LEAVES_OUT_THOUGHTS.replace("PROMPT", "").replace("WRITES", "true")
    messages = [{**turn, "content": f"say {mark}!"} if at == number else turn for at, turn in enumerate(TALK)]
    if number == 0 and mark == "<|end|>":
        assert learnt_by(template, messages) == ["a boat<|end|>", "<think></think>the sea<|end|>"]
        return
    with pytest.raises(SampleError, match="in its text, which the chat template writes around answers"):
        learnt_by(template, messages)


def test_answers_to_nobody_are_not_found() -> None:
    template = LEAVES_OUT_THOUGHTS.replace("PROMPT", "").replace("WRITES", "true")
    with pytest.raises(SampleError, match="so the answers cannot be found"):
        learnt_by(template, [says("assistant", "a boat"), says("assistant", "the sea")])
