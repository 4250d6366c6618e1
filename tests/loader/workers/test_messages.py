import os

import pytest

from bridge_data.loader.workers.messages import Channel, Freed, Stop, contents_of, file_of


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
    with pytest.raises(BrokenPipeError):
        other.send(Stop())
    other.close()
