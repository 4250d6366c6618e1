import torch

from bridge_data.tools.view.contents import contents


class Words:
    """A tokenizer of numbered words."""

    def decode(self, tokens: list[int]) -> str:
        return f"w{tokens[0]} "


def batch() -> dict[str, object]:
    """Two rows of eight: a pack of three and two tokens and padding, and one sample that fills its row."""
    return {
        "__key__": ["a,b", "c"],
        "tokens": torch.arange(16).reshape(2, 8),
        "loss_mask": torch.tensor([[0, 1, 0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1, 0]]).float(),
        "position_ids": torch.tensor([[0, 1, 2, 0, 1, 0, 0, 0], list(range(8))]),
        "cu_seqlens": torch.tensor([[0, 3, 5], [0, 8, 8]], dtype=torch.int32),
        "more": [1, 2],
    }


def test_rows_have_their_samples_and_their_waste() -> None:
    shown = contents(batch(), Words())
    assert shown.keys == ("a", "b", "c")
    first, second = shown.rows
    assert [(one.key, one.first, one.length) for one in first.segments] == [("a", 0, 3), ("b", 3, 2)]
    assert (first.used, first.length, first.waste) == (5, 8, 3 / 8)
    assert first.segments[1].start == 3 / 8 and first.segments[1].share == 2 / 8
    assert [one.key for one in second.segments] == ["c"] and second.waste == 0
    assert ("more", "[1, 2]") in shown.fields


def test_what_is_coloured_is_the_label_of_the_position_before() -> None:
    first, second = contents(batch(), Words()).rows
    assert [token.text for token in first.tokens if token.learnt] == ["w2 ", "w5 "]
    assert [token.number for token in second.tokens if token.learnt] == [15]
    assert (first.num_learnt, second.num_learnt) == (2, 1)
    assert [token.position for token in first.tokens] == [0, 1, 2, 0, 1, 0, 0, 0]


def test_other_names_and_masks_are_understood() -> None:
    given = {"input_ids": torch.ones(2, 4, dtype=torch.int64), "attention_mask": torch.tensor([[1, 1, 0, 0], [1] * 4])}
    rows = contents(given).rows
    assert [(row.used, row.num_learnt) for row in rows] == [(2, 0), (4, 0)]
    assert rows[0].tokens[0].text == "1"


def test_three_positions_a_token_are_shown_by_the_first() -> None:
    given = batch() | {"position_ids": torch.stack([torch.full((2, 8), 7), torch.zeros(2, 8), torch.zeros(2, 8)])}
    assert {token.position for token in contents(given).rows[0].tokens} == {7}


def test_a_batch_without_tokens_is_told_in_words() -> None:
    shown = contents({"__key__": ["x"], "image": torch.zeros(1, 3, 4, 5)})
    assert shown.rows == () and shown.fields == (("image", "float32 1×3×4×5, 0 … 0"),)
