import os

import pytest

from bridge_data.loader.messages import Channel, Stop, Taken, contents_of, file_of


def test_messages_of_any_size_arrive_whole_and_in_order_with_their_descriptors() -> None:
    one, other = Channel.pair()
    file = file_of(b"payload")
    messages = [Taken(1, [2, 3]), {"large": "x" * 5_000_000}, Stop()]
    for message in messages:
        one.send(message, [file])
    os.close(file)
    for message in messages:
        received, (descriptor,) = other.receive()
        assert received == message and not os.get_inheritable(descriptor)
        assert bytes(contents_of(descriptor)) == b"payload"
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
