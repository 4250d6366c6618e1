from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_data import (
    CaptioningSample,
    ConfigError,
    SkipSample,
    TextSample,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from bridge_data.encoders import FamilyTaskEncoder, PretrainingTaskEncoder
from bridge_data.encoders.tokens import tokenize_text
from tests.encoders.parts import CASES, make_tokenizer
from tests.prepared import write_texts

TOKENIZER = make_tokenizer()


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(2, 20))
def test_every_token_but_the_first_is_learnt_once(num_words: int, seq_length: int) -> None:
    encoder = PretrainingTaskEncoder(TOKENIZER, seq_length=seq_length)
    document = TextSample(__key__="k", text="boat " * num_words)
    ids = tokenize_text(TOKENIZER, document.text).ids.tolist()
    pieces = list(encoder.preencode_sample(document))
    assert torch.cat([piece.labels[piece.loss_mask.bool()] for piece in pieces]).tolist() == ids[1:]
    tokens = torch.cat([piece.tokens for piece in pieces]).tolist()
    assert tokens == ids[: len(tokens)] and len(ids) - len(tokens) in (0, 1)
    assert [piece.length for piece in pieces[:-1]] == [seq_length] * (len(pieces) - 1)


def test_rows_are_of_fixed_length_and_nearly_full(tmp_path: Path) -> None:
    lengths = [3, 5, 9, 14, 40, 77, 130, 6, 8]
    path = write_texts(tmp_path / "texts", 600, lambda n: "sea " * lengths[n % len(lengths)])
    dataset = get_train_dataset(
        path,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=2,
        packing_buffer_size=200,
        shuffle_buffer_size=100,
        max_samples_per_sequence=50,
        task_encoder=PretrainingTaskEncoder(TOKENIZER, seq_length=64),
        repeat=False,
    )
    with get_loader(dataset) as loader:
        batches = list(loader)
    expected = sum(len(tokenize_text(TOKENIZER, "sea " * lengths[n % len(lengths)]).ids) - 1 for n in range(600))
    assert sum(int(batch.loss_mask.sum()) for batch in batches) == expected
    assert all(batch.tokens.shape[1] == 64 for batch in batches)
    filled = [int(length) for batch in batches for length in batch.lengths]
    assert sum(filled) / (64 * len(filled)) > 0.97


def test_what_has_no_words_and_what_is_no_text() -> None:
    encoder = PretrainingTaskEncoder(TOKENIZER)
    with pytest.raises(SkipSample):
        list(encoder.preencode_sample(TextSample(__key__="k", text=" \n")))
    with pytest.raises(ConfigError, match="takes TextSample, got CaptioningSample"):
        list(encoder.preencode_sample(CaptioningSample(__key__="k", image=b"", caption="a")))


@pytest.mark.parametrize("kind", [PretrainingTaskEncoder, FamilyTaskEncoder])
def test_a_subclass_may_choose_packs_itself(kind: Any) -> None:
    def select_samples_to_pack(self: Any, samples: list[Any]) -> list[list[Any]]:
        return [[sample] for sample in samples]

    encoder = type("OnePackASample", (kind,), {"select_samples_to_pack": select_samples_to_pack})
    template = CASES["llava"].make().chat_template
    assert encoder(make_tokenizer(template=template)).select_samples_to_pack([1, 2]) == [[1], [2]]
