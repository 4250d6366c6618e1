"""Chat templates: a conversation to token ids, with a mark on those that an answer consists of.

Enters: messages or text, and a tokenizer of transformers. Leaves: ids and marks. Two ways to the marks: a template that
puts `{% generation %}` around answers says it itself; for others, the text up to an answer (with the prompt to answer)
and up to its end are rendered, and the difference is the answer. So a template that knows no such prompt marks the name
of the role with the answer.
"""

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

from bridge_data.encoders.multimodal_config import ConversationTemplateConfig
from bridge_data.errors import ConfigError

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
_PARTS = re.compile(r"""\[\s*['"]type['"]\s*\]|\.type\b|['"]type['"]""")

Span = tuple[int, int]
"""Characters of a text: the first, and the one behind the last."""


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
    tokenizer: Any, messages: list[dict[str, Any]], config: ConversationTemplateConfig
) -> MarkedTokens:
    """The conversation as the chat template writes it, with marks on the turns of `config.roles[1]`.

    Raises:
        ConfigError: if there is no chat template, or one that writes a turn differently once others follow it.
    """
    template = chat_template_of(tokenizer, config)
    text, spans = render_conversation(tokenizer, messages, template, config.roles[1])
    return tokenize_spans(tokenizer, text, spans)


def chat_template_of(tokenizer: Any, config: ConversationTemplateConfig, fallback: str | None = None) -> str:
    """The template that conversations are written with: that of the settings, or the tokenizer's (or processor's) own,
    or `fallback`. The settings may also name one of several templates of a tokenizer.

    Raises:
        ConfigError: if there is none, or not the one that is named.
    """
    own = getattr(tokenizer, "chat_template", None)
    named: dict[str, str] = own if isinstance(own, dict) else {}
    wanted: str | None = config.chat_template or (named.get("default") if named else own) or fallback
    if not wanted:
        known = f"; it has templates named {', '.join(map(repr, named))}" if named else ""
        raise ConfigError(
            f"{type(tokenizer).__name__} has no chat template, so it is not known how to write a conversation{known}; "
            "set ConversationTemplateConfig(chat_template=...): the model's own, or PLAIN_CHAT_TEMPLATE for no roles"
        )
    wanted = named.get(wanted, wanted)
    if "{" not in wanted:
        known = ", ".join(map(repr, named)) or "none"
        raise ConfigError(
            f"chat_template={wanted!r} is neither a template (there is no {{{{ ... }}}} or {{% ... %}} in it) nor the "
            f"name of one that {type(tokenizer).__name__} has (it has {known})"
        )
    return str(wanted)


def takes_parts(template: str) -> bool:
    """Whether a template wants the content of a message as parts (`{"type": "image"}`, `{"type": "text", ...}`), as
    those of processors do, rather than as a text."""
    return _PARTS.search(template) is not None


def render_conversation(
    tokenizer: Any, messages: list[dict[str, Any]], template: str, answers: str
) -> tuple[str, list[Span]]:
    """The conversation as text, and where in it the turns of the role `answers` are.

    Raises:
        ConfigError: if the template writes a turn differently once others follow it, and does not mark answers.
    """
    if not _GENERATION.search(template):
        return _answers_by_prefixes(tokenizer, messages, template, answers)
    from transformers.utils.chat_template_utils import render_jinja_template

    named_tokens = getattr(tokenizer, "tokenizer", tokenizer).special_tokens_map
    texts, spans = render_jinja_template(
        conversations=[messages], chat_template=template, return_assistant_tokens_mask=True, **named_tokens
    )
    return texts[0], [(start, end) for start, end in spans[0]]


def _answers_by_prefixes(
    tokenizer: Any, messages: list[dict[str, Any]], template: str, answers: str
) -> tuple[str, list[Span]]:
    def render(turns: list[dict[str, Any]], prompt: bool) -> str:
        options = {"chat_template": template, "add_generation_prompt": prompt, "tokenize": False}
        return str(tokenizer.apply_chat_template(turns, **options))

    text = render(messages, False)
    spans = []
    for number, turn in enumerate(messages):
        if turn["role"] != answers:
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


def tokenize_spans(
    tokenizer: Any, text: str, spans: Sequence[Span], *, add_special_tokens: bool = False
) -> MarkedTokens:
    """The tokens of `text`, with marks on those that touch one of `spans`, which are in order.

    A tokenizer that knows no offsets gets the text cut at the spans, piece by piece.
    """
    if getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(text, add_special_tokens=add_special_tokens, return_offsets_mapping=True)
        return MarkedTokens(list(encoded["input_ids"]), touching(encoded["offset_mapping"], spans))
    ids: list[int] = []
    marks: list[bool] = []
    cuts = [0, *itertools.chain.from_iterable(spans), len(text)]
    for number, (start, end) in enumerate(itertools.pairwise(cuts)):
        piece = tokenizer(text[start:end], add_special_tokens=False).input_ids if end > start else []
        ids.extend(piece)
        marks.extend([number % 2 == 1] * len(piece))
    if not add_special_tokens:
        return MarkedTokens(ids, marks)
    whole = list(tokenizer.build_inputs_with_special_tokens(ids))
    front = next((n for n in range(len(whole)) if whole[n : n + len(ids)] == ids), 0)
    behind = len(whole) - front - len(ids)
    return MarkedTokens(whole, [False] * front + marks + [False] * behind)


def touching(offsets: Sequence[Span], spans: Sequence[Span]) -> list[bool]:
    """Which tokens, by their characters, touch one of `spans`; both in order."""
    marks = []
    place = 0
    for start, end in offsets:
        while place < len(spans) and spans[place][1] <= start:
            place += 1
        marks.append(place < len(spans) and start < end and end > spans[place][0])
    return marks


def padding_token_of(tokenizer: Any) -> int:
    """The token that fills rows up: the padding token, else the end-of-sequence token, else 0. It is never learnt, and
    lengths are in the batch, so that any will do."""
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return int(next(number for number in ids if number is not None))


def only_token(tokenizer: Any, text: str) -> int:
    """The id of the one token that the placeholder `text` is.

    Raises:
        ConfigError: if it is several, or unknown.
    """
    ids = tokenizer(text, add_special_tokens=False).input_ids
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        raise ConfigError(
            f"the image placeholder {text!r} is no token of {type(tokenizer).__name__}: it becomes {ids}. Add it "
            f"(tokenizer.add_special_tokens({{'additional_special_tokens': [{text!r}]}}), and enlarge the embedding of "
            "the model), or name another one: MultiModalSampleConfig(image_token=ImageToken(token_str=...)), or the "
            "image_token of the family"
        )
    return int(ids[0])
