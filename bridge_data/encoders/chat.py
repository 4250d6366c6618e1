"""Chat templates: a conversation becomes text, and the ranges of characters that are its answers.

Reads messages, and a tokenizer (or processor) of transformers. Returns what `tokens` takes; each image is still one
token. A template is untrusted code: it runs in Jinja's sandbox. Its time and memory are not limited there; of a
template that does not end, the watchdog of workers names the sample.

A template with `{% generation %}` around answers marks them itself; of any other, `chat_answers` finds them, once for
conversations that a `Frame` fits.
"""

import contextlib
import functools
import itertools
import logging
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from bridge_data.encoders.chat_answers import spans_of_answers
from bridge_data.encoders.chat_fields import THROUGH
from bridge_data.encoders.chat_frames import Frame, Shape, shape_of, texts_of
from bridge_data.encoders.chat_turns import WORD, in_form_of, said
from bridge_data.encoders.encoder_config import ConversationTemplateConfig
from bridge_data.encoders.template_settings import with_settings
from bridge_data.encoders.tokens import Span
from bridge_data.errors import BridgeDataError, ConfigError, SampleError

logger = logging.getLogger("bridge_data")

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")

T = TypeVar("T")

_CHATML = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}
{%- for part in message['content'] if part['type'] == 'text' -%}{{- part['text'] -}}{%- endfor -%}
{{- '<|im_end|>' -}}
{%- endgeneration -%}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{- 'IMAGE' -}}
{%- elif part['type'] == 'video' -%}{{- 'VIDEO' -}}
{%- else -%}{{- part['text'] -}}{%- endif -%}
{%- endfor -%}
{{- '<|im_end|>' -}}
{%- endif -%}
{{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def chatml(*, image: str, video: str = "") -> str:
    """ChatML: a template with `image` and `video` at their positions in a turn, and marks on the answers."""
    return _CHATML.replace("IMAGE", image).replace("VIDEO", video)


def check_unicode(value: Any, key: str) -> None:
    """A SampleError for half of a surrogate pair in the texts of sample `key`, which tokenizers do not take: in a text,
    or anywhere in lists and mappings of them."""
    if isinstance(value, str):
        if value.isascii():
            return
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise SampleError(
                f"sample {key!r}: character {error.start} of a text is {value[error.start]!a}, after "
                f"{value[max(0, error.start - 20) : error.start]!r}: half of a pair (a lone surrogate), which is no "
                "Unicode. Write the whole character, or remove it"
            ) from None
    elif isinstance(value, dict | list | Mapping):  # a dict is found at once, any other mapping is not
        for one in value if isinstance(value, list) else value.values():
            check_unicode(one, key)


def chat_template_of(tokenizer: Any, config: ConversationTemplateConfig, fallback: str | None = None) -> str:
    """The chat template: that of the settings, else the tokenizer's (or processor's) own, else `fallback`. The settings
    may also name one of several templates of the tokenizer, and set its variables. A ConfigError if there is none."""
    own = getattr(tokenizer, "chat_template", None)
    named: dict[str, str] = own if isinstance(own, dict) else {}
    wanted: str | None = config.chat_template or (named.get("default") if named else own) or fallback
    if not wanted:
        known = f"; it has templates named {', '.join(map(repr, named))}" if named else ""
        raise ConfigError(
            f"{type(tokenizer).__name__} has no chat template, which a conversation needs{known}; "
            "set ConversationTemplateConfig(chat_template=...): the model's own, or PLAIN_CHAT_TEMPLATE for no roles"
        )
    wanted = named.get(wanted, wanted)
    if "{" not in wanted:
        known = ", ".join(map(repr, named)) or "none"
        raise ConfigError(
            f"chat_template={wanted!r} is neither a template (there is no {{{{ ... }}}} or {{% ... %}} in it) nor the "
            f"name of one that {type(tokenizer).__name__} has (it has {known})"
        )
    return with_settings(str(wanted), config.chat_template_kwargs, config.date)


@functools.lru_cache(maxsize=64)
def _marks_answers(template: str) -> bool:
    """Whether a template has `{% generation %}` around answers."""
    return _GENERATION.search(template) is not None


def render_conversation(
    tokenizer: Any,
    messages: list[dict[str, Any]],
    template: str,
    answers: str,
    tools: Sequence[Mapping[str, Any]] = (),
) -> tuple[str, list[Span]]:
    """The conversation as text, and the spans of the turns of the role `answers`, except those with `weight` 0.
    `tokenizer` may be a processor; `tools` are what the assistant may call, as JSON schemas.

    Raises:
        ConfigError: if the template is invalid.
        SampleError: if the answers cannot be found in what it writes; if it does not write a turn, tools, or a field of
            a turn that only it can write; if the answer with weight 0 is ambiguous.
    """
    _check_takes_tools(template, messages, tools)
    turns = [{name: value for name, value in turn.items() if name != "weight"} for turn in messages]
    options = {"tools": list(tools)} if tools else {}

    def render(turns: list[dict[str, Any]]) -> tuple[str, list[Span]]:
        if _marks_answers(template):
            return _answers_by_marks(tokenizer, turns, template, options)
        return _answers_by_prefixes(tokenizer, turns, template, answers, options)

    text, spans = render(turns)
    _check_turns_written(turns, text, answers)
    _check_roles_written(functools.partial(_rendered, tokenizer, template, options, prompt=False), turns, answers)
    for field in THROUGH:
        if any(turn["role"] != "tool" and turn.get(field) for turn in turns):
            without = [{name: value for name, value in turn.items() if name != field} for turn in turns]
            if render(without)[0] == text:
                raise SampleError(
                    f"a turn has {field!r}, which the chat template does not write; use a template that does, or "
                    "write it into the text, or remove it from the data"
                )
    has_loss = [turn.get("weight") != 0 for turn in messages if turn["role"] == answers]
    if all(has_loss):
        return text, spans
    if len(spans) != len(has_loss):
        raise SampleError(
            f"an answer has weight 0, but the chat template marks {len(spans)} answers of {len(has_loss)}, so which "
            "one is unknown; remove the weight, or use a template that marks each answer once"
        )
    return text, [span for span, is_learnt in zip(spans, has_loss, strict=True) if is_learnt]


_WORDS = re.compile(r"\w+(?: \w+)*")
_THOUGHTS = re.compile("</?think>")
"""What templates may write otherwise."""


def _check_turns_written(turns: Sequence[Mapping[str, Any]], text: str, answers: str) -> None:
    """Refuse a turn of which a template wrote nothing, as some do of the system's: none of its runs of words is in the
    text; and the last answer if one is not, as some leave out thoughts. Templates may trim a turn, quote it, or leave
    out the thoughts of earlier answers."""
    for turn in turns:
        is_missing = False
        for run in _WORDS.finditer(said(turn)):
            is_missing = run.group() not in text
            if not is_missing:
                break
        if is_missing:
            raise _left_out(turn)
    last = said(turns[-1]).strip() if turns[-1]["role"] == answers else ""
    if last in text:
        return
    runs = (run.group() for run in _WORDS.finditer(_THOUGHTS.sub("\n", last)))
    missing = next((run for run in runs if run not in text), None)
    if missing is not None:
        raise SampleError(
            f"the chat template leaves out a part of the last answer, {missing[:80]!r}; use a template that writes all "
            "of it, such as its thoughts, or remove that from the data"
        )


_USUAL_ROLES = ("system", "user")


def _check_roles_written(render: Callable[..., str], turns: Sequence[dict[str, Any]], answers: str) -> None:
    """Refuse a turn of a role that the template leaves out, as many do of those that they do not know, though its words
    are in the text: what a tool returned is often said again. Each such turn is a word of its own for once."""
    odd = [number for number, turn in enumerate(turns) if turn["role"] not in (*_USUAL_ROLES, answers)]
    if not odd:
        return
    changed = [*turns]
    for number in odd:
        changed[number] = {**turns[number], "content": in_form_of(turns[number], f"{WORD}{number};")}
    try:
        text = render(changed)
    except SampleError:  # the template reads what is said
        return
    for number in odd:
        if f"{WORD}{number};" not in text:
            raise _left_out(turns[number])


def _left_out(turn: Mapping[str, Any]) -> SampleError:
    return SampleError(
        f"the chat template writes nothing of a turn of {turn['role']!r}, {said(turn)[:80]!r}; use a template that "
        "does, or remove the turn from the data"
    )


def _check_takes_tools(
    template: str, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> None:
    """Refuse tools, and calls to them, if the template does not write them."""
    calls = any("tool_calls" in turn for turn in messages)
    for name, is_there in (("tools", bool(tools)), ("tool_calls", calls)):
        if is_there and not re.search(rf"\b{name}\b", template):
            raise SampleError(
                f"the conversation has {name!r}, which the chat template does not write; use a template that does, or "
                "remove them from the data"
            )


def _answers_by_marks(
    tokenizer: Any, messages: list[dict[str, Any]], template: str, options: Mapping[str, Any]
) -> tuple[str, list[Span]]:
    from transformers.utils.chat_template_utils import render_jinja_template

    named_tokens = getattr(tokenizer, "tokenizer", tokenizer).special_tokens_map
    fixed = {"chat_template": template, "return_assistant_tokens_mask": True}
    texts, spans = _by_template(
        lambda: render_jinja_template(conversations=[messages], **fixed, **options, **named_tokens)
    )
    return texts[0], [(start, end) for start, end in spans[0]]


def _by_template(render: Callable[[], T]) -> T:
    """What `render` makes with a chat template.

    Raises:
        ConfigError: if the template is invalid, or does what the sandbox forbids.
        SampleError: if it refuses the conversation or fails. One that does not end is stopped by the watchdog of
            workers, which names the sample.
    """
    try:
        return render()
    except BridgeDataError:
        raise
    except Exception as error:
        from jinja2 import TemplateError, TemplateSyntaxError
        from jinja2.exceptions import SecurityError

        if isinstance(error, TemplateSyntaxError):
            raise ConfigError(f"the chat template has an error in its line {error.lineno}: {error.message}") from error
        if isinstance(error, SecurityError):
            raise ConfigError(f"the chat template does what its sandbox forbids: {error}; use another one") from error
        reason = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
        raise SampleError(f"the chat template refuses the conversation: {reason}") from error


def lacks_beginning(tokenizer: Any, text: str) -> bool:
    """Whether the template wrote no beginning-of-sequence token, so that the tokenizer should add its special tokens.
    `tokenizer` may be a processor."""
    begin = getattr(tokenizer, "tokenizer", tokenizer).bos_token
    return begin is None or not text.startswith(begin)


def note_moved_media(
    owner: str, messages: Sequence[Mapping[str, Any]], media: Mapping[str, tuple[str, str]], text: str
) -> None:
    """Tell in the log, once for each encoder `owner`, that the template wrote an image of `messages` before words that
    it comes after; `text` is what it wrote, `media` are as of `messages_for`."""
    if not any(placeholder in turn["content"] for turn in messages for placeholder in media):
        return
    left = {token: [match.start() for match in re.finditer(re.escape(token), text)] for _, token in media.values()}
    for turn in messages:
        words = ""
        for piece in re.split(f"({'|'.join(map(re.escape, media))})", turn["content"]):
            if piece not in media:
                words = piece.strip() or words
                continue
            kind, token = media[piece]
            if not left[token]:
                return
            if text.find(words) > left[token].pop(0):
                _warn_moved(owner, kind)
                return


def note_unended(
    owner: str,
    messages: Sequence[Mapping[str, Any]],
    config: ConversationTemplateConfig,
    text: str,
    spans: Sequence[Span],
) -> None:
    """Tell in the log, once for each encoder `owner`, that nothing after the words of an answer is learnt; `text` is
    what the template wrote of `messages`, `spans` are the learnt ones."""
    last = messages[-1]
    if config.stop_string or last["role"] != config.roles[1] or not spans:
        return
    if (words := said(last).rstrip()) and text[slice(*spans[-1])].rstrip(" ").endswith(words):
        _warn_unended(owner)


@functools.lru_cache(maxsize=64)
def _warn_unended(owner: str) -> None:
    logger.warning(
        "%s: nothing that its chat template writes after an answer is learnt, so a model does not learn to end one. "
        "Set ConversationTemplateConfig(stop_string=...), such as to the tokenizer's eos_token, if the template writes "
        "nothing there; else put the end of an answer inside {%% generation %%}",
        owner,
    )


@functools.lru_cache(maxsize=64)
def _warn_moved(owner: str, kind: str) -> None:
    logger.warning(
        "%s: its chat template writes the %ss of a turn before its words, so those amid a text come first, as with the "
        "processor of transformers; for %ss in their places, set ConversationTemplateConfig(chat_template=...) to a "
        "template that writes the parts of a turn in order",
        owner,
        kind,
        kind,
    )


def _answers_by_prefixes(
    tokenizer: Any, messages: list[dict[str, Any]], template: str, answers: str, options: Mapping[str, Any]
) -> tuple[str, list[Span]]:
    render = functools.partial(_rendered, tokenizer, template, options)
    text = render(messages, prompt=False)
    shape = None if options else shape_of(messages)
    frame = None if shape is None else _frame(tokenizer, template, answers, shape)
    if frame is not None and (known := frame.spans([*itertools.chain(*texts_of(messages))], text)) is not None:
        return text, known
    return text, spans_of_answers(render, messages, text, answers)


def _rendered(
    tokenizer: Any, template: str, options: Mapping[str, Any], turns: list[dict[str, Any]], *, prompt: bool
) -> str:
    """The turns as text, with the generation prompt if `prompt`."""
    fixed = {"chat_template": template, "add_generation_prompt": prompt, "tokenize": False}
    return _by_template(lambda: str(tokenizer.apply_chat_template(turns, **fixed, **options)))


_frames: dict[int, dict[tuple[str, str, Shape], Frame | None]] = {}
"""The frames of each tokenizer, by its id, as long as it lives; `_UNMADE` of a shape that was seen once."""

_UNMADE = Frame((), ())

_MAX_FRAMES = 1024


def _frame(tokenizer: Any, template: str, answers: str, shape: Shape) -> Frame | None:
    """The frame of a shape, made when it is seen for the second time, as many come once; None if there is none."""
    frames = _frames.get(id(tokenizer))
    if frames is None:
        try:
            weakref.finalize(tokenizer, _frames.pop, id(tokenizer), None)
        except TypeError:  # a class with slots: its id may be another one's later
            return None
        frames = _frames[id(tokenizer)] = {}
    key = template, answers, shape
    if key not in frames:
        if len(frames) >= _MAX_FRAMES:
            frames.clear()
        frames[key] = _UNMADE
        return None
    if frames[key] is _UNMADE:
        render = functools.partial(_rendered, tokenizer, template, {})

        def find(turns: list[dict[str, Any]]) -> tuple[str, list[Span]]:
            text = render(turns, prompt=False)
            return text, spans_of_answers(render, turns, text, answers)

        frames[key] = None
        with contextlib.suppress(BridgeDataError):  # the template refuses the texts that stand for those of the data
            frames[key] = Frame.of(shape, answers, find)
    return frames[key]


def padding_token_of(tokenizer: Any) -> int:
    """The id that pads rows: of the padding token, else of the end-of-sequence token, else 0. Any will do: padding has
    no loss, and lengths are in the batch."""
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return int(next(number for number in ids if number is not None))


def only_token(tokenizer: Any, text: str) -> int:
    """The id of the placeholder `text`. A ConfigError if it is unknown, or several tokens."""
    ids = tokenizer(text, add_special_tokens=False).input_ids
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        raise ConfigError(
            f"the image placeholder {text!r} is not a token of {type(tokenizer).__name__}: it becomes {ids}. Add it "
            f"(tokenizer.add_special_tokens({{'additional_special_tokens': [{text!r}]}}), and enlarge the embedding of "
            "the model), or name another one: MultiModalSampleConfig(image_token=ImageToken(token_str=...)), or the "
            "image_token of the family"
        )
    return int(ids[0])
