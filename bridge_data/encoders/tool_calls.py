"""Tools in chats, as people store them: what the assistant may call, its calls, and what they return.

Reads rows and turns; returns the turns of OpenAI, for which chat templates are written: calls at `tool_calls` of an
answer, with their arguments as a mapping, and what they return in turns of the role `tool`.

    OpenAI, transformers   `tools` of the row, `tool_calls` of an answer, turns of the role `tool`
    OpenAI, before         `functions`, `function_call`, the role `function`
    LLaMA-Factory, APIGen  turns of the role `function_call`, the JSON of a call or of a list of them, perhaps after
                           `<think>...</think>`, and `observation`
    ms-swift               the same, of the roles `tool_call` and `tool_response`; tools that are a JSON text each
    Llama                  the role `ipython`
    xLAM                   {"query": "text", "tools": [...], "answers": [the calls]}

A row may have its tools and calls as JSON in a text, too. Calls in the text of an answer, such as `<tool_call>...`,
stay there. Raises `SampleError` for calls without the name of a function.

In a table, all tools and calls have the fields of each other, as null where they have none. These are left out, unless
they are in a text: a call of `look` has no argument `n: null` because another tool has an `n`.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from bridge_data.encoders.chat_fields import is_empty
from bridge_data.errors import SampleError

TOOL = "tool"
"""The role of turns with what calls return."""

RETURNS = ("observation", "observations", "tool_response", "function_response", "function", "ipython")
"""What else that role is called."""

CALLS = ("function_call", "tool_call")
"""Roles of turns that are calls of the assistant, in JSON."""

OFFERED = ("tools", "functions")
"""Where a row has what the assistant may call."""

_CALL = ("role", "content", "tool_calls")

_MAY_BE_NULL = ("default", "const")
"""Fields of a schema that say something if they are null."""

_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)


def offered_tools(row: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """What the assistant may call in the conversation of a row, as JSON schemas.

    >>> offered_tools({"tools": '[{"name": "look"}]'}, "k")
    [{'type': 'function', 'function': {'name': 'look'}}]
    """
    found = {name: row[name] for name in OFFERED if not is_empty(row.get(name))}
    if len(found) > 1:
        raise SampleError(f"sample {key!r}: has {' and '.join(map(repr, found))}; expected one of them")
    for name, written in found.items():
        parsed = _parsed(written)
        tools = [_parsed(tool) for tool in (parsed if isinstance(parsed, list) else [parsed])]
        if not all(isinstance(tool, dict) for tool in tools):
            raise SampleError(f"sample {key!r}: its {name!r} are {repr(parsed)[:80]}; expected a list of JSON schemas")
        tools = [without_padding(tool) for tool in tools]
        return [{"type": "function", "function": tool} if _is_bare(tool) else tool for tool in tools]
    return []


def _is_bare(tool: Mapping[str, Any]) -> bool:
    """Whether a schema is that of a function alone, without the words around it that chat templates read."""
    return isinstance(tool.get("name"), str) and "function" not in tool and tool.get("type") in (None, "function")


def calls_of(written: Any, key: str) -> list[dict[str, Any]]:
    """The calls in a list of them, a single one, or the JSON of these.

    >>> calls_of('{"name": "look", "arguments": {"at": "sea"}}', "k")
    [{'type': 'function', 'function': {'name': 'look', 'arguments': {'at': 'sea'}}}]
    """
    calls = _parsed(written)
    return [_call(call, key) for call in (calls if isinstance(calls, list) else [calls])]


def without_padding(value: Any) -> Any:
    """A value without the null fields of mappings in it, which tables give to all for what one has.

    >>> without_padding({"name": "look", "arguments": {"at": "sea", "n": None}})
    {'name': 'look', 'arguments': {'at': 'sea'}}
    """
    if isinstance(value, dict):
        kept = {name: one for name, one in value.items() if one is not None or name in _MAY_BE_NULL}
        return {name: without_padding(one) for name, one in kept.items()}
    return [without_padding(one) for one in value] if isinstance(value, list) else value


def thought_and_calls(written: Any) -> tuple[str, Any]:
    """The thought before the JSON of calls, and the calls.

    >>> thought_and_calls('<think>Where?</think>{"name": "look"}')
    ('<think>Where?</think>', '{"name": "look"}')
    """
    thought = _THOUGHT.match(written) if isinstance(written, str) else None
    return ("", written) if thought is None else (thought[0], written[thought.end() :])


def _call(call: Any, key: str) -> dict[str, Any]:
    """A call with its arguments as a mapping: chat templates write them as JSON."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not (isinstance(function, dict) and isinstance(function.get("name"), str)):
        raise SampleError(f"sample {key!r}: a call of a tool is {repr(call)[:80]}; expected a function with a name")
    arguments = _parsed(function.get("arguments", function.get("parameters")))
    named = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    called = {"name": function["name"], "arguments": arguments or {}}
    return {**named, "type": "function", "function": called}


def turns_of_calls(asked: Any, written: Any) -> list[dict[str, Any]] | None:
    """The turns of a question that calls answer; None if it is none."""
    calls = _parsed(written)
    if not (isinstance(asked, str) and isinstance(calls, list) and calls):
        return None
    if not all(isinstance(call, dict) and "name" in call for call in calls):
        return None
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": "", "tool_calls": calls}]


def joined_calls(messages: Iterable[dict[str, Any]], answers: str) -> list[dict[str, Any]]:
    """The turns, with each that is nothing but calls in the turn of the role `answers` right before it: one answer.
    Both are learnt, or neither."""
    joined: list[dict[str, Any]] = []
    for turn in messages:
        if joined and _goes_on(joined[-1], turn, answers):
            joined[-1] = {**joined[-1], "tool_calls": [*joined[-1].get("tool_calls", ()), *turn["tool_calls"]]}
        else:
            joined.append(turn)
    return joined


def _goes_on(before: Mapping[str, Any], turn: Mapping[str, Any], answers: str) -> bool:
    """Whether a turn is nothing but calls of the answer `before`."""
    return (
        before["role"] == turn["role"] == answers
        and before.get("weight") == turn.get("weight")
        and before.keys() <= {*_CALL, "weight"}
        and turn.keys() - {"weight"} == {*_CALL}
        and not turn["content"]
    )


def _parsed(value: Any) -> Any:
    if isinstance(value, str):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value
