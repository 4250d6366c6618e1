"""What re-deals leave in inboxes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_data import StateError
from bridge_data.order import ALL_PARTS, BEGINNING
from bridge_data.order.cursor import Entry, Inbox, Stream, cut_entry, entry_size
from tests.order.test_ordered import drained, shuffled


@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=12), size=st.integers(1, 8))
def test_an_inbox_gives_what_was_cut_in_its_order(cuts: list[int], size: int) -> None:
    old, new = shuffled(num_epochs=1), shuffled(first_epoch=1)
    expected = [(epoch, index, ALL_PARTS) for epoch, index in drained(Stream(old, 1), 99)]
    rest: Entry = [0, 1, *BEGINNING[:3], 0, len(expected)]
    entries: list[Entry] = [[[0, 5, 2]]]
    for cut in cuts:
        first, rest = cut_entry(rest, min(cut, entry_size(rest)))
        entries += [first] if entry_size(first) else []
    entries += [rest] if entry_size(rest) else []
    inbox = Inbox(entries, [old, new], "inbox")
    assert drained(inbox, size) == [(0, 5, 2), *expected]


@pytest.mark.parametrize("taken", range(0, 11, 2))
@pytest.mark.parametrize("unread", [0, 2])
def test_an_inbox_continues_from_the_entries_of_another(taken: int, unread: int) -> None:
    rows = [shuffled(num_epochs=1), shuffled(first_epoch=1)]
    entries: list[Entry] = [[[0, 1, 0], [0, 2, 0]], [0, 0, 0, 0, 0, 3, 4], [0, 2, 0, 0, 0, 0, 5]]
    expected = drained(Inbox(entries, rows, "inbox"), 99)
    inbox, got, last = Inbox(entries, rows, "inbox"), 0, 0
    while got < taken and (part := inbox.take(taken - got)):
        got, last = got + len(part), len(part)
    unread = min(unread, last)
    assert drained(Inbox(inbox.entries(unread), rows, "inbox"), 2) == expected[got - unread :]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ([[0, 37, 0]], "there is no sample 37, the data has 37"),
        ([0, 0, 1, 0, 0, 0, 5], "shuffle 1 is one of the next generation's"),
        ([0, 0, 0, 0, 0, 99, 5], "the skip is too long"),
        ([0, 0, 0, 0, 99, 0, 5], "offset 99"),
        ([0, 0, 0, 0, 0, 0, 99], "the lane had fewer samples left than the count says"),
    ],
)
def test_an_entry_of_samples_that_do_not_exist_is_refused(entry: Entry, says: str) -> None:
    with pytest.raises(StateError) as raised:
        drained(Inbox([entry], [shuffled(), shuffled(first_epoch=1)], "lanes.7.inbox.0"), 99)
    assert str(raised.value).startswith("lanes.7.inbox.0: ")
    assert says in str(raised.value)
