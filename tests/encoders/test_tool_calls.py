"""Chats with tools, in each form in which they are published: all calls are learnt, what they return is read."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bridge_data import WorkerConfig, get_loader, get_val_dataset
from bridge_data.encoders import (
    ConversationTemplateConfig,
    FamilyConfig,
    MultiModalSampleConfig,
    SamplePolicies,
    cook_conversation,
    text_encoder,
)
from bridge_data.errors import ConfigError, SampleError
from bridge_data.samples import CrudeSample
from tests.encoders.qwen_parts import qwen_tokenizer

FUNCTION = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
TOOL = {"type": "function", "function": FUNCTION}

TEMPLATE = """\
{%- if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>
{% endif %}
{%- for turn in messages %}
{%- if turn.role == 'tool' %}{% if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user
{% endif %}<back>{{ turn.content }}</back>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}
{%- elif turn.role in ('system', 'user', 'assistant') %}<|im_start|>{{ turn.role }}
{{ turn.content }}
{%- for call in turn.tool_calls or [] %}<call>{{ call.function.name }} {{ call.function.arguments | tojson }}</call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}
"""
"""As Qwen's: what tools return is a turn of the user."""


def role(name: str, content: Any, /, **more: Any) -> dict[str, Any]:
    return {"role": name, "content": content, **more}


def from_(name: str, value: Any) -> dict[str, Any]:
    return {"from": name, "value": value}


def look(at: str) -> dict[str, Any]:
    return {"name": "look", "arguments": {"at": at}}


ASK, SAY = role("user", "sea, land?"), role("assistant", "2 red")
BACK = [role("tool", "2"), role("tool", "red")]
BOTH = '<call>look {"at": "sea"}</call><call>look {"at": "land"}</call>'

CHATS = {
    "OpenAI": {
        "tools": [TOOL],
        "messages": [
            ASK,
            role("assistant", None, tool_calls=[{"function": look("sea")}, {"function": look("land")}]),
            *BACK,
            SAY,
        ],
    },
    "OpenAI, arguments as text": {
        "tools": json.dumps([TOOL]),
        "messages": [
            ASK,
            role(
                "assistant",
                "",
                tool_calls=[
                    {"id": at, "type": "function", "function": {"name": "look", "arguments": json.dumps({"at": at})}}
                    for at in ("sea", "land")
                ],
            ),
            *(role("tool", said, tool_call_id=at) for said, at in (("2", "sea"), ("red", "land"))),
            SAY,
        ],
    },
    "LLaMA-Factory": {
        "tools": json.dumps([FUNCTION]),
        "conversations": [
            from_("human", "sea, land?"),
            from_("function_call", json.dumps([look("sea"), look("land")])),
            *(from_("observation", said) for said in ("2", "red")),
            from_("gpt", "2 red"),
        ],
    },
    "ms-swift": {
        "tools": json.dumps([TOOL]),
        "messages": [
            ASK,
            *(role("tool_call", json.dumps(look(at))) for at in ("sea", "land")),
            *(role("tool_response", said) for said in ("2", "red")),
            SAY,
        ],
    },
    "ms-swift, tools as texts, and calls not": {
        "tools": [json.dumps(TOOL)],
        "messages": [
            ASK,
            *(role("tool_call", look(at)) for at in ("sea", "land")),
            *(role("function_response", said) for said in ("2", "red")),
            SAY,
        ],
    },
}


def encoder_of(policies: SamplePolicies | None = None, template: str = TEMPLATE) -> Any:
    config = FamilyConfig(
        conversation_template_config=ConversationTemplateConfig(chat_template=template),
        policies=policies or SamplePolicies(),
    )
    return text_encoder(qwen_tokenizer("qwen2_5_vl"), config, seq_length=2048)


def cooked(row: Any) -> Any:
    return cook_conversation(CrudeSample(__key__="k", json=row))


