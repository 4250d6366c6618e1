"""Conversations: from crude data to samples, and from samples to turns with one placeholder for each image.

    crude sample ─ cook_conversation ─▶ ConversationSample, VideoConversationSample ┐
                       captioning, VQA and text samples of any other origin ────────┴ conversation_of ─▶ Conversation

`cook_conversation` reads the shapes in which people store chats: the part `json`, such as a line of a JSONL file, or
without one the columns of a table. What would change the conversation and is not supported is a `SampleError`, never
dropped silently; `chat_fields` has the meaning of each field.

    OpenAI, transformers   {"messages": [{"role": "user", "content": "text, or a list of parts"}, ...]}
    ShareGPT               {"conversations": [{"from": "human", "value": "text"}, ...], "system": "text"}
    LMSYS, WildChat        {"conversation": [{"role": "user", "content": "text"}, ...], "conversation_id": "1"}
    MOSS, ms-swift         {"conversation": [{"human": "text", "assistant": "text"}, ...], "system": "text"}
    LLaVA                  {"image": "cat.jpg", "conversations": [{"from": "human", "value": "<image> What?"}, ...]}
    the Cauldron           {"images": [...], "texts": [{"user": "text", "assistant": "text"}, ...]}, also FineVision's
    Alpaca                 {"instruction": "text", "input": "text, or nothing", "output": "text"}
    ms-swift               {"query": "text", "response": "text"}; as with Alpaca, "history": [["text", "text"], ...]
    Dolly, NuminaMath, FLAN {"instruction": ..., "response": ...}, "problem" and "solution", "inputs" and "targets"
    GSM8K, OpenOrca        {"question": "text", "answer": "text"}, or "response"
    prompt, completion     {"prompt": "text, or turns without answers", "completion": "text, or turns"}

Turns may be a text that is the JSON of their list.

An answer with `weight` or `loss_scale` 0, with `train` or `loss` false, or in a `prompt`, has no loss. Tools, calls of
them and what they return (see `tool_calls`), and the `reasoning_content` of turns, go to the chat template.

Images and videos are the other parts of the sample; or they are in parts of content or at `image`, `images`, `video`,
`videos`, as bytes, or as names of files in the auxiliary data of the metadataset; without any, next to the JSONL file.
Settings of one (`fps`, `max_pixels`: see `visual_settings`) make it a `Visual`. A video may be a list or a folder of
pictures.

The text that `conversation_of` returns has as many placeholders as there are images, in their order. A sample without
anything to learn is skipped; other bad samples are handled as `SamplePolicies` says.
"""

import contextlib
import dataclasses
import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from bridge_data.encoders.chat import check_unicode
from bridge_data.encoders.chat_fields import (
    LEARNT,
    NO,
    NOT_LEARNT,
    PART,
    ROW,
    THROUGH,
    TURN,
    YES,
    check_fields,
    is_empty,
)
from bridge_data.encoders.encoder_config import ConversationConfig, refuse
from bridge_data.encoders.fitting_class import FOR_DOCUMENTS, way_out
from bridge_data.encoders.sample_media import SampleMedia
from bridge_data.encoders.tool_calls import (
    CALLS,
    RETURNS,
    TOOL,
    calls_of,
    joined_calls,
    offered_tools,
    thought_and_calls,
    turns_of_calls,
    without_padding,
)
from bridge_data.errors import ConfigError, SampleError, SkipSample
from bridge_data.samples import (
    CaptioningSample,
    CrudeSample,
    InterleavedSample,
    Sample,
    SimilarityInterleavedSample,
    TextSample,
    VQASample,
    edataclass,
)
from bridge_data.samples.collation import PROVENANCE
from bridge_data.task import Cooker, basic_sample_keys, fields_in_words, stateless
from bridge_data.task.stores import FileStore

# Samples


