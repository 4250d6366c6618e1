"""What a chat template writes around the texts of a conversation, and so where the answers are.

To find an answer, the conversation is rendered up to it and through it, which takes time in proportion to the square of
the turns. But most templates write each text as it is, or stripped, between strings that depend on nothing but the
*shape*: the roles of the turns, and the kinds of their parts. So this is done once for a shape, with other texts in
their places; what is written around these is a `Frame`. A conversation is then rendered once, and its answers are where
the frame has them if the frame, filled with its texts, is what was rendered, to the letter. If not, as of a template
that looks into the texts, the caller goes the long way.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Self

from bridge_data.encoders.tokens import Span

Shape = tuple[tuple[str, tuple[str, ...] | None], ...]
"""Of each turn the role, and the types of the parts of its content; None if it is one text."""

_MARGIN = "mk7"
"""Around the number of a text that stands for another one, in a word that no template has."""


def shape_of(turns: Sequence[dict[str, Any]]) -> Shape | None:
    """The shape of a conversation; None if it has more than roles and contents, or a part that is no text and has more
    than its type, as a template may write these anywhere."""
    shape: list[tuple[str, tuple[str, ...] | None]] = []
    for turn in turns:
        if turn.keys() != {"role", "content"}:
            return None
        content = turn["content"]
        if isinstance(content, str):
            shape.append((turn["role"], None))
            continue
        if any(part.keys() != ({"type", "text"} if part["type"] == "text" else {"type"}) for part in content):
            return None
        shape.append((turn["role"], tuple(part["type"] for part in content)))
    return tuple(shape)


def texts_of(turns: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The texts of each turn, in order."""
    contents = [turn["content"] for turn in turns]
    return [
        [one] if isinstance(one, str) else [part["text"] for part in one if part["type"] == "text"] for one in contents
    ]


def _stand_ins(shape: Shape) -> list[dict[str, Any]]:
    """A conversation of this shape, whose texts occur nowhere else."""
    numbers = itertools.count()

    def text() -> str:
        return f"{_MARGIN}{next(numbers)}{_MARGIN}"

    def part(kind: str) -> dict[str, str]:
        return {"type": kind, "text": text()} if kind == "text" else {"type": kind}

    return [
        {"role": role, "content": text() if kinds is None else [part(kind) for kind in kinds]} for role, kinds in shape
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    """Where an answer is: from so many characters `before` text number `first` to so many `after` number `last`."""

    first: int
    before: int
    last: int
    after: int


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """What a template writes of a shape: `around` its texts, one string more than these, and where its answers are."""

    around: tuple[str, ...]
    answers: tuple[_Answer, ...]

    @classmethod
    def of(
        cls, shape: Shape, answers: str, find: Callable[[list[dict[str, Any]]], tuple[str, list[Span]]]
    ) -> Self | None:
        """The frame of a shape, in which turns of the role `answers` are answers; None if the template does not write
        each text once and in order. `find` renders a conversation, and finds its answers the long way."""
        turns = _stand_ins(shape)
        rendered, spans = find(turns)
        texts = texts_of(turns)
        numbers = itertools.count()
        of_turns = [[next(numbers) for _ in of_turn] for of_turn in texts]
        starts, around, end = [], [], 0
        for text in itertools.chain.from_iterable(texts):
            start = rendered.find(text, end)
            if start < 0 or rendered.count(text) != 1:
                return None
            starts.append(start)
            around.append(rendered[end:start])
            end = start + len(text)
        lengths = [len(text) for text in itertools.chain.from_iterable(texts)]
        found = []
        learnt = [of_turn for of_turn, turn in zip(of_turns, turns, strict=True) if turn["role"] == answers]
        for own, (begin, stop) in zip(learnt, spans, strict=True):
            if not own or begin > starts[own[0]] or stop < starts[own[-1]] + lengths[own[-1]]:
                return None
            found.append(_Answer(own[0], starts[own[0]] - begin, own[-1], stop - starts[own[-1]] - lengths[own[-1]]))
        return cls((*around, rendered[end:]), tuple(found))

    def spans(self, texts: Sequence[str], rendered: str) -> list[Span] | None:
        """Where the answers are in what was rendered of these texts; None if that is not this frame, filled with them.

        As the long way, an answer ends with its last character that is no space.
        """
        stripped = [text.strip() for text in texts]
        if not all(stripped):
            return None
        for written in (texts, stripped):
            pieces = [*itertools.chain.from_iterable(zip(self.around, written, strict=False)), self.around[-1]]
            if "".join(pieces) != rendered:
                continue
            ends = [*itertools.accumulate(map(len, pieces))]  # of text n: the one at 2n + 1, which begins at that of 2n
            return [
                (
                    ends[2 * one.first] - one.before,
                    ends[2 * one.last + 1] + one.after
                    if one.after
                    else ends[2 * one.last] + len(written[one.last].rstrip()),
                )
                for one in self.answers
            ]
        return None