def learnt_and_read(row: Any, encoder: Any = None) -> tuple[str, str]:
    encoder = encoder or encoder_of()
    made = encoder.preencode_sample(cooked(row))
    decode = encoder.tokenizer.decode
    return decode(made.labels[made.loss_mask > 0]), decode(made.tokens)


@pytest.mark.parametrize("name", CHATS)
def test_calls_and_the_answer_to_what_they_return_are_learnt(name: str) -> None:
    learnt, read = learnt_and_read(CHATS[name])
    assert learnt == f"{BOTH}<|im_end|>2 red<|im_end|>"
    assert read.count("<|im_start|>user\n<back>2</back><back>red</back><|im_end|>") == 1
    assert json.loads(read[len("<tools>") : read.index("</tools>")]) == TOOL


def test_calls_of_one_turn_by_their_role_stay_with_its_words() -> None:
    turns = [ASK, role("assistant", "hm"), role("tool_call", json.dumps(look("sea"))), BACK[0], SAY, ASK, SAY]
    learnt, _ = learnt_and_read({"tools": [TOOL], "messages": turns})
    assert learnt == 'hm<call>look {"at": "sea"}</call><|im_end|>2 red<|im_end|>2 red<|im_end|>'


def test_an_answer_without_loss_is_not_joined_with_calls() -> None:
    turns = [ASK, role("assistant", "hm", weight=0), role("tool_call", json.dumps(look("sea"))), BACK[0], SAY]
    with pytest.raises(SampleError, match="'user', 'assistant', 'assistant', 'tool', 'assistant'; expected"):
        learnt_and_read({"tools": [TOOL], "messages": turns})
    learnt, _ = learnt_and_read(
        {"messages": [ASK, role("tool_call", json.dumps(look("sea")), loss=False), BACK[0], SAY]}
    )
    assert learnt == "2 red<|im_end|>"


def test_calls_are_without_loss_together() -> None:
    calls = [role("tool_call", look(at), loss=False) for at in ("sea", "land")]
    learnt, read = learnt_and_read({"messages": [ASK, *calls, *BACK, SAY]})
    assert learnt == "2 red<|im_end|>" and BOTH in read


def test_a_thought_before_a_call_is_learnt_and_what_returns_may_be_an_object() -> None:
    called = from_("function_call", f"<think>hm</think>\n{json.dumps(look('sea'))}")
    turns = [from_("human", "sea?"), called, from_("observation", {"num": 2}), from_("gpt", "2")]
    learnt, read = learnt_and_read({"conversations": turns, "tools": FUNCTION})
    assert learnt == '<think>hm</think><call>look {"at": "sea"}</call><|im_end|>2<|im_end|>'
    assert '<back>{"num": 2}</back>' in read


def test_null_fields_by_which_a_table_fills_tools_and_calls_are_left_out(tmp_path: Path) -> None:
    count = {"name": "count", "parameters": {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}}}
    called = [role("assistant", None, tool_calls=[{"function": call}]) for call in (look("sea"), {"name": "count"})]
    called[1]["tool_calls"][0]["function"]["arguments"] = {"n": 2}
    rows = [{"messages": [ASK, call], "tools": [TOOL, {"type": "function", "function": count}]} for call in called]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "calls.parquet")
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options = {"split_part": "train", "batch_size": 2, "worker_config": config, "task_encoder": encoder_of()}
    (batch,) = get_loader(get_val_dataset(os.fspath(tmp_path / "calls.parquet"), **options))
    decode = encoder_of().tokenizer.decode
    learnt = [decode(labels[mask > 0]) for labels, mask in zip(batch.labels, batch.loss_mask, strict=True)]
    assert learnt == ['<call>look {"at": "sea"}</call><|im_end|>', '<call>count {"n": 2}</call><|im_end|>']
    assert f"<tools>{json.dumps(TOOL)}{{" in decode(batch.tokens[0])