@edataclass
class ConversationSample(Sample):
    """Turns about any number of images, such as a cooker makes from crude data.

    `messages` are `{"role": ..., "content": ...}` in order. An answer with `"weight": 0` has no loss; `tool_calls` and
    the like are for the chat template. `images` are encoded bytes, Pillow images, or pixels as uint8 (H, W, 3) arrays
    or (3, H, W) tensors, uint8 or float32 in 0..1; or a `Visual` of one. `tools` are JSON schemas of what the assistant
    may call.

    >>> sample = ConversationSample(
    ...     __key__="0.tar/7",
    ...     messages=[{"role": "user", "content": "What is 1 + 1?"}, {"role": "assistant", "content": "2"}],
    ... )
    >>> sample.messages[1]["content"]
    '2'
    """

    messages: list[dict[str, Any]]
    images: list[Any] = dataclasses.field(default_factory=list)
    tools: list[dict[str, Any]] = dataclasses.field(default_factory=list)


@edataclass
class VideoConversationSample(Sample):
    """Turns about images and videos: `messages`, `images` and `tools` as of `ConversationSample`; `videos` are
    `AVDecoder`s, encoded bytes, frames as uint8 tensors (frames, 3, height, width), or lists of images of one size; or
    a `Visual` of one, which may say `sample_fps` or `times` of frames. Each has a placeholder in the text; without any,
    they come before the first turn."""

    messages: list[dict[str, Any]]
    images: list[Any] = dataclasses.field(default_factory=list)
    videos: list[Any] = dataclasses.field(default_factory=list)
    tools: list[dict[str, Any]] = dataclasses.field(default_factory=list)


# From crude data

IMAGE, VIDEO = "<image>", "<video>"

TURNS = ("messages", "conversations", "conversation")
"""Where the turns of a conversation are."""

EXCHANGES = "texts"
"""Or questions with their answers."""

_SIDES = (("user", "assistant"), ("human", "assistant"), ("human", "gpt"))
"""What is said in each."""

_PROMPTED = ("prompt", "completion")
PAIRS = (
    ("instruction", "output"),
    ("query", "response"),
    ("instruction", "response"),
    ("prompt", "response"),
    ("problem", "solution"),
    ("inputs", "targets"),
    ("question", "answer"),
    ("question", "response"),
    _PROMPTED,
)
"""Or a question and its answer: texts, or of `_PROMPTED` also turns."""

_PAIRS_IN_WORDS = ", or ".join(f"{asks!r} and {answers!r}" for asks, answers in PAIRS)

_TURN_KEYS = (("role", "content"), ("from", "value"))
"""Where a turn says who speaks, and what."""

_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "developer": "system",
    **dict.fromkeys(CALLS, "assistant"),
    **dict.fromkeys(RETURNS, TOOL),
}
_PLAIN = {"json", "__shard__", *PROVENANCE}
"""The fields of a crude sample that is nothing but a chat."""


def listed_turns(value: Any) -> Any:
    """The list that a text of JSON is, as tables have turns of several forms; any other value as it is."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def are_exchanges(value: Any) -> bool:
    """Whether `value` is a list of questions with their answers, as of the Cauldron: texts of documents are none."""
    return isinstance(value, list) and bool(value) and all(_sides_of(one) for one in value)


def _sides_of(value: Any) -> tuple[str, str] | None:
    """Where a question and its answer are in a mapping; None if it is none."""
    return next((sides for sides in _SIDES if value.keys() >= {*sides}), None) if isinstance(value, dict) else None


def is_chat(row: Mapping[str, Any]) -> bool:
    """Whether a row has turns, in any of the shapes that `cook_conversation` reads."""
    return (
        any(row.get(name) for name in TURNS)
        or are_exchanges(listed_turns(row.get(EXCHANGES)))
        or any(row.keys() >= {*pair} for pair in PAIRS)
        or turns_of_calls(row.get("query"), row.get("answers")) is not None
    )


def _turns_of(content: Mapping[str, Any], key: str) -> tuple[Any, tuple[str, ...]]:
    """The turns of a conversation in JSON, as people store them, and the fields that hold them; (None, ()) if it holds
    none.

    Raises:
        SampleError: for a form that cannot be read without loss.
    """
    for name in (*TURNS, EXCHANGES):
        turns = listed_turns(content.get(name))
        if are_exchanges(turns):
            return [turn for one in turns for turn in _turns_of_exchange(one)], (name,)
        if turns and name in TURNS:
            return turns, (name,)
    if (turns := turns_of_calls(content.get("query"), content.get("answers"))) is not None:
        return turns, ("query", "answers")
    for asks, answers in PAIRS[:-1]:
        asked, answer, more = (content.get(name) for name in (asks, answers, "input"))
        if isinstance(asked, str) and isinstance(answer, str) and isinstance(more, str | None):
            last = {"user": "\n".join(filter(None, (asked, more))), "assistant": answer}
            exchanges = [*_history(content, asks, key), last]
            used = (asks, answers, "input", *(["history"] * (len(exchanges) > 1)))
            return [turn for one in exchanges for turn in _turns_of_exchange(one)], used
    asked, answer = (content.get(name) for name in _PROMPTED)
    if not (isinstance(asked, str | list) and isinstance(answer, str | list)):
        return None, ()
    before = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    after = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
    before = [{**turn, "weight": 0} if isinstance(turn, dict) else turn for turn in before]
    return [*before, *after], _PROMPTED


def _turns_of_exchange(exchange: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A question and its answer as two turns; what else is said there is said of the answer."""
    asks, answers = _sides_of(exchange) or _SIDES[0]
    yield {"role": "user", "content": exchange[asks]}
    more = {name: value for name, value in exchange.items() if name not in (asks, answers)}
    yield {**more, "role": "assistant", "content": exchange[answers]}


