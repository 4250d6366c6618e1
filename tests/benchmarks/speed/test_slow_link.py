"""A connection that delivers everything, late."""

import asyncio
import time

from benchmarks.speed.slow_link import delayed

LATENCY_S = 0.05


def test_all_bytes_arrive_in_order_and_not_before_the_latency() -> None:
    sent = [bytes([number]) * 1000 for number in range(50)]
    took = asyncio.run(_through(sent))
    assert took >= LATENCY_S


async def _through(pieces: list[bytes]) -> float:
    """Seconds until the last byte of the pieces has come out of the other end."""
    received, whole = bytearray(), asyncio.Event()

    async def take(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        received.extend(await reader.read(-1))
        whole.set()

    target = await asyncio.start_server(take, "127.0.0.1", 0)
    _, outgoing = await asyncio.open_connection(*target.sockets[0].getsockname())
    incoming = asyncio.StreamReader()
    begin = time.monotonic()
    for piece in pieces:
        incoming.feed_data(piece)
    incoming.feed_eof()
    await delayed(incoming, outgoing, LATENCY_S)
    await whole.wait()
    target.close()
    assert bytes(received) == b"".join(pieces)
    return time.monotonic() - begin
