"""A connection with latency: a TCP proxy that delays requests by a fixed time.

The client's bytes are delivered SECONDS after they arrived, in order, and pipelined; answers pass at once. It ends when
its standard input does.

    python slow_link.py PORT SECONDS      # prints the port it listens at
"""

import asyncio
import collections
import contextlib
import sys

PIECE = 1 << 18


async def delayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, latency_s: float) -> None:
    """Pass bytes on, each `latency_s` after it came."""
    loop = asyncio.get_running_loop()
    pieces: collections.deque[tuple[float, bytes]] = collections.deque()
    came = asyncio.Event()

    async def receive() -> None:
        while True:
            piece = await reader.read(PIECE)
            pieces.append((loop.time() + latency_s, piece))
            came.set()
            if not piece:
                return

    receiving = asyncio.create_task(receive())
    try:
        while True:
            await came.wait()
            while pieces:
                due, piece = pieces.popleft()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not piece:
                    return
                writer.write(piece)
                await writer.drain()
            came.clear()
    finally:
        receiving.cancel()
        writer.close()


async def direct(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on at once."""
    try:
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
    finally:
        writer.close()


async def serve(port: int, latency_s: float) -> None:
    """Serve until standard input ends."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, downstream = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(delayed(reader, downstream, latency_s), direct(upstream, writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
    # The thread that read standard input has ended; connections that are still open end with the process.
