"""Where the answers are in the text that a chat template makes of a conversation, if it does not mark them itself.

Reads the text, and renders parts of the conversation. Returns the spans of the answers: each begins after the
generation prompt, and ends with what closes its turn.

The text up to an answer (with the generation prompt) and up to its end are rendered, and the difference is the answer.
Where a turn is written differently once others follow, as by templates that leave out earlier thoughts, an answer goes
from the generation prompt to the first mark that closes answers, such as `<|im_end|>`. That this finds no other turn is
tried with words in place of the others.
"""

import dataclasses
import os
import re
from collections.abc import Callable
from typing import Any

from bridge_data.encoders.chat_turns import WORD, in_form_of, said
from bridge_data.encoders.tokens import Span
from bridge_data.errors import SampleError

_MARK = r"<[^<>\s]+>|\[[^\[\]\s]+\]"
"""What templates write between turns: `<|im_end|>`, `</s>`, `[/INST]`."""

_END_OF_OPENING = re.compile(r"[>\]:\n]|(?<=.)\Z")
"""Where a generation prompt ends, or what it has in front of thoughts."""


def spans_of_answers(render: Callable[..., str], messages: list[dict[str, Any]], text: str, answers: str) -> list[Span]:
    """The turns of the role `answers` in `text`, which `render(messages, prompt=False)` made.

    Raises:
        SampleError: if they cannot be found with this template, which may hold for some conversations alone; or if a
            turn has a mark in its text by which they would be.
    """
    spans = _spans_by_prefixes(render, messages, text, answers)
    if spans is None:
        spans = _spans_by_marks(render, messages, text, answers)
    if spans is None:
        raise SampleError(
            "the chat template writes a turn differently once others follow it, so the answers cannot be found; "
            "put {% generation %} and {% endgeneration %} around the answers in the template, and set it as "
            "ConversationTemplateConfig(chat_template=...)"
        )
    return spans


def _spans_by_prefixes(
    render: Callable[..., str], messages: list[dict[str, Any]], text: str, answers: str
) -> list[Span] | None:
    """The answers, by rendering what comes before each, and what ends with it; None if `text` begins otherwise."""
    spans = []
    for number, turn in enumerate(messages):
        if turn["role"] != answers:
            continue
        before = render(messages[:number], prompt=True) if number else ""
        through = text if number + 1 == len(messages) else render(messages[: number + 1], prompt=False)
        if not (text.startswith(before) and text.startswith(through)):
            return None
        spans.append((len(before), len(through.rstrip())))
    return spans


@dataclasses.dataclass(frozen=True, slots=True)
class _Marks:
    """What a template writes around answers."""

    prompt: str
    """What it writes for an answer to be generated."""
    opening: str
    """As much of it as is before all answers."""
    closings: list[str]
    """What comes after one, the shortest first."""
    are_closed: bool
    """Whether that closes the answer; else it opens the next turn, and the last answer has nothing after it."""

    def spans(self, text: str) -> list[Span] | None:
        """The answers in `text`; None if one is not closed."""
        begins = [match.start() for match in re.finditer(re.escape(self.opening), text)]
        spans = []
        for begin, stop in zip(begins, [*begins[1:], len(text)], strict=True):
            start = begin + len(self.prompt if text.startswith(self.prompt, begin) else self.opening)
            ends = re.search("|".join(map(re.escape, self.closings)), text[start:stop])
            if ends is None and (self.are_closed or stop < len(text)):
                return None
            after = len(text.rstrip()) - start if ends is None else ends.end() if self.are_closed else ends.start()
            spans.append((start, start + after))
        return spans