def test_the_names_of_openai_before_tools_are_known() -> None:
    called = role("assistant", None, function_call={"name": "look", "arguments": '{"at": "sea"}'})
    row = {"functions": [FUNCTION], "messages": [ASK, called, role("function", "2", name="look"), SAY]}
    learnt, read = learnt_and_read(row)
    assert learnt == '<call>look {"at": "sea"}</call><|im_end|>2 red<|im_end|>'
    assert "<back>2</back>" in read and '"look"' in read


@pytest.mark.parametrize(
    "called", [{"name": "look"}, {"name": "look", "arguments": ""}, {"name": "look", "parameters": {}}]
)
def test_a_call_without_arguments_has_none(called: dict[str, Any]) -> None:
    learnt, _ = learnt_and_read({"messages": [ASK, role("tool_call", json.dumps(called))]})
    assert learnt == "<call>look {}</call><|im_end|>"


@pytest.mark.parametrize("arguments", ['{"at": null}', '{"at": ""}', '{"at": []}'])
def test_arguments_that_are_empty_are_arguments(arguments: str) -> None:
    called = role("tool_call", f'{{"name": "look", "arguments": {arguments}}}')
    assert learnt_and_read({"messages": [ASK, called]})[0] == f"<call>look {arguments}</call><|im_end|>"


def test_questions_with_calls_for_an_answer_are_read_from_a_table(tmp_path: Path) -> None:
    row = {"id": 7, "query": "sea?", "tools": json.dumps([FUNCTION]), "answers": json.dumps([look("sea")])}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "calls.parquet")
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    options = {"split_part": "train", "batch_size": 1, "worker_config": config, "task_encoder": encoder_of()}
    (batch,) = get_loader(get_val_dataset(os.fspath(tmp_path / "calls.parquet"), **options))
    learnt = batch.labels[batch.loss_mask > 0]
    assert encoder_of().tokenizer.decode(learnt) == '<call>look {"at": "sea"}</call><|im_end|>'


@pytest.mark.parametrize(
    "turns",
    [
        [ASK, role("tool", "2"), SAY],
        [role("tool", "2"), ASK, SAY],
        [ASK, SAY, role("tool", "2"), SAY, SAY],
        [ASK, SAY, SAY, role("tool", "2"), SAY],
    ],
)
def test_what_a_tool_returns_comes_after_an_answer_alone(turns: list[dict[str, Any]]) -> None:
    with pytest.raises(SampleError, match=r"its roles are .*'tool'.*'tool' only after 'assistant'"):
        learnt_and_read({"messages": turns})


@pytest.mark.parametrize("name", ["tool", "critic"])
def test_a_turn_that_a_template_leaves_out_is_refused_though_its_words_are_said_again(name: str) -> None:
    template = TEMPLATE.replace("turn.role == 'tool'", "turn.role == 'x'")
    encoder = encoder_of(SamplePolicies(roles_out_of_order="keep"), template)
    with pytest.raises(SampleError, match=f"writes nothing of a turn of '{name}', '2'"):
        learnt_and_read({"messages": [ASK, SAY, role(name, "2"), SAY]}, encoder)
    assert learnt_and_read({"messages": [ASK, SAY, ASK, SAY]}, encoder)[0] == "2 red<|im_end|>" * 2


def test_a_template_that_reads_what_a_tool_returns_gets_that_alone() -> None:
    reads = TEMPLATE.replace("{{ turn.content }}</back>", "{{ {'2': 'two'}[turn.content] }}</back>")
    reads = reads.replace("{%- if turn.role == 'tool' %}", "{%- if turn.role == 'tool' %}{{ 1 // turn.content | int }}")
    learnt, _ = learnt_and_read({"messages": [ASK, SAY, role("tool", "2"), SAY]}, encoder_of(template=reads))
    assert learnt == "2 red<|im_end|>" * 2


def test_the_settings_of_another_encoder_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"config=MultiModalSampleConfig\(\.\.\.\)\): expected a FamilyConfig"):
        text_encoder(qwen_tokenizer("qwen2_5_vl"), MultiModalSampleConfig())  # type: ignore[arg-type]