def _history(content: Mapping[str, Any], asks: str, key: str) -> list[dict[str, Any]]:
    """The questions and answers before the one at `asks`.

    Raises:
        SampleError: if they are no pairs of texts.
    """
    history = [] if is_empty(content.get("history")) else listed_turns(content["history"])
    pairs = [pair for pair in history if isinstance(pair, list) and len(pair) == 2] if isinstance(history, list) else []
    if pairs != history or not all(isinstance(text, str) for pair in pairs for text in pair):
        raise SampleError(
            f"sample {key!r}: has beside {asks!r} the 'history' {repr(history)[:80]}; expected a list of pairs of "
            "texts, each a question and its answer: write all turns as a list at 'messages', or remove it from the data"
        )
    return [{"user": question, "assistant": answer} for question, answer in pairs]


@stateless
def cook_conversation(
    sample: CrudeSample, *, image_placeholder: str = IMAGE, video_placeholder: str = VIDEO, **stores: FileStore[Any]
) -> ConversationSample | VideoConversationSample:
    """A conversation of crude data: turns in the part `json`, and the images and videos next to it or named in it.

    The turns are a list, or the list at `messages`, `conversations` or `conversation`; each has `role` and `content`,
    or `from` and `value`. Or they are `instruction` (with `input` in the next line) and `output`, or `prompt` and
    `completion`. Without a part `json`, these are parts of the sample, such as the columns of a table. Images and
    videos are in the order of their parts' names, with numbers compared as numbers (2.jpg before 10.jpg); those that
    are named, in that order. `stores` are the auxiliary data: one store, or of several the one called `images` or
    `videos`. The placeholders are those of the encoder.

    >>> from bridge_data import DefaultTaskEncoder
    >>> class Encoder(DefaultTaskEncoder):
    ...     cookers = [Cooker(cook_conversation)]
    >>> row = {"conversations": [{"from": "human", "value": "1 + 1?"}, {"from": "gpt", "value": "2"}]}
    >>> cook_conversation(CrudeSample({"__key__": "0.tar/7", "json": row})).messages
    [{'role': 'user', 'content': '1 + 1?'}, {'role': 'assistant', 'content': '2'}]

    Raises:
        SampleError: if it holds no turns, or something that a conversation cannot hold.
        ConfigError: if the location of files is unknown.
    """
    if (plain := _plain_turns(sample)) is not None:
        return ConversationSample(**basic_sample_keys(sample), messages=plain)
    media = SampleMedia(sample, stores, {"image": image_placeholder, "video": video_placeholder})
    content, beside = sample.get("json"), media.other_parts()
    if "json" not in sample:
        content, beside = beside, {}
    turns, used = _turns_of(content, media.key) if isinstance(content, dict) else (content, ())
    if not isinstance(turns, list) or not turns:
        raise SampleError(
            f"sample {media.key!r}: expected a part json with a list of turns, or with one at 'messages', "
            f"'conversations' or 'conversation', or with 'texts' (of 'user' and 'assistant'), {_PAIRS_IN_WORDS}. "
            f"Its fields are {fields_in_words(sample)}. {way_out(sample)}"
        )
    messages = joined_calls((_turn(turn, media) for turn in turns), "assistant")
    row = {**beside, **content} if isinstance(content, dict) else beside
    messages = _with_system(messages, row, media.key)
    media.add_named(row)
    media.check_fields(ROW, row, used=used, said=[turn["content"] for turn in messages])
    tools = offered_tools(row, media.key)
    images, videos = media.opened()
    if videos and not images and sum(turn["content"].count(IMAGE) for turn in messages) == len(videos):
        _rename(messages, IMAGE, video_placeholder, True)  # LLaVA-Video writes `<image>` for a video
    for kind, usual, found in (("image", IMAGE, images), ("video", VIDEO, videos)):
        _rename(messages, usual, media.placeholders[kind], bool(found))
        media.check_promised(kind, messages, len(found))
    fields = {**basic_sample_keys(sample), "messages": messages, "images": images, "tools": tools}
    return VideoConversationSample(**fields, videos=videos) if videos else ConversationSample(**fields)


