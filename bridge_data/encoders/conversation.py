"""Conversations: the turns of a sample, with one placeholder in the text for each image.

Enters: a captioning, VQA, text or conversation sample, such as `crude_conversation` makes of crude data. Leaves: turns
and images. Guarantee: the text holds as many placeholders as there are images, in their order; a sample without
anything to learn is skipped; other bad samples are handled as `SamplePolicies` says.
"""

import dataclasses
from typing import Any

from bridge_data.encoders.encoder_config import ConversationConfig, refuse
from bridge_data.errors import ConfigError, SampleError, SkipSample
from bridge_data.samples import CaptioningSample, Sample, TextSample, VQASample, edataclass


@edataclass
class ConversationSample(Sample):
    """Turns about any number of images, such as a cooker makes from crude data.

    `messages` are `{"role": ..., "content": ...}` in order. An answer with `"weight": 0` has no loss; `tool_calls` and
    the like are for the chat template. `images` are encoded bytes, Pillow images, or pixels as uint8 (H, W, 3) arrays
    or (3, H, W) tensors, uint8 or float32 in 0..1. `tools` are JSON schemas of what the assistant may call.
    """

    messages: list[dict[str, Any]]
    images: list[Any] = dataclasses.field(default_factory=list)
    tools: list[dict[str, Any]] = dataclasses.field(default_factory=list)


@edataclass
class VideoConversationSample(Sample):
    """Turns about images and videos: `messages`, `images` and `tools` as of `ConversationSample`; `videos` are
    `AVDecoder`s, encoded bytes, or frames as uint8 tensors (frames, 3, height, width). Each has a placeholder in the
    text; without any, they come before the first turn."""

    messages: list[dict[str, Any]]
    images: list[Any] = dataclasses.field(default_factory=list)
    videos: list[Any] = dataclasses.field(default_factory=list)
    tools: list[dict[str, Any]] = dataclasses.field(default_factory=list)


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
            _check_placeholders(sample, sample.text.count(config.placeholder), 0, config)
            return Conversation(text=sample.text)
        case ConversationSample():
            said = _with_placeholders(sample, sample.messages, sample.images, config)
            return dataclasses.replace(said, tools=sample.tools)
    raise ConfigError(
        f"sample {sample.__key__!r}: expected a CaptioningSample, VQASample, TextSample or ConversationSample, got "
        f"{type(sample).__name__}; add a cooker that makes one of these, or override `conversation` in a subclass"
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
    return _with_placeholders(sample, messages, [] if sample.image is None else [sample.image], config)


def _with_placeholders(
    sample: Sample, messages: list[dict[str, Any]], images: list[Any], config: ConversationConfig
) -> Conversation:
    template, placeholder = config.conversation_template_config, config.placeholder
    _check_answers(sample, messages, config)
    num_placeholders = sum(turn["content"].count(placeholder) for turn in messages)
    turns = [dict(turn) for turn in messages]
    if not num_placeholders:
        first = next((turn for turn in turns if turn["role"] == template.roles[0]), turns[0])
        first["content"] = f"{placeholder}\n" * len(images) + first["content"]
    else:
        _check_placeholders(sample, num_placeholders, len(images), config)
    _check_roles(sample, messages, config)
    if template.stop_string:
        for turn in turns:
            turn["content"] += template.stop_string if turn["role"] == template.roles[1] else ""
    if template.system is not None and turns[0]["role"] != "system":
        turns.insert(0, {"role": "system", "content": template.system})
    return Conversation(messages=turns, images=images)


def _check_answers(sample: Sample, messages: list[dict[str, Any]], config: ConversationConfig) -> None:
    answers = [turn for turn in messages if turn["role"] == config.conversation_template_config.roles[1]]
    said = [bool(turn["content"].strip() or turn.get("tool_calls")) for turn in answers]
    policy = config.policies.empty_answer
    if not all(said) and policy != "keep":
        refuse(policy, sample.__key__, f"answer {said.index(False) + 1} of {len(said)} has no words")
    known = {"system", *config.conversation_template_config.roles}
    learnt = [has_words for has_words, turn in zip(said, answers, strict=True) if turn.get("weight") != 0]
    if not any(learnt) and all(turn["role"] in known for turn in messages):
        raise SkipSample("it has no answer to learn from")


def _check_roles(sample: Sample, messages: list[dict[str, Any]], config: ConversationConfig) -> None:
    policy, roles = config.policies.roles_out_of_order, config.conversation_template_config.roles
    if policy == "keep":
        return
    got = [turn["role"] for turn in messages]
    turns = got[1:] if got[:1] == ["system"] else got
    if turns != [roles[number % 2] for number in range(len(turns))]:
        expected = f"one {'system'!r} at most, then {roles[0]!r} and {roles[1]!r} by turns"
        refuse(policy, sample.__key__, f"its roles are {', '.join(map(repr, got))}; expected {expected}")


def _check_placeholders(sample: Sample, found: int, num_images: int, config: ConversationConfig) -> None:
    if found != num_images:
        refuse(
            config.policies.image_mismatch,
            sample.__key__,
            f"the text has {found} placeholders {config.placeholder!r} for {num_images} images; there must "
            "be one for each, or none at all",
        )
