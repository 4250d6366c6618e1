from hypothesis import given
from hypothesis import strategies as st

from bridge_data.encoders.chat import MarkedTokens
from bridge_data.encoders.sequences import last_answer, with_image_tokens

PLACEHOLDER, IMAGE_ID = 7, 99
marked_tokens = st.lists(st.tuples(st.sampled_from([1, 2, PLACEHOLDER]), st.booleans()), max_size=30).map(
    lambda pairs: MarkedTokens([token for token, _ in pairs], [mark for _, mark in pairs])
)


@given(marked_tokens, st.integers(1, 6), st.integers(1, 60))
def test_an_image_is_there_with_all_its_tokens_or_not_at_all(marked: MarkedTokens, per_image: int, limit: int) -> None:
    images = [[IMAGE_ID] * per_image] * marked.ids.count(PLACEHOLDER)
    fitted, num_images = with_image_tokens(marked, PLACEHOLDER, images, limit)
    assert len(fitted.ids) == len(fitted.has_loss) <= limit
    assert fitted.ids.count(IMAGE_ID) == num_images * per_image
    whole, num_all = with_image_tokens(marked, PLACEHOLDER, images, 10**6)
    assert num_all == marked.ids.count(PLACEHOLDER)
    assert fitted.ids == whole.ids[: len(fitted.ids)]
    if len(fitted.ids) < min(limit, len(whole.ids)):  # shorter than it might be: only because of an image
        assert whole.ids[len(fitted.ids)] == IMAGE_ID
        assert len(fitted.ids) + per_image > limit
    assert not any(mark for token, mark in zip(fitted.ids, fitted.has_loss, strict=True) if token == IMAGE_ID)


def test_the_last_answer_is_cut_off_with_what_follows_it() -> None:
    marked = MarkedTokens([1, 2, 3, 4, 5, 6], [False, True, False, True, True, False])
    before, answer = last_answer(marked)
    assert (before.ids, answer.ids) == ([1, 2, 3], [4, 5])
    before, answer = last_answer(MarkedTokens([1, 2], [False, False]))
    assert (before.ids, answer.ids) == ([], [])
