"""Chat templates: a conversation to token ids, with a mark on those that an answer consists of.

Enters: messages or text, and a tokenizer of transformers. Leaves: ids and marks. Two ways to the marks: a template that
puts `{% generation %}` around answers says it itself; for others, the text up to an answer (with the prompt to answer)
and up to its end are rendered, and the difference is the answer. So a template that knows no such prompt marks the name
of the role with the answer.
"""

import dataclasses
import itertools
import re
from typing import Any

from bridge_data.errors import ConfigError
from bridge_data.multimodal.config import ConversationTemplateConfig

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")

Span = tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class MarkedTokens:
    """Token ids; `is_answer` marks those that are to be learnt."""

    ids: list[int]
    is_answer: list[bool]


def tokenize_text(tokenizer: Any, text: str) -> MarkedTokens:
    """Plain text, all of it to be learnt, with an end-of-sequence token (where the tokenizer has one)."""
    ids = list(tokenizer(text).input_ids)
    if tokenizer.eos_token_id is not None and ids[-1:] != [tokenizer.eos_token_id]:
        ids.append(tokenizer.eos_token_id)
    return MarkedTokens(ids, [True] * len(ids))


def tokenize_conversation(
    tokenizer: Any, messages: list[dict[str, str]], config: ConversationTemplateConfig
) -> MarkedTokens:
    """The conversation as the chat template writes it, with marks on the turns of `config.roles[1]`.

    Raises:
        ConfigError: if there is no chat template, or one that writes a turn differently once others follow it.
    """
    template = config.chat_template or tokenizer.chat_template
    if not template:
        raise ConfigError(
            f"{type(tokenizer).__name__} has no chat template, so it is not known how to write a conversation; set "
            "ConversationTemplateConfig(chat_template=...): the model's own, or PLAIN_CHAT_TEMPLATE for no roles"
        )
    is_fast = getattr(tokenizer, "is_fast", False)
    if is_fast and isinstance(template, str) and _GENERATION.search(template):
        encoded = tokenizer.apply_chat_template(
            messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
        )
        return MarkedTokens(list(encoded["input_ids"]), [bool(mark) for mark in encoded["assistant_masks"]])
    text, spans = _answers_by_prefixes(tokenizer, messages, config)
    return _tokenize_spans(tokenizer, text, spans, by_offsets=is_fast)


def _answers_by_prefixes(
    tokenizer: Any, messages: list[dict[str, str]], config: ConversationTemplateConfig
) -> tuple[str, list[Span]]:
    """The conversation as text, and where in it the answers are."""

    def render(turns: list[dict[str, str]], prompt: bool) -> str:
        options = {"chat_template": config.chat_template, "add_generation_prompt": prompt, "tokenize": False}
        return str(tokenizer.apply_chat_template(turns, **options))

    text = render(messages, False)
    spans = []
    for number, turn in enumerate(messages):
        if turn["role"] != config.roles[1]:
            continue
        before = render(messages[:number], True) if number else ""
        through = text if number + 1 == len(messages) else render(messages[: number + 1], False)
        if not (text.startswith(before) and text.startswith(through)):
            raise ConfigError(
                "the chat template writes a turn differently once others follow it, so the answers cannot be found; "
                "put {% generation %} and {% endgeneration %} around the answers in the template, and set it as "
                "ConversationTemplateConfig(chat_template=...)"
            )
        spans.append((len(before), len(through.rstrip())))
    return text, spans


def _tokenize_spans(tokenizer: Any, text: str, spans: list[Span], *, by_offsets: bool) -> MarkedTokens:
    """The tokens of `text`, with marks on those that touch one of `spans`.

    Without offsets the text is cut at the spans, and its pieces are tokenized one by one.
    """
    if by_offsets:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        marks = [any(a < end and b > start for start, end in spans) for a, b in encoded["offset_mapping"]]
        return MarkedTokens(list(encoded["input_ids"]), marks)
    ids: list[int] = []
    marks = []
    cuts = [0, *itertools.chain.from_iterable(spans), len(text)]
    for number, (start, end) in enumerate(itertools.pairwise(cuts)):
        piece = tokenizer(text[start:end], add_special_tokens=False).input_ids if end > start else []
        ids.extend(piece)
        marks.extend([number % 2 == 1] * len(piece))
    return MarkedTokens(ids, marks)
