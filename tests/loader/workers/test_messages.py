import itertools
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from bridge_data import WorkerConfig, get_train_dataset
from bridge_data.loader.workers.messages import Channel, Freed, Stop, change_of, changed, contents_of, file_of
from tests.prepared import write_texts
from tests.properties.jobs import Encoder, GroupingEncoder


def test_messages_of_any_size_arrive_whole_and_in_order_with_their_descriptors() -> None:
    one, other = Channel.pair()
    file = file_of(b"payload")
    messages = [Freed([2, 3]), {"large": "x" * 5_000_000}, Stop()]
    for message in messages:
        one.send(message, [file], [b"one", memoryview(b"other")])
    os.close(file)
    for message in messages:
        received, payload, (descriptor,) = other.receive()
        assert received == message and type(received) is type(message)
        assert payload == b"oneother" and not os.get_inheritable(descriptor)
        assert bytes(contents_of(descriptor)) == b"payload"
    one.close()
    other.close()


def test_what_comes_with_a_message_may_be_large_and_have_no_descriptors() -> None:
    one, other = Channel.pair()
    for size in (0, 65_000, 1 << 16, 300_000):
        one.send(Stop(), payload=[b"x" * size])
        assert other.receive() == (Stop(), b"x" * size, [])
    one.close()
    other.close()


def test_an_empty_channel_does_not_block_unless_it_should() -> None:
    one, other = Channel.pair()
    with pytest.raises(BlockingIOError):
        other.receive(wait=False)
    one.close()
    with pytest.raises(EOFError):
        other.receive()
    other.send(Stop())  # is lost, and no error
    other.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("data"), 400)


def states_of(data: Path, encoder: Any, num_batches: int, **settings: Any) -> list[dict[str, Any]]:
    """The states of a lane after its batches, several passes of the data long."""
    dataset = get_train_dataset(
        data,
        task_encoder=encoder,
        worker_config=WorkerConfig(0, 1, 0, num_lanes=1),
        shuffle_buffer_size=20,
        max_samples_per_sequence=10,
        **settings,
    )
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
        received.append(changed(received[-1], change))
        before = state
    assert received[1:] == states


def test_a_full_buffer_is_sent_once(data: Path) -> None:
    states = states_of(data, Encoder(), 60, batch_size=1, packing_buffer_size=300)
    sizes = [len(pickle.dumps(change_of(before, state))) for before, state in zip([{}, *states], states, strict=False)]
    assert max(sizes) > 600
    assert sorted(sizes)[-5] < 200, "all but the few with which a buffer began"


def test_packs_of_another_buffer_are_sent_even_if_they_look_alike() -> None:
    first = {"draws": 10, "pending": {"packs": [[0, 1], [2]], "base": {"draws": 0}}}
    second = {"draws": 20, "pending": {"packs": [[2]], "base": {"draws": 10}}}
    assert changed(first, change_of(first, second)) == second


def test_without_packs_left_nothing_of_them_is_kept() -> None:
    packs = [[0, 1], [2]]
    base = {"draws": 0}
    states = [
        {"micro_batches": 1, "pending": {"packs": packs, "carried": [3], "base": base}},
        {"micro_batches": 2, "pending": {"packs": packs[1:], "base": base}},
        {"micro_batches": 3, "pending": {"base": base}},
        {"micro_batches": 4},
        {"micro_batches": 5, "pending": {"packs": packs[1:]}},
    ]
    for before, state in itertools.pairwise(states):
        assert changed(before, change_of(before, state)) == state
