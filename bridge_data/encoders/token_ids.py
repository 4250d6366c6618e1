"""Token ids of texts, made without offsets, which transformers has the tokenizers library compute in each call, whether
anyone wants them or not: that takes a quarter of the time.

Reads a fast tokenizer of transformers, and texts. `library_tokenizer` is the one that makes the ids. Of a *byte-level*
one, such as those of Qwen, Llama 3 and GPT, which cuts the bytes of a text and changes none, the lengths of tokens say
where they are. It may still drop bytes, such as those that its vocabulary lacks: then all tokens of the text have fewer
bytes than the text, and the caller has to ask for the offsets.
"""

import json
import sys
import weakref
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class CutTexts:
    """The tokens of texts, one after the other: `ids` and `ends`, int64 (tokens,), where the bytes of all tokens so far
    end. Those of text i are the tokens from `bounds[i]` to `bounds[i + 1]`."""

    ids: Ints
    ends: Ints
    bounds: Sequence[int]


class ByteLevel:
    """A byte-level tokenizer of the tokenizers library, with the vocabulary that it has now."""

    def __init__(self, backend: Any) -> None:
        self._backend, self._normalizer = backend, backend.normalizer
        added = backend.get_added_tokens_decoder()
        size = max(backend.get_vocab_size(with_added_tokens=False), *(number + 1 for number in added), 1)
        self._num_bytes = np.zeros(size + 1, np.int64)
        """Of each token; 0 if it has not come yet. The last stands for all that are added to the tokenizer later."""
        self._num_bytes[-1] = _UNKNOWN
        for number, token in added.items():
            self._num_bytes[number] = len(token.content.encode())

    def cut(self, texts: Sequence[str], *, add_special_tokens: bool) -> CutTexts:
        """The tokens of texts."""
        ids, bounds = array("q"), [0]
        for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens):
            ids.extend(encoding.ids)
            bounds.append(len(ids))
        whole = np.frombuffer(ids, np.int64)
        return CutTexts(whole, self._bytes_of(whole).cumsum(), bounds)

    def _bytes_of(self, ids: Ints) -> Ints:
        found = self._num_bytes.take(ids, mode="clip")
        if found.all():
            return found
        for number in {*ids[found == 0].tolist()}:
            self._num_bytes[number] = len(self._backend.id_to_token(number))  # a character for each byte
        return self._num_bytes.take(ids, mode="clip")

    def is_kept(self, text: str) -> bool:
        """Whether the tokenizer changes nothing in a text before it cuts it."""
        return self._normalizer is None or text.isascii() or bool(self._normalizer.normalize_str(text) == text)


_UNKNOWN = 1 << 40
"""Bytes of a token that was added to the tokenizer later: more than a text has."""

_seen: "weakref.WeakKeyDictionary[Any, ByteLevel | None]" = weakref.WeakKeyDictionary()


def library_tokenizer(tokenizer: Any) -> Any | None:
    """The tokenizer of the tokenizers library behind a fast one of transformers, if calling that would do no more than
    calling this one; else None."""
    if sys.modules.get("transformers") is None:  # then it is none of those
        return None
    from transformers import PreTrainedTokenizerFast as Fast

    of = type(tokenizer)
    if not (issubclass(of, Fast) and of.__call__ is Fast.__call__ and of._encode_plus is Fast._encode_plus):
        return None
    backend = tokenizer.backend_tokenizer
    is_set = backend.truncation or backend.padding  # the next call of `tokenizer` takes both away
    return None if is_set or backend.encode_special_tokens != tokenizer.split_special_tokens else backend


def byte_level(tokenizer: Any, *, add_special_tokens: bool) -> ByteLevel | None:
    """What is behind a tokenizer, if it is byte-level, and adds no tokens of its own; else None."""
    backend = library_tokenizer(tokenizer)
    if backend is None or (add_special_tokens and backend.num_special_tokens_to_add(False)):
        return None
    if tokenizer not in _seen:
        _seen[tokenizer] = ByteLevel(backend) if _is_byte_level(backend) else None
    return _seen[tokenizer]


def _is_byte_level(backend: Any) -> bool:
    """Whether each token of a tokenizer is a run of bytes of the text, and offsets are those of its characters."""
    model = backend.model
    adds_bytes = model.unk_token or model.continuing_subword_prefix or model.end_of_word_suffix
    if type(model).__name__ != "BPE" or adds_bytes:
        return False
    cutting, after, before = map(_steps, (backend.pre_tokenizer, backend.post_processor, backend.normalizer))
    prefixed = [step["add_prefix_space"] for step in cutting if step["type"] == "ByteLevel"]
    return (
        prefixed == [False]
        and {step["type"] for step in cutting} <= {"ByteLevel", "Split", "Digits"}
        and all(step["type"] == "TemplateProcessing" or step.get("trim_offsets") is False for step in after)
        and [step["type"] for step in before] in ([], ["NFC"])
    )


def _steps(part: Any) -> list[Mapping[str, Any]]:
    """What a part of a tokenizer does, one after the other, as the library saves it."""
    if part is None:
        return []
    saved = json.loads(part.__getstate__())
    several = [saved[name] for name in ("pretokenizers", "processors", "normalizers") if name in saved]
    return several[0] if several else [saved]