def _plain_turns(sample: CrudeSample) -> list[dict[str, Any]] | None:
    """The turns of a sample that is nothing but roles and texts, as most chats are; None if there is anything else."""
    content = sample.get("json")
    if not isinstance(content, dict) or len(content) != 1 or not sample.keys() <= _PLAIN:
        return None
    turns = next((content[name] for name in TURNS if name in content), None)
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], dict):
        return None
    at_role, at_text = _TURN_KEYS["from" in turns[0]]
    made = []
    for turn in turns:
        if not isinstance(turn, dict) or turn.keys() != {at_role, at_text}:
            return None
        role, text = turn[at_role], turn[at_text]
        if not isinstance(role, str) or not isinstance(text, str) or role in CALLS:
            return None
        made.append({"role": _ROLES.get(role, role), "content": text})
    return made


def conversation_cooker(image_placeholder: str, video_placeholder: str = VIDEO) -> Cooker[Any]:
    """The cooker of an encoder of conversations that has these placeholders."""
    cook = functools.partial(
        cook_conversation, image_placeholder=image_placeholder, video_placeholder=video_placeholder
    )
    return Cooker(stateless(cook))


def _with_system(messages: list[dict[str, Any]], row: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The turns with the system text of the row in front, if they have none."""
    has_own = messages[0]["role"] == "system"
    found = {name: row[name] for name in ("system", "system_prompt") if not is_empty(row.get(name))}
    said = list(found.values()) + [turn["content"] for turn in messages[:1] if has_own]
    if any(text != said[0] for text in said) or not all(isinstance(text, str) for text in said):
        raise SampleError(
            f"sample {key!r}: has {' and '.join(map(repr, found))}{' and a system turn' if has_own else ''}, which are "
            f"{', '.join(repr(text)[:80] for text in said)}; expected one system text. Keep one of them in the data"
        )
    return messages if has_own or not said else [{"role": "system", "content": said[0]}, *messages]


def _rename(messages: list[dict[str, Any]], usual: str, placeholder: str, has_any: bool) -> None:
    """Replace the usual placeholder in the data with the encoder's."""
    if has_any and usual != placeholder and not any(placeholder in turn["content"] for turn in messages):
        for turn in messages:
            turn["content"] = turn["content"].replace(usual, placeholder)


def _turn(turn: Any, media: SampleMedia) -> dict[str, Any]:
    for role, content in _TURN_KEYS:
        if not (isinstance(turn, dict) and isinstance(turn.get(role), str)):
            continue
        name, said = _ROLES.get(turn[role]) or str(turn[role]), turn.get(content)
        if turn[role] in CALLS:
            said, calls = thought_and_calls(said)
            turn = {**turn, content: said, "tool_calls": calls}
        if isinstance(said, str) and len(turn) == 2:  # as most turns are
            return {"role": name, "content": said}
        if said is None and (turn.get("tool_calls") or turn.get("function_call")):
            said = ""
        if isinstance(said, list):
            said = _joined([_text_of(part, media) for part in said])
        if isinstance(said, dict) and name == TOOL:
            with contextlib.suppress(TypeError):
                said = json.dumps(said, ensure_ascii=False)
        if isinstance(said, str):
            names = [turn[role], name, *(alias for alias, known in _ROLES.items() if known == name)]
            media.check_fields(TURN, turn, used=(role, content), said=[said, *names])
            return {"role": name, "content": said, **_more_of(without_padding(turn), name, "assistant", media.key)}
    raise SampleError(
        f"sample {media.key!r}: a turn is {repr(turn)[:80]}; expected a text (or a list of parts) at 'role' and "
        "'content', or at 'from' and 'value'"
    )


def _more_of(turn: Mapping[str, Any], role: str, answers: str, key: str) -> dict[str, Any]:
    """The other fields of a turn that change the conversation: no loss on a turn of the role `answers`, and what is for
    the chat template."""
    more: dict[str, Any] = {}
    if _is_learnt(turn, role == answers, key) is False and role == answers:
        more["weight"] = 0
    if calls := turn.get("tool_calls") or turn.get("function_call"):
        more["tool_calls"] = calls_of(calls, key)
    if role == TOOL:
        more |= {name: turn[name] for name in ("name", "tool_call_id") if isinstance(turn.get(name), str)}
    else:
        more |= {name: turn[name] for name in THROUGH if not is_empty(turn.get(name)) and turn[name] != role}
    return more


def _is_learnt(turn: Mapping[str, Any], is_answer: bool, key: str) -> bool | None:
    """Whether a turn is to be learnt; None if it does not say so. Turns that are no answers never are."""
    said: dict[str, bool] = {}
    for name in (*LEARNT, *NOT_LEARNT) if is_answer else (*LEARNT[1:], *NOT_LEARNT):
        value = turn.get(name)
        plain = value.lower() if isinstance(value, str) else value
        if is_empty(value):
            continue
        if isinstance(plain, list | dict) or plain not in (*YES, *NO):
            raise SampleError(
                f"sample {key!r}: a turn has {name} {repr(value)[:80]}; expected 0 or 1, false or true: a turn is "
                "learnt whole or not at all. Remove it, or write a cooker"
            )
        said[name] = (plain in YES) == (name in LEARNT)
    if len({*said.values()}) > 1 or (any(said.values()) and not is_answer):
        why = "which say different things" if is_answer else "but is no answer, and only answers are learnt"
        raise SampleError(
            f"sample {key!r}: a turn has {', '.join(f'{name} {turn[name]!r}' for name in said)}, {why}. Remove them, "
            "or write a cooker"
        )
    return next(iter(said.values()), None)


def _text_of(part: Any, media: SampleMedia) -> tuple[str, bool]:
    """A part of a turn's content as text, and whether it is an image or a video."""
    if isinstance(part, str):
        return part, False
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        media.check_fields(PART, part, used=("text",))
        return part["text"], False
    placeholder = media.placeholder_of(part)
    if placeholder is not None:
        return placeholder, True
    raise SampleError(
        f"sample {media.key!r}: a part of a turn is {repr(part)[:80]}; expected one of type 'text', 'image', "
        "'image_url', 'video' or 'video_url'"
    )


def _joined(pieces: list[tuple[str, bool]]) -> str:
    """The parts of a turn as text, with a line break after images and videos (True)."""
    text = ""
    for number, (piece, is_media) in enumerate(pieces):
        text += piece + ("\n" if is_media and number + 1 < len(pieces) else "")
    return text


# From samples


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """`messages` and `tools` for a chat template, or `text` to be learnt whole; and the images in them."""

    messages: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    text: str = ""
    images: list[Any] = dataclasses.field(default_factory=list)
    tools: list[dict[str, Any]] = dataclasses.field(default_factory=list)


def conversation_of(sample: Any, config: ConversationConfig) -> Conversation:
    """The conversation of `sample`.

    A caption answers `config.caption_prompt`. Of several answers, the one with the largest weight is taken (the first
    of equals). A text is learnt whole. Without any placeholder in the text, images come before the first turn.

    Raises:
        SkipSample: if there is no answer, caption or text to learn, or as `config.policies` says.
        SampleError: if the turns are wrong, as `config.policies` says.
        ConfigError: for any other class of sample.
    """
    match sample:
        case CaptioningSample():
            return _dialog(sample, config, config.caption_prompt, sample.caption)
        case VQASample():
            return _dialog(sample, config, sample.context, _best_answer(sample))
        case TextSample():
            if not sample.text.strip():
                raise SkipSample("its text has no words")
            said = Conversation(text=sample.text)
            return with_placeholders(said, config.placeholder, 0, "images", config, sample.__key__)
        case ConversationSample():
            said = Conversation(messages=sample.messages, images=sample.images, tools=sample.tools)
            return _by_the_rules(sample, said, config)
    fix = "add a cooker that makes one of these, or override `conversation` in a subclass"
    if isinstance(sample, VideoConversationSample):
        fix = "it has videos, which QwenVLTaskEncoder takes: use that, or leave such rows out"
    if isinstance(sample, InterleavedSample | SimilarityInterleavedSample):
        fix = f"{FOR_DOCUMENTS}; if its texts are turns, add a cooker that makes a ConversationSample"
    raise ConfigError(
        f"sample {sample.__key__!r}: expected a CaptioningSample, VQASample, TextSample or ConversationSample, got "
        f"{type(sample).__name__}; {fix}"
    )


def _best_answer(sample: VQASample) -> str:
    answers: Any = sample.answers
    weights = sample.answer_weights
    if isinstance(answers, str):  # a field map may name a text part
        return answers
    if not answers:
        raise SkipSample("it has no answers")
    best = 0 if weights is None else max(range(len(answers)), key=lambda i: (float(weights[i]), -i))
    answer = answers[best]
    if not isinstance(answer, str):
        which = f"answer {best + 1} of {len(answers)}"
        raise SampleError(f"sample {sample.__key__!r}: {which} is {answer!r:.80}, expected text")
    return answer


def _dialog(
    sample: CaptioningSample | VQASample, config: ConversationConfig, question: str, answer: str
) -> Conversation:
    asks, answers = config.conversation_template_config.roles
    if config.placeholder in answer:
        raise SampleError(f"sample {sample.__key__!r}: the answer {answer[:80]!r} holds the placeholder of an image")
    messages = [{"role": asks, "content": question}, {"role": answers, "content": answer.strip()}]
    images = [] if sample.image is None else [sample.image]
    return _by_the_rules(sample, Conversation(messages=messages, images=images), config)


def _by_the_rules(sample: Sample, said: Conversation, config: ConversationConfig) -> Conversation:
    """The checked turns of a sample, with placeholders, stop strings and the system message."""
    template = config.conversation_template_config
    said = dataclasses.replace(said, messages=[_checked(turn, sample, config) for turn in said.messages])
    _check_answers(sample, said.messages, config)
    said = with_placeholders(said, config.placeholder, len(said.images), "images", config, sample.__key__)
    _check_roles(sample, said.messages, config)
    if template.stop_string:
        for turn in said.messages:  # which are no longer those of the sample
            turn["content"] += template.stop_string if turn["role"] == template.roles[1] else ""
    if template.system is not None and said.messages[0]["role"] != "system":
        said.messages.insert(0, {"role": "system", "content": template.system})
    return said


def _checked(turn: dict[str, Any], sample: Sample, config: ConversationConfig) -> dict[str, Any]:
    """A turn that any cooker made, with what `cook_conversation` makes of its fields; others are for the template."""
    if turn.keys() == {"role", "content"}:  # as most turns have
        return dict(turn)
    key, said = sample.__key__, [turn["content"], turn["role"]]
    check_fields(TURN, turn, key, used=("role", "content"), said=said)
    others = {name: value for name, value in turn.items() if name not in TURN.used}
    return others | _more_of(turn, turn["role"], config.conversation_template_config.roles[1], key)


_TAG = re.compile(
    r"<\|?(?:(?:start|begin|end)_of_|vila/)?"
    r"(?:image|img|photo|frame|video|vid|vision|audio|speech|sound|voice|media|region|depth|point_?cloud"
    r"|bbox|ref-object|start-image|cot-process|mask|seg|point)s?"
    r"(?:[ _-]?(?:context|placeholder|here|soft|tokens?|pad|start|begin|end|bos|eos|patch|content|\d+))*\|?>"
    r"|<im_(?:start|end|patch)>",
    re.IGNORECASE,
)
"""What stands for a medium, or a place in one, in the texts of published data: `<audio>`, `<image_1>`, `<|video|>`."""


def check_texts(said: Conversation, placeholders: Collection[str], config: ConversationConfig, key: str) -> None:
    """Refuse sample `key` if its texts are not Unicode, or if a tag in its turns stands for a medium, and is none of
    the `placeholders` that the encoder fills in: as the policies say."""
    check_unicode([said.text, said.messages, said.tools], key)
    if config.policies.media_tags == "keep":
        return
    tags = (tag for turn in said.messages for tag in _TAG.findall(turn["content"]))
    unknown = next((tag for tag in tags if tag not in placeholders), None)
    if unknown is not None:
        refuse(
            config.policies.media_tags,
            key,
            f"a turn has {unknown!r}, which stands for a medium, or a place in one; this encoder fills in "
            f"{' and '.join(map(repr, placeholders))} alone. Use one that takes it, write the placeholder as it "
            "expects it, or leave the row out; SamplePolicies(media_tags='keep') learns it as a text",
        )


def with_placeholders(
    said: Conversation, placeholder: str, number: int, kind: str, config: ConversationConfig, key: str
) -> Conversation:
    """The conversation of sample `key` with a placeholder for each of its `number` images or videos (`kind`): those
    that it has, or else new ones before the first question. Another number of them is handled as the policies say."""
    found = said.text.count(placeholder) + sum(turn["content"].count(placeholder) for turn in said.messages)
    if found != number and (found or not said.messages):
        refuse(
            config.policies.image_mismatch,
            key,
            f"the text has {found} placeholders {placeholder!r} for {number} {kind}; there must be one for each, or "
            "none at all",
        )
    if found or not number:
        return said
    turns = [dict(turn) for turn in said.messages]
    asks = config.conversation_template_config.roles[0]
    first = next((turn for turn in turns if turn["role"] == asks), turns[0])
    first["content"] = f"{placeholder}\n" * number + first["content"]
    return dataclasses.replace(said, messages=turns)


def check_written(found: int, number: int, kind: str, config: ConversationConfig, key: str) -> None:
    """Refuse sample `key` if the chat template wrote `found` tokens of images or videos (`kind`) for `number`."""
    if found != number:
        refuse(
            config.policies.image_mismatch,
            key,
            f"the chat template made {found} {kind} placeholders of {number}; some write none in answers, say: move "
            "them into the questions, or set ConversationTemplateConfig(chat_template=...) to one that writes them",
        )


def _check_answers(sample: Sample, messages: list[dict[str, Any]], config: ConversationConfig) -> None:
    answers = [turn for turn in messages if turn["role"] == config.conversation_template_config.roles[1]]
    said = [bool(turn["content"].strip() or turn.get("tool_calls")) for turn in answers]
    policy = config.policies.empty_answer
    if not all(said) and policy != "keep":
        refuse(policy, sample.__key__, f"answer {said.index(False) + 1} of {len(said)} has no words")
    known = {"system", TOOL, *config.conversation_template_config.roles}
    learnt = [has_words for has_words, turn in zip(said, answers, strict=True) if turn.get("weight") != 0]
    if not any(learnt) and all(turn["role"] in known for turn in messages):
        raise SkipSample("it has no answer to learn from")


def _check_roles(sample: Sample, messages: list[dict[str, Any]], config: ConversationConfig) -> None:
    policy, roles = config.policies.roles_out_of_order, config.conversation_template_config.roles
    if policy == "keep":
        return
    got = [turn["role"] for turn in messages]
    turns = _without_tools(got[1:] if got[:1] == ["system"] else got, roles[1])
    if turns != [roles[number % 2] for number in range(len(turns))]:
        expected = f"one {'system'!r} at most, then {roles[0]!r} and {roles[1]!r} by turns, "
        expected += f"{TOOL!r} only after {roles[1]!r}"
        more = (
            "; SamplePolicies(roles_out_of_order='keep') leaves them to the chat template" if policy == "error" else ""
        )
        refuse(policy, sample.__key__, f"its roles are {', '.join(map(repr, got))}; expected {expected}{more}")


def _without_tools(roles: Sequence[str], answers: str) -> list[str]:
    """The roles of turns, with an answer, what its calls return, and what it says to that as one turn."""
    kept: list[str] = []
    for role, before in zip(roles, ["", *roles], strict=False):
        if role == TOOL and before in (answers, TOOL):
            continue
        if not (role == answers and before == TOOL and kept[-1:] == [answers]):
            kept.append(role)
    return kept
