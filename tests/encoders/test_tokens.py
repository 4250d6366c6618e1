"""The tokens of spans: as transformers marks answers, whatever characters a token is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from bridge_data.encoders.tokens import tokenize_spans, touching
from tests.encoders.multimodal_parts import make_tokenizer


def _bytes_tokenizer(*, trim_offsets: bool) -> PreTrainedTokenizerFast:
    """Byte-level BPE with few merges: most characters that are not ASCII are several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + 12, special_tokens=["<|im_start|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["a boat", "é boat 🛶  boat"] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


TOKENIZERS = {
    "bytes": _bytes_tokenizer(trim_offsets=False),
    "trimmed bytes": _bytes_tokenizer(trim_offsets=True),
    "words": make_tokenizer(),
}
PIECES = st.sampled_from(
    ["a", "boat", " ", "\n", "é", "e\u0301", "🛶", "👩‍👩‍👧", "漢", "<|im_start|>", "<end>", "  ", "\t"]
)


@settings(deadline=None, max_examples=200)
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
