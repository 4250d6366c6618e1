"""Token ids with a mark on those that have loss.

Reads texts and a tokenizer of transformers. Returns `MarkedTokens`, as arrays: chats have thousands of tokens.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bridge_data.encoders.token_ids import ByteLevel, byte_level, library_tokenizer

Span: TypeAlias = tuple[int, int]
"""A range of characters or tokens: the first, and the one after the last."""


_Text: TypeAlias = tuple[str, Sequence[Span]]
"""A text, and spans of its characters, which are in order."""

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float32]
Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class MarkedTokens:
    """Token ids, int64 (S,), and for each whether it has loss, bool (S,)."""

    ids: Ints
    has_loss: Bools

    @classmethod
    def of(cls, ids: Sequence[int], has_loss: Sequence[bool] | Bools) -> "MarkedTokens":
        """Those of lists."""
        return cls(np.array(ids, np.int64), np.asarray(has_loss, bool))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, range_: slice) -> "MarkedTokens":
        return MarkedTokens(self.ids[range_], self.has_loss[range_])

    def count(self, token: int) -> int:
        """How often a token is there."""
        return int(np.count_nonzero(self.ids == token))


def tokenize_text(tokenizer: Any, text: str) -> MarkedTokens:
    """Plain text, all of it marked, with an end-of-sequence token (if the tokenizer has one)."""
    direct = library_tokenizer(tokenizer)
    ids = list(tokenizer(text).input_ids) if direct is None else direct.encode_batch_fast([text])[0].ids
    if tokenizer.eos_token_id is not None and ids[-1:] != [tokenizer.eos_token_id]:
        ids.append(tokenizer.eos_token_id)
    return MarkedTokens.of(ids, np.ones(len(ids), bool))


def tokenize_spans(tokenizer: Any, texts: Sequence[_Text], *, add_special_tokens: bool = False) -> list[MarkedTokens]:
    """The tokens of texts, of each with marks on those of its spans, which are in order: as transformers marks answers,
    from the first token that has a character of a span through the last.

    For a tokenizer that gives no offsets, a text is cut at its spans and tokenized piece by piece.
    """
    if not getattr(tokenizer, "is_fast", False):
        return [_piecewise(tokenizer, text, spans, add_special_tokens) for text, spans in texts]
    if (known := byte_level(tokenizer, add_special_tokens=add_special_tokens)) is None:
        return _by_offsets(tokenizer, texts, add_special_tokens)
    marked = _by_bytes(known, texts, add_special_tokens)
    left = [number for number, one in enumerate(marked) if one is None]
    by_offsets = iter(_by_offsets(tokenizer, [texts[number] for number in left], add_special_tokens) if left else [])
    return [next(by_offsets) if one is None else one for one in marked]


_ONLY_IDS = {"return_token_type_ids": False, "return_attention_mask": False}


def _piecewise(tokenizer: Any, text: str, spans: Sequence[Span], add_special_tokens: bool) -> MarkedTokens:
    ids: list[int] = []
    marks: list[bool] = []
    cuts = [0, *itertools.chain.from_iterable(spans), len(text)]
    for number, (start, end) in enumerate(itertools.pairwise(cuts)):
        piece = tokenizer(text[start:end], add_special_tokens=False).input_ids if end > start else []
        ids.extend(piece)
        marks.extend([number % 2 == 1] * len(piece))
    if not add_special_tokens:
        return MarkedTokens.of(ids, marks)
    whole = list(tokenizer.build_inputs_with_special_tokens(ids))
    front = next((n for n in range(len(whole)) if whole[n : n + len(ids)] == ids), 0)
    after = len(whole) - front - len(ids)
    return MarkedTokens.of(whole, [False] * front + marks + [False] * after)


def _by_bytes(tokenizer: ByteLevel, texts: Sequence[_Text], add_special_tokens: bool) -> list[MarkedTokens | None]:
    """The tokens of texts, with marks on those that have a byte of a span; None of a text whose bytes are not those of
    its tokens."""
    cut = tokenizer.cut([text for text, _ in texts], add_special_tokens=add_special_tokens)
    offsets = np.concatenate(([0], cut.ends))[cut.bounds].tolist()
    is_whole, starts, ends = [], [], []
    for (text, spans), (begin, end) in zip(texts, itertools.pairwise(offsets), strict=True):
        places = _bytes_at(text, [*itertools.chain.from_iterable(spans), len(text)])
        is_whole.append(places.pop() == end - begin and tokenizer.is_kept(text))
        if is_whole[-1]:
            starts += [begin + place for place in places[::2]]
            ends += [begin + place for place in places[1::2]]
    has_loss = np.zeros(len(cut.ids), bool)
    first, last = cut.ends.searchsorted(starts, "right").tolist(), cut.ends.searchsorted(ends).tolist()
    for start, end, begin, through in zip(starts, ends, first, last, strict=True):
        has_loss[begin : through + (start < end)] = True
    whole = MarkedTokens(cut.ids, has_loss)
    return [
        whole[begin:end] if is_one else None
        for is_one, (begin, end) in zip(is_whole, itertools.pairwise(cut.bounds), strict=True)
    ]


def _bytes_at(text: str, places: list[int]) -> list[int]:
    """The offsets in UTF-8 of these characters, which are in order."""
    if text.isascii():
        return places
    return [*itertools.accumulate(len(text[start:end].encode()) for start, end in itertools.pairwise([0, *places]))]


def _by_offsets(tokenizer: Any, texts: Sequence[_Text], add_special_tokens: bool) -> list[MarkedTokens]:
    """The tokens of texts, marked by what a fast tokenizer says of their characters."""
    encoded = tokenizer([text for text, _ in texts], add_special_tokens=add_special_tokens, **_ONLY_IDS)
    made = zip(encoded["input_ids"], encoded.encodings, texts, strict=True)
    return [MarkedTokens.of(ids, _marks(encoding, spans)) for ids, encoding, (_, spans) in made]


def _marks(encoding: Any, spans: Sequence[Span]) -> Bools:
    """As `touching`, of an encoding of the tokenizers library. It is asked for the tokens at the ends of spans: asking
    for all offsets takes as long as a seventh of the tokenizing."""
    marks = np.zeros(len(encoding), bool)
    for start, end in spans:
        if start == end:
            continue
        first, last = encoding.char_to_token(start), encoding.char_to_token(end - 1)
        if first is None or last is None:  # a character that is in no token, as spaces of some tokenizers
            return touching(encoding.offsets, spans)
        while (offsets := encoding.token_to_chars(last)) is not None and offsets[0] < end <= offsets[1]:
            last += 1  # several tokens may be one character
        marks[first:last] = True
    return marks


def touching(offsets: Sequence[Span], spans: Sequence[Span]) -> Bools:
    """Which tokens, whose characters are at `offsets`, are those of `spans`: from the first that has a character of a
    span through the last."""
    starts, ends = np.array(offsets, np.int64).reshape(-1, 2).T
    marks = np.zeros(len(starts), bool)
    for start, end in spans:
        touched = np.flatnonzero((starts < np.minimum(ends, end)) & (ends > start))
        if len(touched) and start < end:
            marks[touched[0] : touched[-1] + 1] = True
    return marks
