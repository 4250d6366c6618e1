"""The tokens of spans: as transformers marks answers, whatever characters a token is."""

import copy
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from bridge_data.encoders.token_ids import byte_level
from bridge_data.encoders.tokens import tokenize_spans, tokenize_text, touching
from tests.encoders.multimodal_parts import make_tokenizer


def _bytes_tokenizer(
    *, trim_offsets: bool = False, prefix: bool = False, whole: bool = True, **parts: Any
) -> PreTrainedTokenizerFast:
    """Byte-level BPE with few merges: most characters that are not ASCII are several tokens. Not `whole`: it knows the
    bytes of few. `parts` of the tokenizer may be others."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    alphabet = pre_tokenizers.ByteLevel.alphabet() if whole else []
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 13, special_tokens=["<|im_start|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["a boat", "é boat 🛶  boat"] * 20, trainer)
    tokenizer.add_special_tokens([AddedToken("<strip>", lstrip=True, rstrip=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


_QWEN = [
    pre_tokenizers.Split(Regex(r"\p{N}|\s+|[^\s\p{N}]+"), "isolated"),
    pre_tokenizers.ByteLevel(False, use_regex=False),
]
CUT_BY_BYTES = {
    "bytes": _bytes_tokenizer(),
    "few bytes": _bytes_tokenizer(whole=False),
    "as Qwen": _bytes_tokenizer(normalizer=normalizers.NFC(), pre_tokenizer=pre_tokenizers.Sequence(_QWEN)),
}
_DROPPED = [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
TOKENIZERS = {
    **CUT_BY_BYTES,
    "trimmed bytes": _bytes_tokenizer(trim_offsets=True),
    "prefixed bytes": _bytes_tokenizer(prefix=True),
    "decomposed": _bytes_tokenizer(normalizer=normalizers.NFD()),
    "bytes of words": _bytes_tokenizer(pre_tokenizer=pre_tokenizers.Sequence(_DROPPED)),
    "words": make_tokenizer(),
}
PIECES = st.sampled_from(
    ["a", "boat", " ", "\n", "é", "e\u0301", "🛶", "👩‍👩‍👧", "漢", "<|im_start|>", "<end>", "<strip>", "  ", "\t"]
)


@settings(deadline=None, max_examples=500)
@given(st.sampled_from(sorted(TOKENIZERS)), st.lists(PIECES, min_size=1, max_size=20), st.data())
def test_the_tokens_of_spans_are_those_of_their_offsets(name: str, pieces: list[str], data: st.DataObject) -> None:
    tokenizer, text = TOKENIZERS[name], "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=0, max_size=4)))
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    marked, again = tokenize_spans(tokenizer, [(text, spans), (text, spans[:1])])
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    assert marked.ids.tolist() == encoded["input_ids"]
    assert marked.has_loss.tolist() == touching(encoded["offset_mapping"], spans).tolist()
    assert again.has_loss.tolist() == touching(encoded["offset_mapping"], spans[:1]).tolist()
    touched = [
        any(max(start, first) < min(end, last) for first, last in spans) for start, end in encoded["offset_mapping"]
    ]
    assert not (marked.has_loss < touched).any()


class _Shouting(PreTrainedTokenizerFast):
    """Does more than the tokenizer behind it."""

    def __call__(self, text: Any, **options: Any) -> Any:
        return super().__call__(text.upper() if isinstance(text, str) else [one.upper() for one in text], **options)


def _bounded(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    tokenizer.backend_tokenizer.enable_truncation(2)
    return tokenizer


def _with_token(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    tokenize_spans(tokenizer, [("a boat", [])])
    tokenizer.add_tokens(["a b"])
    return tokenizer


def _with_beginning(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    begin = ("<|im_start|>", tokenizer.convert_tokens_to_ids("<|im_start|>"))
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing("<|im_start|> $A", None, [begin])
    return tokenizer


def _with_split_tokens(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    tokenizer.split_special_tokens = True
    return tokenizer


@pytest.mark.parametrize(
    "change",
    [
        lambda tokenizer: _Shouting(tokenizer_object=tokenizer.backend_tokenizer),
        _bounded,
        _with_token,
        _with_beginning,
        _with_split_tokens,
    ],
)
def test_a_tokenizer_does_all_that_it_does_by_itself(
    change: Callable[[PreTrainedTokenizerFast], PreTrainedTokenizerFast],
) -> None:
    tokenizer, text = change(copy.deepcopy(TOKENIZERS["bytes"])), "<|im_start|>a boat"
    for _ in range(2):
        for add in (False, True):
            (marked,) = tokenize_spans(tokenizer, [(text, [(12, 14)])], add_special_tokens=add)
            options = {"add_special_tokens": add, "return_offsets_mapping": True}
            encoded = copy.deepcopy(tokenizer)([text], **options)
            assert marked.ids.tolist() == encoded["input_ids"][0]
            assert marked.has_loss.tolist() == touching(encoded["offset_mapping"][0], [(12, 14)]).tolist()
        assert tokenize_text(tokenizer, text).ids.tolist() == encoded["input_ids"][0]


def test_a_tokenizer_of_somebody_else_needs_no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Letters:
        eos_token_id = 0

        def __call__(self, text: str) -> Any:
            return SimpleNamespace(input_ids=[ord(letter) for letter in text])

    monkeypatch.setitem(sys.modules, "transformers", None)
    assert tokenize_text(Letters(), "ab").ids.tolist() == [97, 98, 0]


def test_offsets_are_not_computed_where_lengths_say_them(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {name for name, tokenizer in TOKENIZERS.items() if byte_level(tokenizer, add_special_tokens=False)}
    assert known == {*CUT_BY_BYTES}
    tokenizer = CUT_BY_BYTES["as Qwen"]
    monkeypatch.setattr(PreTrainedTokenizerFast, "_encode_plus", None)
    (marked,) = tokenize_spans(tokenizer, [("an é boat", [(3, 4)])])
    assert "".join(tokenizer.convert_ids_to_tokens(marked.ids[marked.has_loss])).endswith("Ã©")


@pytest.mark.parametrize(
    ("spans", "marks"),
    [
        ([(0, 2)], [True, False, False, False]),
        ([(1, 3)], [True, True, True, False]),
        ([(2, 4)], [False, False, True, True]),
        ([(0, 1), (3, 4)], [True, False, False, True]),
        ([(1, 1)], [False, False, False, False]),
        ([], [False, False, False, False]),
    ],
)
def test_a_token_of_no_characters_is_learnt_where_those_around_it_are(
    spans: list[tuple[int, int]], marks: list[bool]
) -> None:
    assert touching([(0, 2), (2, 2), (2, 3), (3, 4)], spans).tolist() == marks