def _spans_by_marks(
    render: Callable[..., str], messages: list[dict[str, Any]], text: str, answers: str
) -> list[Span] | None:
    """The answers, by the marks around them; None if these are not found once for each, and around no other turn."""
    others = [{**turn, "content": in_form_of(turn, WORD)} if turn["role"] != answers else turn for turn in messages]
    try:
        marks = _marks(render, messages, text, answers)
        tried = "" if marks is None else render(others, prompt=False)
    except SampleError:  # the template refuses the words that stand for those of the data
        return None
    if marks is None:
        return None
    for turn in messages:
        own = [marks.opening, *(marks.closings if turn["role"] == answers else ())]
        if (mark := next((one for one in own if one in said(turn)), None)) is not None:
            raise SampleError(
                f"a turn has {mark!r} in its text, which the chat template writes around answers, so where these are "
                "is unknown; remove it from the data"
            )
    spans, as_tried = marks.spans(text), marks.spans(tried)
    num_answers = sum(turn["role"] == answers for turn in messages)
    if spans is None or as_tried is None or not (len(spans) == len(as_tried) == num_answers):
        return None
    return None if any(WORD in tried[start:end] for start, end in as_tried) else spans


def _marks(render: Callable[..., str], messages: list[dict[str, Any]], text: str, answers: str) -> _Marks | None:
    """What the template writes around answers: tried with a word in place of the first one that follows another turn.
    None if it shows no marks."""
    numbers = [number for number, turn in enumerate(messages) if turn["role"] == answers]
    first = next((number for number in numbers if number), None)
    asks = next((turn for turn in messages if turn["role"] not in ("system", answers)), None)
    if first is None or asks is None:
        return None
    before = messages[:first]
    answer = {"role": answers, "content": in_form_of(messages[first], WORD)}
    prompt = _prompt_after(render, before)
    opening = next((one for one in _openings(prompt) if text.count(one) >= len(numbers)), "")
    _, is_written, at_end = render([*before, answer], prompt=False).partition(WORD)
    if not (is_written and opening) or opening in at_end:
        return None
    _, _, amid = render([*before, answer, asks], prompt=False).partition(WORD)
    closing_at_end, closing_amid = _first_marks(at_end, opening), _first_marks(amid, opening)
    if not closing_at_end:  # the next turn closes an answer
        return _Marks(prompt, opening, [closing_amid], are_closed=False) if closing_amid else None
    header, _, _ = render([{**asks, "content": in_form_of(asks, WORD)}], prompt=False).partition(WORD)
    calls = next((number for number in numbers if messages[number].get("tool_calls")), None)
    through_calls = "" if calls is None else render(messages[: calls + 1], prompt=False)
    closing_calls = _first_marks(_last_marks(through_calls), opening)
    closings = {closing_at_end, _without_header(closing_amid, header), closing_calls}
    return _Marks(prompt, opening, sorted(filter(None, closings), key=len), are_closed=True)


def _prompt_after(render: Callable[..., str], before: list[dict[str, Any]]) -> str:
    """What the template writes for an answer to the turns `before` to be generated; if nothing, the mark that ends
    these, such as `[/INST]`."""
    plain, prompted = (render(before, prompt=is_asked) for is_asked in (False, True))
    prompt = prompted[len(os.path.commonprefix((plain, prompted))) :]  # noqa: RUF071 - of characters
    last = re.search(rf"({_MARK})\s*\Z", plain)
    return prompt or (last[1] if last else "")


def _openings(prompt: str) -> list[str]:
    """What may be written before all answers, of a generation prompt: the longest first, as it may open a thought."""
    return [prompt[: end.end()] for end in reversed([*_END_OF_OPENING.finditer(prompt)])]


def _first_marks(after: str, opening: str) -> str:
    """The marks at the beginning of what comes after an answer, up to one that opens a turn."""
    opens, found = re.match(_MARK, opening), ""
    for mark in re.finditer(rf"\s*({_MARK})|.", after, re.DOTALL):
        if mark[1] is None or (found and mark[0] != mark[1]) or (opens is not None and mark[1] == opens[0]):
            break
        found += mark[1]
    return found


def _last_marks(before: str) -> str:
    found = re.search(rf"((?:{_MARK})+)\s*\Z", before)
    return "" if found is None else found[1]


def _without_header(marks: str, header: str) -> str:
    """The marks without those that open the next turn, as `header` ends with."""
    own, opening = re.findall(_MARK, marks), re.findall(_MARK, _last_marks(header))
    while own and opening and own[-1] == opening.pop():
        own.pop()
    return "".join(own)
