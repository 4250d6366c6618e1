"""What is in a batch: rows of tokens with their loss mask, packs with their waste, pictures.

Enters: a batch, of our encoders or of a user's: a dataclass or a dict. Leaves: `BatchContents` for the templates.
Fields are found by their usual names; others are described in words.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bridge_data.tools.cli.preview_command import describe_value

MAX_SHOWN_TOKENS = 2048
"""Tokens of a row that are written out."""

_TOKENS = ("tokens", "input_ids")


@dataclasses.dataclass(frozen=True, slots=True)
class ShownToken:
    """A token of a row; `learnt`: it counts in the loss, as the label of the position before it."""

    text: str
    number: int
    position: int
    learnt: bool


@dataclasses.dataclass(frozen=True, slots=True)
class PackSegment:
    """A sample in a row: its first token and its length; `share` is its part of the row, `start` where it begins, from
    0 to 1."""

    key: str
    first: int
    length: int
    start: float
    share: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """A row of a batch: `length` tokens, of which `used` are no padding."""

    length: int
    used: int
    num_learnt: int
    segments: tuple[PackSegment, ...]
    tokens: tuple[ShownToken, ...]
    cu_seqlens: tuple[int, ...]

    @property
    def waste(self) -> float:
        """The share of the row that is padding."""
        return 1 - self.used / max(1, self.length)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchContents:
    """A batch: its sequences, if it has tokens, and all its fields in words."""

    kind: str
    keys: tuple[str, ...]
    rows: tuple[BatchRow, ...]
    fields: tuple[tuple[str, str], ...]


def fields_of(batch: Any) -> Mapping[str, Any]:
    """The fields of a batch: a dict, or an object with attributes."""
    if isinstance(batch, Mapping):
        return batch
    if dataclasses.is_dataclass(batch):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return dict(vars(batch)) if hasattr(batch, "__dict__") else {"batch": batch}


def contents(batch: Any, tokenizer: Any = None) -> BatchContents:
    """What is in a batch; `tokenizer` (of transformers; None: numbers are shown) writes its tokens."""
    fields = fields_of(batch)
    keys = fields.get("__key__", fields.get("__keys__", ()))
    names = [keys] if isinstance(keys, str) else [str(key) for key in keys or ()]
    shown = tuple((name, describe_value(value)) for name, value in fields.items() if not name.startswith("__"))
    return BatchContents(
        kind=type(batch).__name__,
        keys=tuple(key for name in names for key in name.split(",")),
        rows=tuple(_rows(fields, names, tokenizer)),
        fields=shown,
    )


def _rows(fields: Mapping[str, Any], names: Sequence[str], tokenizer: Any) -> list[BatchRow]:
    tokens = next((fields[name] for name in _TOKENS if isinstance(fields.get(name), Tensor)), None)
    if tokens is None:
        return []
    tokens = tokens if tokens.ndim > 1 else tokens[None]
    mask = _like(fields.get("loss_mask"), tokens)
    positions = _like(fields.get("position_ids"), tokens)
    bounds = _bounds(fields, tokens)
    texts = TokenTexts(tokenizer)
    rows = []
    for number, row in enumerate(tokens):
        own = names[number].split(",") if len(names) == len(tokens) else list(names)
        learnt = [False] * len(row) if mask is None else [False, *(mask[number][:-1] > 0).tolist()]
        at = list(range(len(row))) if positions is None else positions[number].tolist()
        shown = row[:MAX_SHOWN_TOKENS].tolist()
        rows.append(
            BatchRow(
                length=len(row),
                used=bounds[number][-1],
                num_learnt=sum(learnt) if mask is None else int((mask[number] > 0).sum()),
                segments=tuple(_segments(bounds[number], own, len(row))),
                tokens=tuple(ShownToken(texts[token], token, at[n], learnt[n]) for n, token in enumerate(shown)),
                cu_seqlens=tuple(bounds[number]),
            )
        )
    return rows


def _like(value: Any, tokens: Tensor) -> Tensor | None:
    """The tensor with one number for each token; of mRoPE's three positions the first; None if it is none."""
    if not isinstance(value, Tensor):
        return None
    value = value if value.ndim > 1 else value[None]
    while value.ndim > 2:
        value = value[:, 0] if value.shape[0] == tokens.shape[0] else value[0]
    return value if value.shape == tokens.shape else None


def _bounds(fields: Mapping[str, Any], tokens: Tensor) -> list[list[int]]:
    """The first token of each sample of each row, and the end of the last: from `cu_seqlens`, else of `lengths` or an
    attention mask, else all of the row."""
    length, found = tokens.shape[1], fields.get("cu_seqlens")
    if isinstance(found, Tensor) and found.numel():
        rows = found if found.ndim > 1 else found[None]
        if len(rows) == len(tokens):
            return [sorted({min(length, int(bound)) for bound in row if bound >= 0} | {0}) for row in rows]
    mask = fields.get("attention_mask")
    if isinstance(mask, Tensor) and mask.shape == tokens.shape:
        return [[0, int(row.sum())] for row in mask]
    return [[0, length] for _ in tokens]


def _segments(bounds: Sequence[int], keys: Sequence[str], length: int) -> list[PackSegment]:
    found = []
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        key = keys[number] if number < len(keys) else f"sample {number}"
        found.append(PackSegment(key, first, end - first, first / length, (end - first) / length))
    return found


class TokenTexts(dict[int, str]):
    """The text of each token, made when it is asked for."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> str:
        decode = getattr(self._tokenizer, "decode", None)
        text = str(token)
        if decode is not None and token >= 0:
            text = str(decode([token]))
        self[token] = text
        return text


def tokenizer_of(encoder: Any) -> Any:
    """The tokenizer of a task encoder; None if it has none."""
    return getattr(encoder, "tokenizer", None)


def is_picture(value: Any) -> bool:
    """Whether a value is a picture, or several: (..., 1 or 3, height, width)."""
    return isinstance(value, torch.Tensor) and value.ndim >= 3 and value.shape[-3] in (1, 3) and min(value.shape) > 0
