import itertools
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge_data.loader.workers.messages import Channel, Freed, Stop, applied, change_of, contents_of, file_of
from tests.prepared import train_dataset, write_texts
from tests.properties.jobs import Encoder, GroupingEncoder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("data"), 400)


def states_of(data: Path, encoder: Any, num_batches: int, **settings: Any) -> list[dict[str, Any]]:
    """The states of a lane after its batches, several passes of the data long."""
    dataset = train_dataset(data, num_lanes=1, task_encoder=encoder, **settings)
    lane = dataset.lane(0, dataset.new_state())
    return [lane.next().state for _ in range(num_batches)]


@pytest.mark.parametrize(
    ("encoder", "settings"),
    [
        (Encoder(), {"batch_size": 4}),
        (Encoder(skip_every=3, num_parts=3), {"batch_size": 2, "packing_buffer_size": 30}),
        (Encoder(skip_every=3), {"batch_size": None, "packing_buffer_size": 7}),
        (GroupingEncoder(num_groups=3), {"batch_size": 3, "packing_buffer_size": 40}),
        (GroupingEncoder(num_groups=3, num_parts=2), {"batch_size": 3}),
    ],
)
def test_states_come_out_equal(data: Path, encoder: Any, settings: dict[str, Any]) -> None:
    states = states_of(data, encoder, 150, **settings)
    before: dict[str, Any] = {}
    received: list[dict[str, Any]] = [{"draws": 0, "cursors": [], "pending": {"packs": [[1]]}}]  # where the lane began
    for state in states:
        change = pickle.loads(pickle.dumps(change_of(before, state)))
        received.append(applied(received[-1], change))
        before = state
    assert received[1:] == states


def test_a_full_buffer_is_sent_once(data: Path) -> None:
    states = states_of(data, Encoder(), 60, batch_size=1, packing_buffer_size=300)
    sizes = [len(pickle.dumps(change_of(before, state))) for before, state in zip([{}, *states], states, strict=False)]
    assert max(sizes) > 600
    assert sorted(sizes)[-5] < 200, "all but the few with which a buffer began"


@pytest.mark.parametrize(
    "own", [lambda n: {"position": [n]}, lambda n: [n, 7], lambda n: n + 1], ids=["dict", "list", "int"]
)
@pytest.mark.parametrize("pending", [{}, {"pending": {"packs": [[0, 1], [2]]}}], ids=["nothing waits", "packs wait"])
def test_a_pack_source_has_any_state_of_its_own(own: Callable[[int], Any], pending: dict[str, Any]) -> None:
    states = [{"draws": number, "pack_source": own(number), **pending} for number in range(3)]
    received: dict[str, Any] = {}
    for before, state in zip([{}, *states], states, strict=False):
        received = applied(received, pickle.loads(pickle.dumps(change_of(before, state))))
        assert received == state


PACKS, BASE = [[0, 1], [2]], {"draws": 0}


@pytest.mark.parametrize(
    "states",
    [
        [  # packs of another buffer that look alike
            {"draws": 10, "pending": {"packs": PACKS, "base": BASE}},
            {"draws": 20, "pending": {"packs": PACKS[1:], "base": {"draws": 10}}},
        ],
        [  # no packs are left, and then there are some again
            {"micro_batches": 1, "pending": {"packs": PACKS, "carried": [3], "base": BASE}},
            {"micro_batches": 2, "pending": {"packs": PACKS[1:], "base": BASE}},
            {"micro_batches": 3, "pending": {"base": BASE}},
            {"micro_batches": 4},
            {"micro_batches": 5, "pending": {"packs": PACKS[1:]}},
        ],
    ],
)
def test_packs_that_are_left_or_not_come_out_equal(states: list[dict[str, Any]]) -> None:
    for before, state in itertools.pairwise(states):
        assert applied(before, change_of(before, state)) == state


def test_messages_of_any_size_arrive_whole_and_in_order_with_their_descriptors() -> None:
    one, other = Channel.pair()
    file = file_of(b"payload")
    messages = [Freed([2, 3]), {"large": "x" * 5_000_000}, Stop(), Stop()]
    payloads = [b"", b"x" * (1 << 16), b"one", b"x" * 300_000]
    with pytest.raises(BlockingIOError):
        other.receive(wait=False)
    for message, payload in zip(messages, payloads, strict=True):
        one.send(message, [file], [payload, memoryview(b"other")])
    os.close(file)
    for message, payload in zip(messages, payloads, strict=True):
        received, with_it, (descriptor,) = other.receive()
        assert received == message and type(received) is type(message)
        assert with_it == payload + b"other" and not os.get_inheritable(descriptor)
        assert bytes(contents_of(descriptor)) == b"payload"
    one.send(Stop())
    assert other.receive() == (Stop(), b"", [])
    one.close()
    with pytest.raises(EOFError):
        other.receive()
    other.send(Stop())  # is lost, and no error
    other.close()
